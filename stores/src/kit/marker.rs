//! The note beside a database that says "this file held rows" and how it was left.
//!
//! Without it an emptied or deleted file would look like a first run, and history would be lost without anyone being
//! told. It lies beside the file, not in it, since it must outlive it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file_system::FileSystem;
use super::save::{SaveError, SaveOptions, save};

/// The size and time of the file when its last connection was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanStop {
    /// Bytes of the database file.
    pub size_bytes: u64,
    /// Its modification time, nanoseconds since 1970.
    pub modified_ns: i64,
}

/// What the marker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The role of the database.
    pub role: String,
    /// When the database was made, UTC milliseconds.
    pub created_at_ms: i64,
    /// How it was left; absent until the first clean stop.
    pub clean_stop: Option<CleanStop>,
}

/// A marker as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundMarker {
    /// None: the database has never been opened here.
    Missing,
    /// There is one, but it can't be understood: the database existed, and nothing is known about its last stop.
    Unreadable,
    /// A good one.
    Marker(Marker),
}

/// Returns where the marker of the database at `path` lies.
pub fn marker_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".marker");
    PathBuf::from(name)
}

/// Reads the marker of the database at `path`.
///
/// # Errors
/// When it exists and can't be read.
pub fn read(files: &dyn FileSystem, path: &Path) -> std::io::Result<FoundMarker> {
    match files.read(&marker_path(path)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).map_or(FoundMarker::Unreadable, FoundMarker::Marker)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(FoundMarker::Missing),
        Err(error) => Err(error),
    }
}

/// Writes the marker of the database at `path` durably.
///
/// # Errors
/// As [`save`].
pub fn write(files: &dyn FileSystem, path: &Path, marker: &Marker) -> Result<(), SaveError> {
    // Strings and numbers always serialise; an empty marker would still say that the database existed.
    let bytes = serde_json::to_vec(marker).unwrap_or_default();
    save(files, &marker_path(path), &bytes, SaveOptions::default()).map(|_| ())
}

/// Returns how the file lies there now.
///
/// # Errors
/// When it can't be looked at.
pub fn clean_stop_of(path: &Path) -> std::io::Result<CleanStop> {
    let metadata = std::fs::metadata(path)?;
    let modified_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    Ok(CleanStop { size_bytes: metadata.len(), modified_ns })
}
