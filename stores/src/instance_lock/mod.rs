//! One daemon an install root.
//!
//! The kernel's lock on `data/daemon.lock` decides; it ends with its process, however that ends, so nothing is ever left to
//! delete by hand. `data/` itself is locked too: deleting the lock file under a running daemon then lets no second one in.
//! What the file says is for people only.

mod identity;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_protocol::error::ErrorKind;
use rustix::fs::{FlockOperation, OFlags};

use crate::install_root::InstallRoot;

pub use identity::OwnerRecord;

/// How long a loser waits for the winner's record, and for a probe or a dying owner to let go. Well below the time a person
/// notices.
const SETTLE_LIMIT: Duration = Duration::from_millis(1_500);

/// How often it looks meanwhile.
const SETTLE_STEP: Duration = Duration::from_millis(15);

/// No record of ours is longer; a file that is holds something else.
const RECORD_LIMIT_BYTES: u64 = 4_096;

/// Who holds a root, as far as it can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A live process that left its record.
    Recorded(OwnerRecord),
    /// The kernel names the process, but its record is gone or overwritten.
    Process(i32),
    /// The lock is held, by whom is not visible from here (another container, or the file was deleted).
    Unknown,
}

impl Owner {
    /// Returns the process id, where known.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Recorded(record) => Some(record.pid),
            Self::Process(pid) => Some(*pid),
            Self::Unknown => None,
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Recorded(record) => write!(
                formatter,
                "pid {}, started {}, holdfast {}",
                record.pid,
                local_time(record.started_at_ms),
                record.version
            ),
            Self::Process(pid) => write!(formatter, "pid {pid} (its record in daemon.lock is not readable)"),
            Self::Unknown => formatter.write_str("a process that can't be seen from here"),
        }
    }
}

/// Shows an instant to the minute in the machine's time zone, as people compare it with their clock.
fn local_time(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(at) => jiff::tz::TimeZone::system().to_datetime(at).strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => "at an unknown time".to_owned(),
    }
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon owns the root.
    #[error("another daemon owns {root}: {owner}")]
    Held {
        /// The install root.
        root: PathDisplay,
        /// Who.
        owner: Owner,
    },
    /// The lock file is a link, a directory or something else that is no file. It is left as it is.
    #[error("`{path}` is not a plain file")]
    NotAFile {
        /// The lock file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A path that shows itself without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathDisplay(pub PathBuf);

impl std::fmt::Display for PathDisplay {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(formatter)
    }
}

impl LockError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Held { .. } => ErrorKind::Locked,
            Self::NotAFile { .. } => ErrorKind::Conflict,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
                io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
                _ => ErrorKind::Internal,
            },
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Held { .. } => "holdfast status · holdfast stop · or choose another root with --root".to_owned(),
            Self::NotAFile { path } => format!("move `{}` away; the daemon makes its own", path.display()),
            Self::Io { .. } => "check the permissions of the install root and the disk".to_owned(),
        }
    }
}

/// The right to be the daemon of a root. Ends when dropped, or with the process.
///
/// Both descriptors close at exec, so no child keeps the lock alive.
#[derive(Debug)]
pub struct InstanceLock {
    record: OwnerRecord,
    file: File,
    directory: File,
}

impl InstanceLock {
    /// Takes the lock of `root`, whose `data/` exists, and leaves the record of this process in it.
    ///
    /// Blocks the calling thread up to 1.5 s when the lock is held: for the owner's record, or for an owner that is just
    /// dying. `started_at_ms` is in UTC milliseconds.
    ///
    /// # Errors
    /// [`LockError::Held`] when another daemon runs; the others when the file can't be used.
    pub fn acquire(root: &InstallRoot, started_at_ms: i64, version: &str) -> Result<Self, LockError> {
        let path = root.lock_file();
        let failed = |action, path: &Path, source| LockError::Io { action, path: path.to_owned(), source };
        let record = OwnerRecord::of_this_process(started_at_ms, version)
            .map_err(|error| failed("read this process's identity under", Path::new("/proc"), error))?;
        let deadline = Instant::now() + SETTLE_LIMIT;
        loop {
            let file = open_lock_file(&path)?;
            if try_lock(&file, FlockOperation::NonBlockingLockExclusive, &path)?
                && let Some(directory) = lock_directory(&root.data_dir())?
            {
                let held = file.metadata().map_err(|error| failed("look at", &path, error))?;
                // Deleted or replaced between open and lock: what we hold is not what others will open.
                if !std::fs::symlink_metadata(&path).is_ok_and(|named| named.ino() == held.ino()) {
                    continue;
                }
                let lock = Self { record, file, directory };
                lock.write_record(&path)?;
                return Ok(lock);
            }
            let owner = read_owner(&file);
            if matches!(owner, Owner::Recorded(_)) || Instant::now() >= deadline {
                return Err(LockError::Held { root: PathDisplay(root.path().to_owned()), owner });
            }
            thread::sleep(SETTLE_STEP);
        }
    }

