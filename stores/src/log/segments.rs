//! The log's files: how they are named, found, bounded and rotated.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::LogError;
use super::line::LINE_BYTES_MAX;

/// The segment being written.
pub const CURRENT: &str = "runtime-trace.jsonl";
const TRIMMED: &str = "runtime-trace.jsonl.trimmed";
const PREFIX: &str = "runtime-trace.";
const SUFFIX: &str = ".jsonl";

/// An older segment on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldSegment {
    /// Its number; a later segment has a higher one.
    pub number: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
}

/// Returns the path of the old segment `number`.
pub fn old_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{number:06}{SUFFIX}"))
}

/// Returns the older segments in `directory`, oldest first. Files with other names are not ours and are left alone.
///
/// # Errors
/// [`LogError::Io`] when the directory can't be read.
pub fn list_old(directory: &Path) -> Result<Vec<OldSegment>, LogError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(LogError::io("list", directory))? {
        let entry = entry.map_err(LogError::io("list", directory))?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX))
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        let Some(number) = number else { continue };
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => {
                found.push(OldSegment { number, path: entry.path(), size_bytes: metadata.len() });
            }
            Ok(_) => {}
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(LogError::io("examine", entry.path())(error)),
        }
    }
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

/// Opens the current segment for appending, made with mode 0600 when it is not there.
pub fn open_current(directory: &Path) -> Result<File, LogError> {
    let path = directory.join(CURRENT);
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // A link planted in place of the log would have us append to what it points at.
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(&path)
        .map_err(LogError::io("open", &path))?;
    let mode = file.metadata().map_err(LogError::io("examine", &path))?.mode();
    if mode & 0o077 != 0 {
        rustix::fs::fchmod(&file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .map_err(|error| LogError::io("restrict", &path)(error.into()))?;
    }
    Ok(file)
}

/// Makes the current segment the old segment `number`. One rename: a crash before or after leaves a valid log.
pub fn retire_current(directory: &Path, number: u64) -> Result<(), LogError> {
    let from = directory.join(CURRENT);
    match fs::rename(&from, old_path(directory, number)) {
        // Someone removed it; the next open makes a new one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(LogError::io("rotate", from)),
    }
}

/// Removes the oldest segments until at most `keep` are left and together they hold at most `total_bytes`.
///
/// Returns how many were removed. A segment that is already gone counts as removed.
pub fn prune(directory: &Path, keep: usize, total_bytes: u64) -> Result<usize, LogError> {
    let old = list_old(directory)?;
    let mut removed = 0;
    let mut left_bytes: u64 = old.iter().map(|segment| segment.size_bytes).sum();
    for (index, segment) in old.iter().enumerate() {
        if old.len() - index <= keep && left_bytes <= total_bytes {
            break;
        }
        match fs::remove_file(&segment.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LogError::io("remove the old segment", &segment.path)(error));
            }
            _ => removed += 1,
        }
        left_bytes -= segment.size_bytes;
    }
    Ok(removed)
}

/// Cuts a file longer than `limit_bytes` down to its last whole lines within the limit.
///
/// Only for what another program or another configuration left: segments of ours never pass the limit by more than a
/// line. The kept part is written beside it and renamed over it, so a crash leaves the one or the other.
pub fn trim_to(directory: &Path, path: &Path, limit_bytes: u64) -> Result<bool, LogError> {
    let mut source = match File::open(path) {
        Ok(source) => source,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(LogError::io("open", path)(error)),
    };
    let size_bytes = source.metadata().map_err(LogError::io("examine", path))?.len();
    if size_bytes <= limit_bytes + LINE_BYTES_MAX as u64 {
        return Ok(false);
    }
    let beside = directory.join(TRIMMED);
    let mut copy = || -> io::Result<()> {
        source.seek(SeekFrom::Start(size_bytes - limit_bytes))?;
        let mut target = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut chunk = vec![0; 256 * 1024];
        let mut in_line = false;
        let mut left = limit_bytes;
        while left > 0 {
            let want = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = source.read(&mut chunk[..want])?;
            if count == 0 {
                break;
            }
            left -= count as u64;
            let mut bytes = &chunk[..count];
            if !in_line {
                // The cut falls into a line: its rest is dropped.
                let Some(newline) = bytes.iter().position(|byte| *byte == b'\n') else { continue };
                in_line = true;
                bytes = &bytes[newline + 1..];
            }
            target.write_all(bytes)?;
        }
        target.sync_all()?;
        fs::rename(&beside, path)
    };
    copy().map_err(LogError::io("bring under its limit", path))?;
    Ok(true)
}

/// Removes what a crash in [`trim_to`] may have left.
pub fn remove_leftovers(directory: &Path) -> Result<(), LogError> {
    let path = directory.join(TRIMMED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LogError::io("remove", path)(error)),
        _ => Ok(()),
    }
}
