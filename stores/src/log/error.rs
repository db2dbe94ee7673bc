//! What the log can fail with.

use std::io;
use std::path::PathBuf;

use holdfast_protocol::error::ErrorKind;

/// What the log can fail with.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file system refused. What was in hand may be stored in part; the next write starts on a fresh line.
    #[error("failed to {action} `{}`", path.display())]
    Io {
        /// What was being done, as an infinitive phrase ("append to").
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A cursor that no page of this log gave out.
    #[error("`{text}` is not a log cursor")]
    InvalidCursor {
        /// The text as given.
        text: String,
    },
}

impl LogError {
    /// Makes an `map_err` argument that names the action and the path.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Returns the stable kind for the wire.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => ErrorKind::ReadOnly,
                // The rest of an open-ended list of the operating system's reasons.
                _ => ErrorKind::Internal,
            },
            Self::InvalidCursor { .. } => ErrorKind::InvalidParams,
        }
    }
}
