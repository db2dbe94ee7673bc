//! Replaces a file so that a crash at any moment leaves the old or the new content, whole.
//!
//! The order: write a temporary file in the same directory, fsync it, keep the old file under a second name if asked,
//! rename over the target, fsync the directory. A failure before the rename leaves the target untouched. A failure of
//! the last step leaves the new content in place but not promised: the answer then says so.

use std::io;
use std::path::{Path, PathBuf};

use super::file_system::FileSystem;

/// How to save.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// Where the version before this one is kept, in the same directory. None keeps none.
    pub backup: Option<PathBuf>,
    /// Permission bits of the new file; None means those of the file it replaces, or 0600 for a new one.
    pub mode: Option<u32>,
}

/// The answer to a save: the new content is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Whether it survives power loss. False only together with a warning.
    pub durable: bool,
    /// What could not be promised, for a person.
    pub warning: Option<String>,
}

/// A save that did not happen: the target is as it was.
#[derive(Debug, thiserror::Error)]
#[error("failed to save `{path}`: could not {step}")]
pub struct SaveError {
    /// The target.
    pub path: PathBuf,
    /// The step that failed ("write the temporary file").
    pub step: &'static str,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Replaces the content of `path` by `bytes`.
///
/// Concurrent saves of one path are the caller's mistake: one owner a file. A temporary file left by a crash is
/// replaced.
///
/// # Errors
/// [`SaveError`] when the target was not replaced.
pub fn save(files: &dyn FileSystem, path: &Path, bytes: &[u8], options: SaveOptions) -> Result<Saved, SaveError> {
    let failed = |step| move |source| SaveError { path: path.to_owned(), step, source };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let old = match files.facts(path) {
        Ok(facts) => Some(facts),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("look at the old file")(error)),
    };
    let mode = options.mode.or(old.map(|facts| facts.mode)).unwrap_or(0o600);
    let temporary = with_suffix(path, ".new");
    remove_if_there(files, &temporary).map_err(failed("remove an old temporary file"))?;
    let written = write_temporary(files, &temporary, bytes, mode).and_then(|()| match (&options.backup, old) {
        (Some(backup), Some(facts)) => keep_backup(files, path, backup, facts.mode),
        _ => Ok(()),
    });
    let replaced =
        written.and_then(|()| files.rename(&temporary, path).map_err(|error| ("put the new file in its place", error)));
    if let Err((step, error)) = replaced {
        // The half-written file is worth nothing; if it can't be removed, the next save tries again.
        let _ = remove_if_there(files, &temporary);
        return Err(failed(step)(error));
    }
    Ok(match files.sync_directory(directory) {
        Ok(()) => Saved { durable: true, warning: None },
        Err(error) => Saved {
            durable: false,
            warning: Some(format!(
                "`{}` is saved, but may be lost at a power cut: the directory could not be synced ({error})",
                path.display()
            )),
        },
    })
}

