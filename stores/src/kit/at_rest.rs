//! A database whose owner does not run, opened to be read as it lies there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::database::{DatabaseSpec, check_marker, log_path, our_meta, reader_options, store_error};
use super::error::OpenError;
use super::file_system::RealFileSystem;
use super::header::{Found, inspect};
use super::marker::{self, CleanStop};
use super::readers::Readers;
use super::unchecked;

/// How long a read waits for a lock. Only a recovery of the log takes one that readers wait for.
const WAIT: Duration = Duration::from_secs(2);

/// A database that is read without its owner. Nothing is made, changed, migrated or kept waiting by it.
///
/// A file without a log is read as one that nobody changes, without locks and without side files. Should an owner start
/// meanwhile, [`AtRest::is_unchanged`] says so, and what was read has to be read again. A log that an unclean stop left is
/// read with SQLite's own locks, beside a new owner if there is one.
#[derive(Debug, Clone)]
pub struct AtRest {
    path: PathBuf,
    readers: Readers,
    /// How the file lay there, when it is read without locks.
    still: Option<CleanStop>,
}

impl AtRest {
    /// Opens the database at `data_dir/spec.file` if there is one; none was ever made otherwise.
    ///
    /// Reads through a plain descriptor at first, so no connection of this process may be using the file.
    ///
    /// # Errors
    /// [`OpenError`]: the file is damaged, of another version, or can't be read.
    pub async fn open(data_dir: &Path, spec: &'static DatabaseSpec) -> Result<Option<Self>, OpenError> {
        let path = data_dir.join(spec.file);
        let failed = |action| move |source| OpenError::FileSystem { path: data_dir.join(spec.file), action, source };
        let path = std::path::absolute(&path).map_err(failed("find"))?;
        let marker = marker::read(&RealFileSystem, &path).map_err(failed("read the marker of"))?;
        let log = std::fs::metadata(log_path(&path)).ok();
        let still = if has_side_file(&path) { None } else { marker::clean_stop_of(&path).ok() };
        let found = inspect(&path, log.is_some_and(|log| log.len() > 0))?;
        check_marker(&path, spec, &marker, found)?;
        match found {
            Found::Missing | Found::Empty => return Ok(None),
            Found::Database { .. } => {}
        }
        let options = reader_options(&path).immutable(still.is_some());
        let readers = Readers::new(spec.role, options, 1, WAIT);
        let in_store = |source| store_error(&path, source);
        let mut reader = readers.reader().await.map_err(in_store)?;
        let meta = unchecked::schema_meta_read(&mut reader, spec.role).await.map_err(in_store)?;
        drop(reader);
        // Blank: an owner ended before it had made the tables.
        let Some(meta) = our_meta(&path, spec, meta)? else { return Ok(None) };
        let (found, known) = (meta.schema_version, spec.known_version());
        if found < known {
            return Err(OpenError::OlderSchema { path, found, known });
        }
        Ok(Some(Self { path, readers, still }))
    }

    /// Returns what reads.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Says whether what was read so far is what the file held at one moment. `false`: open it again and read again.
    pub fn is_unchanged(&self) -> bool {
        match &self.still {
            None => true,
            Some(still) => {
                !has_side_file(&self.path) && marker::clean_stop_of(&self.path).is_ok_and(|now| now == *still)
            }
        }
    }

    /// Returns the bytes of the file and its write-ahead log.
    pub fn size_bytes(&self) -> u64 {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        size(&self.path) + size(&log_path(&self.path))
    }
}

/// Says whether a log or a journal lies beside the file: somebody uses it, or did not end cleanly.
fn has_side_file(path: &Path) -> bool {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-journal");
    let there = |path: &Path| !matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound);
    there(&log_path(path)) || there(Path::new(&journal))
}
