//! Reading chat sessions: through their owner, or from its file while no owner runs.

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{EventsParams, EventsResult, ListParams, ListResult, SessionDetail};
use holdfast_stores::kit::CursorKey;
use holdfast_stores::sessions::SessionReads;

use super::error::SessionsError;
use super::handle::SessionsHandle;
use super::read;
use crate::address::{CallError, Down};

/// Reads chat sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum ChatReads {
    /// Through the owner: committed rows, while the owner writes.
    Owner(SessionsHandle),
    /// From the file, which nobody owns now.
    AtRest {
        /// `None`: there is no file, so there are no sessions.
        reads: Result<Option<SessionReads>, Down>,
        /// Makes and reads cursors.
        cursors: CursorKey,
    },
}

impl ChatReads {
    pub(crate) async fn list(&self, params: ListParams) -> Result<ListResult, SessionsError> {
        match self {
            Self::Owner(handle) => handle.list(params).await,
            Self::AtRest { reads, cursors } => match at_rest(reads)? {
                Some(reads) => read::list_page(reads, cursors, params).await,
                None => Ok(ListResult { sessions: Vec::new(), next_cursor: None }),
            },
        }
    }

    pub(crate) async fn show(&self, session_id: SessionId) -> Result<SessionDetail, SessionsError> {
        match self {
            Self::Owner(handle) => handle.show(session_id).await,
            Self::AtRest { reads, .. } => match at_rest(reads)? {
                Some(reads) => read::one(reads, session_id).await,
                None => Err(SessionsError::NotFound { session_id }),
            },
        }
    }

    pub(crate) async fn events(&self, params: EventsParams) -> Result<EventsResult, SessionsError> {
        match self {
            Self::Owner(handle) => handle.events(params).await,
            Self::AtRest { reads, .. } => match at_rest(reads)? {
                Some(reads) => read::events_page(reads, params).await,
                None => Err(SessionsError::NotFound { session_id: params.session_id }),
            },
        }
    }
}

fn at_rest(reads: &Result<Option<SessionReads>, Down>) -> Result<Option<&SessionReads>, SessionsError> {
    match reads {
        Ok(reads) => Ok(reads.as_ref()),
        Err(down) => Err(CallError::Down(down.clone()).into()),
    }
}