type Step = (&'static str, io::Error);

fn write_temporary(files: &dyn FileSystem, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Step> {
    let mut file = files.create_new(path, mode).map_err(|error| ("make the temporary file", error))?;
    file.write_all(bytes).map_err(|error| ("write the temporary file", error))?;
    file.sync().map_err(|error| ("sync the temporary file", error))
}

/// Gives the old content the backup's name; the old backup goes only once the new one is whole.
fn keep_backup(files: &dyn FileSystem, path: &Path, backup: &Path, mode: u32) -> Result<(), Step> {
    let temporary = with_suffix(backup, ".new");
    remove_if_there(files, &temporary).map_err(|error| ("remove an old temporary backup", error))?;
    // A second name costs no copy. Where the file system has none, the bytes are copied.
    if files.link(path, &temporary).is_err() {
        let old = files.read(path).map_err(|error| ("read the old file for the backup", error))?;
        write_temporary(files, &temporary, &old, mode)?;
    }
    let renamed = files.rename(&temporary, backup).map_err(|error| ("put the backup in its place", error));
    // After a save that failed at its last rename the backup already is the old file under a second name, and a
    // rename between two names of one file does nothing (POSIX), so the temporary name goes in any case.
    let removed = remove_if_there(files, &temporary).map_err(|error| ("remove the temporary backup", error));
    renamed.and(removed)
}

fn remove_if_there(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match files.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::file_system::{FileFacts, RealFileSystem, WritableFile};
    use super::*;

    /// Fails the n-th operation and, like a crash, all after it; or only that one.
    struct Faulty {
        at: usize,
        ever_after: bool,
        done: Arc<AtomicUsize>,
    }

    impl Faulty {
        fn new(at: usize, ever_after: bool) -> Self {
            Self { at, ever_after, done: Arc::new(AtomicUsize::new(0)) }
        }

        fn step(&self) -> io::Result<()> {
            step(&self.done, self.at, self.ever_after)
        }
    }

    fn step(done: &AtomicUsize, at: usize, ever_after: bool) -> io::Result<()> {
        let number = done.fetch_add(1, Ordering::SeqCst);
        if number == at || (ever_after && number > at) { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    struct FaultyFile {
        inner: Box<dyn WritableFile>,
        at: usize,
        ever_after: bool,
        done: Arc<AtomicUsize>,
    }

    impl WritableFile for FaultyFile {
        fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            if let Err(error) = step(&self.done, self.at, self.ever_after) {
                // A full disk leaves half of it.
                self.inner.write_all(&bytes[..bytes.len() / 2])?;
                return Err(error);
            }
            self.inner.write_all(bytes)
        }

        fn sync(&mut self) -> io::Result<()> {
            step(&self.done, self.at, self.ever_after)?;
            self.inner.sync()
        }
    }

    impl FileSystem for Faulty {
        fn create_new(&self, path: &Path, mode: u32) -> io::Result<Box<dyn WritableFile>> {
            self.step()?;
            let inner = RealFileSystem.create_new(path, mode)?;
            Ok(Box::new(FaultyFile { inner, at: self.at, ever_after: self.ever_after, done: self.done.clone() }))
        }
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.step()?;
            RealFileSystem.read(path)
        }
        fn facts(&self, path: &Path) -> io::Result<FileFacts> {
            self.step()?;
            RealFileSystem.facts(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            RealFileSystem.rename(from, to)
        }
        fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            RealFileSystem.link(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.step()?;
            RealFileSystem.remove(path)
        }
        fn sync_directory(&self, path: &Path) -> io::Result<()> {
            self.step()?;
            RealFileSystem.sync_directory(path)
        }
    }

    fn with_backup(path: &Path) -> SaveOptions {
        SaveOptions { backup: Some(path.with_extension("toml.bak")), mode: None }
    }

    #[test]
    fn a_save_replaces_and_keeps_the_version_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        for text in ["one", "two", "three"] {
            let saved = save(&RealFileSystem, &path, text.as_bytes(), with_backup(&path)).unwrap();
            assert_eq!(saved, Saved { durable: true, warning: None });
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
        assert_eq!(std::fs::read_to_string(path.with_extension("toml.bak")).unwrap(), "two");
        assert_eq!(RealFileSystem.facts(&path).unwrap().mode, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "a temporary file was left");
    }

    #[test]
    fn a_save_keeps_the_permissions_of_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        save(&RealFileSystem, &path, b"1", SaveOptions { mode: Some(0o640), backup: None }).unwrap();
        save(&RealFileSystem, &path, b"2", SaveOptions::default()).unwrap();
        assert_eq!(RealFileSystem.facts(&path).unwrap().mode, 0o640);
    }

    #[test]
    fn whatever_step_fails_the_file_is_whole_and_the_answer_true() {
        for ever_after in [true, false] {
            let mut refused = 0;
            for at in 0..40 {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("config.toml");
                save(&RealFileSystem, &path, b"before", with_backup(&path)).unwrap();
                save(&RealFileSystem, &path, b"old", with_backup(&path)).unwrap();
                let faulty = Faulty::new(at, ever_after);
                let answer = save(&faulty, &path, b"new content", with_backup(&path));
                let content = std::fs::read_to_string(&path).unwrap();
                match &answer {
                    Ok(saved) => {
                        assert_eq!(content, "new content", "fault at {at}");
                        assert_eq!(saved.durable, saved.warning.is_none());
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(content, "old", "fault at {at}: {error}");
                    }
                }
                let backup = std::fs::read_to_string(path.with_extension("toml.bak")).unwrap();
                assert!(backup == "before" || backup == "old", "fault at {at}: backup holds {backup:?}");
                if faulty.done.load(Ordering::SeqCst) <= at {
                    assert!(answer.unwrap().durable, "no fault was met");
                    break;
                }
                // What the fault left behind does not hinder the next save.
                assert!(save(&RealFileSystem, &path, b"next", with_backup(&path)).unwrap().durable);
                assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "fault at {at} left a file");
            }
            assert!(refused >= 5, "only {refused} steps were made to fail");
        }
    }
}
