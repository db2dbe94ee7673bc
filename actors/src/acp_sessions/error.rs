//! What the owner of the ACP sessions can answer instead of a result.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::SessionId;
use holdfast_stores::kit::StoreError;

use crate::address::CallError;

/// An error of [`super::AcpSessionsHandle`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum AcpSessionsError {
    /// The call brought no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No such session.
    #[error("no ACP session `{0}`")]
    NotFound(SessionId),
    /// Another session of the agent has that name.
    #[error("agent `{agent}` already has a session named `{key}`")]
    KeyTaken {
        /// The agent.
        agent: String,
        /// The name.
        key: String,
    },
}

impl AcpSessionsError {
    /// Returns the stable kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Call(error) => WireError::from(error.clone()).kind,
            Self::Store(error) => error.kind(),
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::KeyTaken { .. } => ErrorKind::Conflict,
        }
    }
}

impl From<AcpSessionsError> for WireError {
    fn from(error: AcpSessionsError) -> Self {
        match error {
            AcpSessionsError::Call(error) => error.into(),
            AcpSessionsError::Store(error) => error.to_wire(),
            AcpSessionsError::NotFound(_) => {
                WireError::new(ErrorKind::NotFound, error.to_string()).with_remedy("`holdfast session list` shows all")
            }
            AcpSessionsError::KeyTaken { .. } => {
                WireError::new(ErrorKind::Conflict, error.to_string()).with_remedy("resume it, or choose another name")
            }
        }
    }
}
