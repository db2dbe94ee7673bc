//! What a store can fail with, told apart by what the caller would do about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};

/// Which rule of the schema refused a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConstraintKind {
    /// A UNIQUE or PRIMARY KEY value is taken.
    Unique,
    /// The row that a foreign key names does not exist, or is still named by others.
    ForeignKey,
    /// A CHECK or a trigger refused the values.
    Check,
    /// A column that must have a value got none.
    NotNull,
    /// A STRICT column got a value of another type.
    DataType,
    /// A rule that this program does not know by name.
    Other,
}

/// What a statement can fail with.
///
/// Cheap to clone, since one failure may answer a whole batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process held the lock for longer than the busy timeout; nothing was done.
    #[error("failed to {action} in store `{store}`: another process holds the lock")]
    Locked {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The disk, or the limit set for the database, is full; nothing was stored.
    #[error("failed to {action} in store `{store}`: the storage is full")]
    Full {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The file or its file system can't be written.
    #[error("failed to {action} in store `{store}`: the storage can't be written")]
    ReadOnly {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A page of the file is not what was written.
    #[error("failed to {action} in store `{store}`: its file is damaged")]
    Damaged {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The storage failed in the middle: the change may or may not be there.
    #[error("failed to {action} in store `{store}`: the storage failed, the outcome is unknown")]
    OutcomeUnknown {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The schema refused the values; nothing was stored.
    #[error("failed to {action} in store `{store}`: the values break a rule of the schema")]
    Constraint {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// Which rule.
        kind: ConstraintKind,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A value or the whole statement is over a limit of SQLite; nothing was stored.
    #[error("failed to {action} in store `{store}`: a value is too large")]
    TooLarge {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The file or its directory may not be used by this process.
    #[error("failed to {action} in store `{store}`: its file can't be opened")]
    NoAccess {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// All readers were in use for longer than the busy timeout; nothing was read.
    #[error("failed to {action} in store `{store}`: all its readers are in use")]
    ReadersBusy {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
    },
    /// The store has been closed.
    #[error("failed to {action} in store `{store}`: it is closed")]
    Closed {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
    },
    /// A stored row does not have the form that this program writes.
    #[error("failed to {action} in store `{store}`: a stored row is not understood: {problem}")]
    Row {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// Which value, and what is wrong with it.
        problem: String,
    },
    /// Anything else SQLite or its driver refused: a fault of ours.
    #[error("failed to {action} in store `{store}`")]
    Query {
        /// The store's role.
        store: &'static str,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<sqlx::Error>,
    },
}

impl StoreError {
    /// What a person can do about a damaged file, which is always left as it is.
    pub const DAMAGED_REMEDY: &str = "the damaged file is kept as it is: put a good copy in its place, or move it and its \
         marker away to start with an empty store; then run `holdfast reload`";

    /// Tells a driver error apart by SQLite's extended result code.
    ///
    /// Source: sqlite.org/rescode.html. `SQLITE_IOERR_SHMSIZE` means, by that page, that the volume is out of space.
    pub fn classify(store: &'static str, action: &'static str, error: sqlx::Error) -> Self {
        let code = extended_code(&error);
        let source = Arc::new(error);
        let Some(code) = code else {
            return match source.as_ref() {
                sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => Self::OutcomeUnknown { store, action, source },
                sqlx::Error::PoolTimedOut => Self::ReadersBusy { store, action },
                sqlx::Error::PoolClosed => Self::Closed { store, action },
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                    Self::Row { store, action, problem: source.to_string() }
                }
                _ => Self::Query { store, action, source },
            };
        };
        match (code & 0xff, code) {
            (_, 4874) | (13, _) => Self::Full { store, action, source },
            // BUSY, LOCKED, PROTOCOL (the WAL locking protocol gave up).
            (5 | 6 | 15, _) => Self::Locked { store, action, source },
            (8, _) => Self::ReadOnly { store, action, source },
            // CORRUPT, NOTADB.
            (11 | 26, _) => Self::Damaged { store, action, source },
            (10, _) => Self::OutcomeUnknown { store, action, source },
            (19, _) => {
                let kind = match code {
                    1555 | 2067 | 2579 => ConstraintKind::Unique,
                    787 => ConstraintKind::ForeignKey,
                    275 | 1811 => ConstraintKind::Check,
                    1299 => ConstraintKind::NotNull,
                    3091 => ConstraintKind::DataType,
                    _ => ConstraintKind::Other,
                };
                Self::Constraint { store, action, kind, source }
            }
            // TOOBIG; MISMATCH is a rowid that is no integer.
            (18, _) => Self::TooLarge { store, action, source },
            (20, _) => Self::Constraint { store, action, kind: ConstraintKind::DataType, source },
            // PERM, CANTOPEN, AUTH.
            (3 | 14 | 23, _) => Self::NoAccess { store, action, source },
            _ => Self::Query { store, action, source },
        }
    }

    /// Returns the stable kind for the wire.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Locked { .. } => ErrorKind::Locked,
            Self::Full { .. } => ErrorKind::StorageFull,
            Self::ReadOnly { .. } | Self::NoAccess { .. } => ErrorKind::ReadOnly,
            Self::Damaged { .. } | Self::Row { .. } => ErrorKind::Damaged,
            Self::OutcomeUnknown { .. } => ErrorKind::Interrupted,
            Self::Constraint { .. } => ErrorKind::Conflict,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::ReadersBusy { .. } => ErrorKind::Busy,
            Self::Closed { .. } => ErrorKind::Stopping,
            Self::Query { .. } => ErrorKind::Internal,
        }
    }

    /// Returns what a person can do about it, where there is something.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Locked { .. } => Some("end the other program that uses the file, then repeat the request"),
            Self::Full { .. } => Some("free some space, then repeat the request"),
            Self::ReadOnly { .. } | Self::NoAccess { .. } => {
                Some("make the data directory writable for the daemon's user, then run `holdfast reload`")
            }
            Self::Damaged { .. } | Self::Row { .. } => Some(Self::DAMAGED_REMEDY),
            Self::OutcomeUnknown { .. } => {
                Some("check the disk, then repeat the request with the same idempotency key")
            }
            Self::ReadersBusy { .. } => Some("repeat the request a little later"),
            Self::Constraint { .. } | Self::TooLarge { .. } | Self::Closed { .. } | Self::Query { .. } => None,
        }
    }

    /// Says whether running a failed batch again one request at a time can save the others.
    pub fn concerns_one_request(&self) -> bool {
        match self {
            Self::Constraint { .. } | Self::TooLarge { .. } => true,
            Self::Locked { .. }
            | Self::Full { .. }
            | Self::ReadOnly { .. }
            | Self::Damaged { .. }
            | Self::OutcomeUnknown { .. }
            | Self::NoAccess { .. }
            | Self::ReadersBusy { .. }
            | Self::Closed { .. }
            | Self::Row { .. }
            | Self::Query { .. } => false,
        }
    }

    /// Says whether the storage itself refused, whatever the request was: the next one will be refused as well.
    pub fn is_storage_fault(&self) -> bool {
        match self {
            Self::Full { .. } | Self::ReadOnly { .. } | Self::OutcomeUnknown { .. } | Self::NoAccess { .. } => true,
            Self::Locked { .. }
            | Self::Damaged { .. }
            | Self::Constraint { .. }
            | Self::TooLarge { .. }
            | Self::ReadersBusy { .. }
            | Self::Closed { .. }
            | Self::Row { .. }
            | Self::Query { .. } => false,
        }
    }

    /// Says whether the request failed because a UNIQUE value is taken.
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Constraint { kind: ConstraintKind::Unique, .. })
    }

    /// Turns the error into its form on the wire. SQL and paths stay in the source, for the log.
    pub fn to_wire(&self) -> WireError {
        let error = WireError::new(self.kind(), self.to_string());
        match self.remedy() {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }
}

/// Returns SQLite's extended result code, if SQLite is where the error comes from.
fn extended_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Adds where and what to a driver error.
pub trait InStore<T> {
    /// Classifies the error; `action` completes "failed to ...".
    ///
    /// # Errors
    /// The classified error.
    fn in_store(self, store: &'static str, action: &'static str) -> Result<T, StoreError>;
}

impl<T> InStore<T> for Result<T, sqlx::Error> {
    fn in_store(self, store: &'static str, action: &'static str) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::classify(store, action, error))
    }
}

