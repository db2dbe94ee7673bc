//! What ControlPlane can fail with.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::kit::{OpenError, StoreError};

use crate::address::{CallError, Down};

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

/// Why the surface is down when its database can't be opened.
pub(super) fn open_down(error: OpenError) -> Down {
    Down { kind: error.kind(), reason: chain(&error), remedy: error.remedy() }
}

/// Why the surface is down when its store failed at the start.
pub(super) fn store_down(error: &StoreError) -> Down {
    let remedy = error.remedy().unwrap_or("see `holdfast logs --surface control-plane`, then `holdfast reload`");
    Down { kind: error.kind(), reason: chain(error), remedy: remedy.to_owned() }
}

/// Puts an error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
