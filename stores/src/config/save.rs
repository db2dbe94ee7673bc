//! Writes files of the configuration so that a crash at any point leaves the old or the new one, whole.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use holdfast_protocol::error::ErrorKind;

use super::error::ConfigError;
use super::load::read_limited;
use super::snapshot::{Revision, parse};
use crate::install_root::InstallRoot;
use crate::kit::error::file_kind;
use crate::kit::file_system::{FileSystem, RealFileSystem};
use crate::kit::save::{self as kit_save, SaveOptions};

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
    /// The new text could not be put in place.
    #[error(transparent)]
    Replace(#[from] kit_save::SaveError),
    /// A new file could not be made.
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
            Self::Replace(kit_save::SaveError { source, .. }) | Self::Io { source, .. } => file_kind(source),
        }
    }
}

/// Replaces `config.toml`, if it still is what `base` names, and keeps the old text in `config.toml.bak`.
///
/// A symbolic link stays one: what it points to is replaced. See [`crate::kit::save`] for the order of steps.
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
    let backup = root.config_backup();
    let options = SaveOptions { backup: Some(backup.clone()), mode: Some(FILE_MODE) };
    let saved = kit_save::save(&RealFileSystem, &target, bytes, options)?;
    // The backup is the old file itself, which somebody may have made readable for others.
    let private = fs::set_permissions(&backup, Permissions::from_mode(FILE_MODE));
    let loose = private.err().map(|error| format!("`{}` could not be made private ({error})", backup.display()));
    let warning = [saved.warning, loose].into_iter().flatten().reduce(|all, one| format!("{all}; {one}"));
    Ok(Saved { revision, unchanged: false, durable: saved.durable, warning })
}

/// Makes a file that isn't there, whole and synced, 0600, and never replaces one. Says whether it was made.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> Result<bool, SaveError> {
    let files = RealFileSystem;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // No two living threads of a machine share the number, so a file of this name is a dead one's.
    name.push(format!(".{}.new", rustix::thread::gettid().as_raw_nonzero()));
    let temporary = path.with_file_name(name);
    match files.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove the left over", &temporary, error));
        }
        _ => {}
    }
    let made = files.create_new(&temporary, FILE_MODE).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync()?;
        // A hard link, unlike a rename, fails when the name is taken, whatever it is taken by.
        match files.link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            other => other.map(|()| true),
        }
    });
    // Left over at worst: a file nobody reads.
    let _ = files.remove(&temporary);
    let made = made.map_err(|source| io_error("make", path, source))?;
    if made {
        files.sync_directory(directory).map_err(|source| io_error("sync the directory", directory, source))?;
    }
    Ok(made)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> SaveError {
    SaveError::Io { action, path: path.to_owned(), source }
}
