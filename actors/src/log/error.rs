//! What the Log can answer instead of a result.

use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_stores::log::LogError;

use super::levels::InvalidLevels;

/// What the Log can answer instead of a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogsError {
    /// The files refused.
    #[error(transparent)]
    Store(Arc<LogError>),
    /// The levels in the configuration are none.
    #[error(transparent)]
    Levels(#[from] InvalidLevels),
    /// The reading task died.
    #[error("the log could not be read: {reason}")]
    Reader {
        /// How it died.
        reason: String,
    },
}

impl From<LogError> for LogsError {
    fn from(error: LogError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl LogsError {
    /// Returns the stable kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Levels(_) => ErrorKind::ConfigInvalid,
            Self::Reader { .. } => ErrorKind::Internal,
        }
    }
}

impl From<LogsError> for WireError {
    fn from(error: LogsError) -> Self {
        let wire = WireError::new(error.kind(), error.to_string());
        match error {
            LogsError::Store(store) => match &*store {
                LogError::InvalidCursor { .. } => wire.with_remedy("take a cursor from a page of `log/query`"),
                LogError::Io { .. } => wire.with_remedy("check the disk and the permissions of `data/state`"),
            },
            LogsError::Levels(_) => wire.with_remedy("write levels as `info` or `info,target=debug`"),
            LogsError::Reader { .. } => wire,
        }
    }
}
