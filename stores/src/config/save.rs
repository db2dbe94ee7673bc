//! Writes files of the configuration so that a crash at any point leaves the old or the new one, whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_protocol::error::ErrorKind;

use super::error::ConfigError;
use super::load::read_limited;
use super::snapshot::{Revision, parse};
use crate::install_root::InstallRoot;

/// The mode of every file here: the owner alone.
const FILE_MODE: u32 = 0o600;

/// A saved configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// What the file holds now.
    pub revision: Revision,
    /// Whether it was already so and nothing was written.
    pub unchanged: bool,
    /// Whether it would survive a power cut now.
    pub durable: bool,
    /// Why not.
    pub warning: Option<String>,
}

/// Why a configuration was not saved. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file is no longer what the change was made to.
    #[error("`{file}` was changed by somebody else meanwhile")]
    Conflict {
        /// The file.
        file: PathBuf,
    },
    /// The file can't be read, or the new text is not one that could be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl SaveError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Config(error) => error.kind(),
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
                io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
                _ => ErrorKind::Internal,
            },
        }
    }
}

/// Replaces `config.toml`, if it still is what `base` names, and keeps the old text in `config.toml.bak`.
///
/// The order is: new file beside the old, synced; backup, synced; directory synced; rename; directory synced. A symbolic link
/// stays one: what it points to is replaced.
///
/// # Errors
/// [`SaveError`]; the file is then untouched. After the rename nothing is an error any more: a directory that can't be synced
/// makes the answer `durable: false`.
pub fn save(root: &InstallRoot, base: Revision, bytes: &[u8]) -> Result<Saved, SaveError> {
    let file = root.config_file();
    let old = read_limited(&file)?;
    if Revision::of(&old) != base {
        return Err(SaveError::Conflict { file });
    }
    let revision = Revision::of(bytes);
    if old == bytes {
        return Ok(Saved { revision, unchanged: true, durable: true, warning: None });
    }
    parse(&file, bytes)?;
    let target = fs::canonicalize(&file).map_err(|source| io_error("find", &file, source))?;
    let prepared = Temporary::write(&target, bytes)?;
    let backup = root.config_backup();
    Temporary::write(&backup, &old)?.rename(&backup)?;
    sync_directory(&target)?;
    sync_directory(&backup)?;
    prepared.rename(&target)?;
    let warning = sync_directory(&target).err().map(|error| {
        format!("saved, but {error}: a power cut may still bring back the old text (kept in {})", backup.display())
    });
    Ok(Saved { revision, unchanged: false, durable: warning.is_none(), warning })
}

/// Makes a file that isn't there, whole and synced, and never replaces one. Says whether it was made.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> Result<bool, SaveError> {
    let temporary = Temporary::write(path, bytes)?;
    // A hard link, unlike a rename, fails when the name is taken, whatever it is taken by.
    match fs::hard_link(&temporary.path, path) {
        Ok(()) => {
            drop(temporary);
            sync_directory(path)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(io_error("make", path, source)),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> SaveError {
    SaveError::Io { action, path: path.to_owned(), source }
}

/// Syncs the directory that holds `path`.
fn sync_directory(path: &Path) -> Result<(), SaveError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| io_error("sync the directory", directory, source))
}

/// A file beside another, removed unless it takes that one's name.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Writes and syncs a file beside `path`, 0600 whatever the umask.
    fn write(path: &Path, bytes: &[u8]) -> Result<Self, SaveError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        // No two living threads of a machine share the number, so a file of this name is a dead one's.
        name.push(format!(".{}.tmp", rustix::thread::gettid().as_raw_nonzero()));
        let temporary = path.with_file_name(name);
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove the left over", &temporary, error));
            }
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&temporary)
            .map_err(|source| io_error("make", &temporary, source))?;
        let made = Self { path: temporary, renamed: false };
        file.set_permissions(Permissions::from_mode(FILE_MODE))
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.sync_all())
            .map_err(|source| io_error("write", path, source))?;
        Ok(made)
    }

    /// Gives it its name, replacing what has it.
    fn rename(mut self, path: &Path) -> Result<(), SaveError> {
        fs::rename(&self.path, path).map_err(|source| io_error("replace", path, source))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Left over at worst: it is removed by the next save from a thread of this number.
            let _ = fs::remove_file(&self.path);
        }
    }
}
