//! What the store of sessions refuses.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::SessionId;

/// A request that contradicts what is stored. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such session.
    #[error("there is no session {session_id}")]
    NotFound {
        /// The id asked for.
        session_id: SessionId,
    },
    /// The session takes no more events.
    #[error("session {session_id} is closed")]
    Closed {
        /// The session.
        session_id: SessionId,
    },
    /// The key of the request has been used for another request.
    #[error("the idempotency key `{key}` has been used for another request")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// The key of an event has been used for another event of the session.
    #[error("the idempotency key `{key}` of event {index} has been used for another event")]
    EventKeyReused {
        /// The key.
        key: String,
        /// The event's place in the request, from 0.
        index: usize,
    },
}

impl Refusal {
    /// Returns the stable kind for the wire.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Closed { .. } | Self::KeyReused { .. } | Self::EventKeyReused { .. } => ErrorKind::Conflict,
        }
    }

    /// Turns the refusal into its form on the wire.
    pub fn to_wire(&self) -> WireError {
        let error = WireError::new(self.kind(), self.to_string());
        match self {
            Self::NotFound { .. } => error.with_remedy("`holdfast session list` shows what there is"),
            Self::Closed { .. } => error.with_remedy("make a new session"),
            Self::KeyReused { .. } => error.with_remedy("use a new key for a new request"),
            Self::EventKeyReused { index, .. } => {
                error.with_remedy("use a new key for a new event").at_path(format!("events[{index}].idempotency_key"))
            }
        }
    }
}
