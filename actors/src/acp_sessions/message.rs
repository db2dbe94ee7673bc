//! The whole door of the owner of the ACP sessions.

use std::sync::Arc;

use holdfast_stores::acp_sessions::{AcpSessionRow, NewAcpSession, SessionChange};
use holdfast_stores::kit::StoreError;

use crate::acp_sessions::AcpSessionsError;
use crate::reply::Reply;

/// What the owner of the ACP sessions can be asked or told.
pub enum AcpSessionsMessage {
    /// Makes a session; answered once it is on disk.
    Create {
        /// The session.
        session: Box<NewAcpSession>,
        /// The row.
        reply: Reply<Result<AcpSessionRow, AcpSessionsError>>,
    },
    /// Stores what happened in one session; answered once it is on disk. Sent again, it changes nothing.
    Record {
        /// What happened.
        change: Arc<SessionChange>,
        /// The outcome.
        reply: Reply<Result<(), StoreError>>,
    },
    /// Commit what is pending. Sent by the actor to itself after the first pending write.
    Flush,
    /// The background check of the file has ended; sent by its task.
    Checked {
        /// What is wrong; empty means sound.
        problems: Result<Vec<String>, StoreError>,
    },
}
