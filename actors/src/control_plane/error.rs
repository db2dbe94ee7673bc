//! What ControlPlane can fail with.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::kit::StoreError;

use crate::address::CallError;

/// What ControlPlane can fail with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ControlPlaneError {
    /// It didn't answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration in force has never named the agent.
    #[error("no agent `{0}`")]
    UnknownAgent(AgentAlias),
}

impl From<ControlPlaneError> for WireError {
    fn from(error: ControlPlaneError) -> Self {
        match error {
            ControlPlaneError::Call(error) => error.into(),
            ControlPlaneError::Store(error) => error.to_wire(),
            ControlPlaneError::UnknownAgent(_) => {
                WireError::new(ErrorKind::NotFound, error.to_string()).with_remedy("holdfast agent list")
            }
        }
    }
}
