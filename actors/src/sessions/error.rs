//! What the Sessions can answer instead of a result.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::SessionId;
use holdfast_stores::kit::{CursorError, StoreError};
use holdfast_stores::sessions::Refusal;

use crate::address::CallError;

/// What the Sessions can answer instead of a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SessionsError {
    /// The request is not one that could ever succeed.
    #[error("{problem}")]
    Invalid {
        /// Where in the params.
        path: String,
        /// What is wrong there.
        problem: String,
    },
    /// A limit on size was passed.
    #[error("{problem}")]
    TooLarge {
        /// Where in the params.
        path: String,
        /// Which limit, and by how much.
        problem: String,
    },
    /// There is no such session.
    #[error("there is no session {session_id}")]
    NotFound {
        /// The id asked for.
        session_id: SessionId,
    },
    /// The request contradicts what is stored.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The cursor leads nowhere.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody could be asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl SessionsError {
    /// Returns the stable kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::InvalidParams,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Refused(refusal) => refusal.kind(),
            Self::Cursor(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Call(error) => WireError::from(error.clone()).kind,
        }
    }
}

impl From<SessionsError> for WireError {
    fn from(error: SessionsError) -> Self {
        let kind = error.kind();
        match error {
            SessionsError::Invalid { path, problem } | SessionsError::TooLarge { path, problem } => {
                WireError::new(kind, problem).at_path(path)
            }
            SessionsError::NotFound { session_id } => Refusal::NotFound { session_id }.to_wire(),
            SessionsError::Refused(refusal) => refusal.to_wire(),
            SessionsError::Cursor(error) => error.to_wire().at_path("cursor"),
            SessionsError::Store(error) => error.to_wire(),
            SessionsError::Call(error) => error.into(),
        }
    }
}

/// Says whether the file itself is at fault.
pub(super) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. })
}
