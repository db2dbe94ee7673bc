//! Reads `config.toml` from the disk: once for a start, once for each reload. Never writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::environment::Overrides;
use super::error::ConfigError;
use super::section::SectionRegistry;
use super::snapshot::{ConfigSnapshot, Revision, parse};
use crate::install_root::InstallRoot;

/// The largest file that is read, in bytes. A hundred agents take about half a megabyte.
pub const CONFIG_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// Where the configuration comes from: the file, its backup, the sections known and the overrides of this process.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    file: PathBuf,
    backup: PathBuf,
    registry: Arc<SectionRegistry>,
    overrides: Arc<Overrides>,
}

impl ConfigSource {
    /// Describes the configuration of an install root.
    pub fn new(root: &InstallRoot, registry: Arc<SectionRegistry>, overrides: Overrides) -> Self {
        Self { file: root.config_file(), backup: root.config_backup(), registry, overrides: Arc::new(overrides) }
    }

    /// Returns the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the sections known.
    pub fn registry(&self) -> &Arc<SectionRegistry> {
        &self.registry
    }

    /// Returns the revision of what is in the file now, valid or not.
    ///
    /// # Errors
    /// The [`ConfigError`]s of reading.
    pub fn revision_on_disk(&self) -> Result<Revision, ConfigError> {
        read_limited(&self.file).map(|bytes| Revision::of(&bytes))
    }

    /// Reads the file for a start: a section that can't be used is noted in the snapshot and downs its surface only.
    ///
    /// # Errors
    /// Every [`ConfigError`] but [`ConfigError::Invalid`].
    pub fn load_for_start(&self) -> Result<ConfigSnapshot, ConfigError> {
        let bytes = match read_limited(&self.file) {
            Err(ConfigError::Missing { file }) => {
                return Err(match good_backup(&self.backup) {
                    Some(backup) => ConfigError::Lost { file, found: "missing", backup },
                    None => ConfigError::Missing { file },
                });
            }
            other => other?,
        };
        if bytes.iter().all(u8::is_ascii_whitespace)
            && let Some(backup) = good_backup(&self.backup)
        {
            return Err(ConfigError::Lost { file: self.file.clone(), found: "empty", backup });
        }
        ConfigSnapshot::read(&self.file, &bytes, &self.registry, &self.overrides).map_err(|error| match error {
            ConfigError::Syntax { file, problem, .. } => {
                ConfigError::Syntax { file, problem, backup: good_backup(&self.backup) }
            }
            other => other,
        })
    }

    /// Reads the file for a reload: any section that can't be used refuses it whole.
    ///
    /// # Errors
    /// Every [`ConfigError`].
    pub fn load_for_reload(&self) -> Result<ConfigSnapshot, ConfigError> {
        self.load_for_start()?.refuse_problems()
    }
}

/// Returns the backup's path if it holds a configuration to go back to.
pub(super) fn good_backup(backup: &Path) -> Option<PathBuf> {
    let bytes = read_limited(backup).ok()?;
    let (_, table) = parse(backup, &bytes).ok()?;
    (!table.is_empty()).then(|| backup.to_owned())
}

/// Reads a file whole, up to [`CONFIG_LIMIT_BYTES`]. A symbolic link is followed: people keep such files elsewhere.
pub(super) fn read_limited(file: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { file: file.to_owned(), source };
    // Opening a pipe that nobody writes would otherwise wait for ever.
    let opened: File = match OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match fs::symlink_metadata(file) {
                Ok(_) => ConfigError::NotAFile { file: file.to_owned(), found: "a symbolic link to nothing" },
                Err(_) => ConfigError::Missing { file: file.to_owned() },
            });
        }
        // A socket can't be opened at all.
        Err(_) if fs::metadata(file).is_ok_and(|metadata| metadata.file_type().is_socket()) => {
            return Err(ConfigError::NotAFile { file: file.to_owned(), found: "a socket" });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let metadata = opened.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(ConfigError::NotAFile { file: file.to_owned(), found });
    }
    let refuse_large = |size_bytes| match size_bytes > CONFIG_LIMIT_BYTES {
        true => Err(ConfigError::TooLarge { file: file.to_owned(), size_bytes, limit_bytes: CONFIG_LIMIT_BYTES }),
        false => Ok(()),
    };
    refuse_large(metadata.len())?;
    let mut bytes = Vec::new();
    opened.take(CONFIG_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    // It may have grown meanwhile.
    refuse_large(bytes.len() as u64)?;
    Ok(bytes)
}