    /// Returns what the lock file says about this process.
    pub fn record(&self) -> &OwnerRecord {
        &self.record
    }

    /// Replaces the file's content. Not synced: it means nothing after the process, let alone after a power cut.
    fn write_record(&self, path: &Path) -> Result<(), LockError> {
        let failed = |action, source| LockError::Io { action, path: path.to_owned(), source };
        let mut text = serde_json::to_vec(&self.record)
            .map_err(|error| failed("write the owner into", io::Error::other(error)))?;
        text.push(b'\n');
        self.file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| failed("make private", error))?;
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(&text, 0))
            .map_err(|error| failed("write the owner into", error))
    }
}

impl Drop for InstanceLock {
    /// Empties the record, then unlocks. Unlocking by hand also frees the copy of the descriptor that a child has between
    /// fork and exec. Nothing here may fail in a way that matters: the kernel unlocks at the latest when the process ends.
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
        let _ = rustix::fs::flock(&self.directory, FlockOperation::Unlock);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Says who owns `root` now, or nothing when no daemon runs. For commands; changes nothing.
///
/// # Errors
/// [`LockError::NotAFile`] and [`LockError::Io`]. A root without lock file has no owner.
pub fn owner(root: &InstallRoot) -> Result<Option<Owner>, LockError> {
    let path = root.lock_file();
    let opened = OpenOptions::new().read(true).custom_flags(lock_flags()).open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(open_error(&path, error)),
    };
    refuse_special_file(&file, &path)?;
    let owner = read_owner(&file);
    if matches!(owner, Owner::Recorded(_)) {
        return Ok(Some(owner));
    }
    // No live record. A shared lock for an instant shows whether an owner exists; a daemon that starts in that very
    // instant tries again.
    match try_lock(&file, FlockOperation::NonBlockingLockShared, &path)? {
        true => Ok(None),
        false => Ok(Some(owner)),
    }
}

/// Flags beyond read and write: never through a link, never waiting for a pipe's other end, never into a child.
fn lock_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32
}

/// Opens the lock file, making it 0600 when it is missing.
fn open_lock_file(path: &Path) -> Result<File, LockError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(lock_flags())
        .open(path)
        .map_err(|error| open_error(path, error))?;
    refuse_special_file(&file, path)?;
    Ok(file)
}

/// Tells "is no file" from other reasons why an open failed.
fn open_error(path: &Path, error: io::Error) -> LockError {
    match error.kind() {
        io::ErrorKind::IsADirectory => LockError::NotAFile { path: path.to_owned() },
        _ if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) => {
            LockError::NotAFile { path: path.to_owned() }
        }
        _ => LockError::Io { action: "open", path: path.to_owned(), source: error },
    }
}

/// Refuses pipes, devices and the like.
fn refuse_special_file(file: &File, path: &Path) -> Result<(), LockError> {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(LockError::NotAFile { path: path.to_owned() }),
        Err(source) => Err(LockError::Io { action: "look at", path: path.to_owned(), source }),
    }
}

/// Locks `data/` itself, or returns nothing when another process has.
fn lock_directory(path: &Path) -> Result<Option<File>, LockError> {
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32)
        .open(path)
        .map_err(|source| LockError::Io { action: "open", path: path.to_owned(), source })?;
    Ok(try_lock(&directory, FlockOperation::NonBlockingLockExclusive, path)?.then_some(directory))
}

/// Tries to lock without waiting.
fn try_lock(file: &File, operation: FlockOperation, path: &Path) -> Result<bool, LockError> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(LockError::Io { action: "lock", path: path.to_owned(), source: error.into() }),
    }
}

/// Reads who holds the lock: the record if it names a live process, else what the kernel's table says.
fn read_owner(file: &File) -> Owner {
    let mut text = Vec::new();
    let read = { file }.take(RECORD_LIMIT_BYTES).read_to_end(&mut text);
    if read.is_ok()
        && let Ok(record) = serde_json::from_slice::<OwnerRecord>(&text)
        && record.lives()
    {
        return Owner::Recorded(record);
    }
    let inode = file.metadata().map(|metadata| metadata.ino());
    let table = std::fs::read_to_string("/proc/locks");
    match (inode, table) {
        (Ok(inode), Ok(table)) => identity::flock_holder(&table, inode).map_or(Owner::Unknown, Owner::Process),
        _ => Owner::Unknown,
    }
}

#[cfg(test)]
mod tests;