/// Why a store's file can't be opened. The surface is down; the others run.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is not what was written. It is left as it is.
    #[error("`{path}` is damaged: {problem}")]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// The file is gone or empty, although its marker says that it held rows.
    #[error("`{path}` is {state}, although it held rows before")]
    MissingButExpected {
        /// The database file.
        path: PathBuf,
        /// The marker beside it.
        marker: PathBuf,
        /// "missing" or "empty".
        state: &'static str,
    },
    /// A newer program wrote the file.
    #[error("`{path}` has schema {found}, this program knows {known}")]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// The schema version in the file.
        found: i64,
        /// The newest version this program knows.
        known: i64,
    },
    /// An older program wrote the file, and it is only to be read.
    #[error("`{path}` has schema {found} of an earlier version, this program reads {known}")]
    OlderSchema {
        /// The database file.
        path: PathBuf,
        /// The schema version in the file.
        found: i64,
        /// The version this program reads.
        known: i64,
    },
    /// A good database, but of something else.
    #[error("`{path}` is {found}, not the store `{expected}`")]
    WrongRole {
        /// The database file.
        path: PathBuf,
        /// What it is, as a noun.
        found: String,
        /// The role it should have.
        expected: &'static str,
    },
    /// A directory, socket or device lies where the file should be.
    #[error("`{path}` is {found}, not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there, as a noun.
        found: &'static str,
    },
    /// The file system refused.
    #[error("failed to {action} `{path}`")]
    FileSystem {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("failed to open `{path}`")]
    Store {
        /// The database file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: StoreError,
    },
    /// A migration could not be run; what it did is rolled back.
    #[error("failed to migrate `{path}` to schema {known}")]
    Migration {
        /// The database file.
        path: PathBuf,
        /// The version that was wanted.
        known: i64,
        /// The cause.
        #[source]
        source: Arc<sqlx::migrate::MigrateError>,
    },
}

