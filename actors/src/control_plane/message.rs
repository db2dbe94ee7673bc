//! What ControlPlane can be asked or told.

use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::control_plane::AgentInitialize;
use holdfast_stores::kit::StoreError;

use super::error::ControlPlaneError;
use crate::reply::Reply;

/// What ControlPlane can be asked or told. Requests carry a `reply`.
pub enum ControlPlaneMessage {
    /// Notes that an agent's process was started now; answered once it is on disk.
    AgentStarted {
        /// Which agent.
        alias: AgentAlias,
        /// The answer.
        reply: Reply<Result<(), ControlPlaneError>>,
    },
    /// Keeps what an agent answered to `initialize`; answered once it is on disk.
    InitializePut {
        /// The answer to keep.
        answer: Box<AgentInitialize>,
        /// The answer.
        reply: Reply<Result<(), ControlPlaneError>>,
    },
    /// The check of the file has ended. Sent by the surface to itself.
    Checked {
        /// What is wrong with the file; nothing, hopefully.
        outcome: Result<Vec<String>, StoreError>,
    },
}