impl OpenError {
    /// Returns the file that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Damaged { path, .. }
            | Self::MissingButExpected { path, .. }
            | Self::NewerSchema { path, .. }
            | Self::OlderSchema { path, .. }
            | Self::WrongRole { path, .. }
            | Self::NotAFile { path, .. }
            | Self::FileSystem { path, .. }
            | Self::Store { path, .. }
            | Self::Migration { path, .. } => path,
        }
    }

    /// Returns the stable kind for the wire.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Damaged { .. } | Self::MissingButExpected { .. } => ErrorKind::Damaged,
            Self::NewerSchema { .. } => ErrorKind::NewerSchema,
            Self::OlderSchema { .. } | Self::WrongRole { .. } | Self::NotAFile { .. } | Self::Migration { .. } => {
                ErrorKind::Down
            }
            Self::FileSystem { source, .. } => file_kind(source),
            Self::Store { source, .. } => source.kind(),
        }
    }

    /// Returns what a person can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Damaged { .. } => StoreError::DAMAGED_REMEDY.to_owned(),
            Self::MissingButExpected { marker, .. } => format!(
                "restore the file from a backup, or remove `{}` to start with an empty store; then run `holdfast reload`",
                marker.display()
            ),
            Self::NewerSchema { .. } => {
                "use the newer holdfast that wrote the file, or restore a backup made before the upgrade".to_owned()
            }
            Self::OlderSchema { .. } => {
                "start the daemon once (`holdfast daemon`): it brings the file up to date".to_owned()
            }
            Self::WrongRole { path, .. } => {
                format!("move `{}` away and put the right file there; then run `holdfast reload`", path.display())
            }
            Self::NotAFile { path, .. } => {
                format!("move `{}` away; then run `holdfast reload`", path.display())
            }
            Self::FileSystem { path, source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    "free some space, then run `holdfast reload`".to_owned()
                }
                _ => format!(
                    "make `{}` readable and writable for the daemon's user; then run `holdfast reload`",
                    path.display()
                ),
            },
            Self::Store { source, .. } => source
                .remedy()
                .map_or_else(|| "the log holds the cause; then run `holdfast reload`".to_owned(), str::to_owned),
            Self::Migration { .. } => "the file is as it was and the log holds the cause".to_owned(),
        }
    }
}

/// Returns the kind of a file-system error, for the wire.
pub fn file_kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        _ => ErrorKind::Down,
    }
}
