//! Typed calls to the Sessions for callers in this process.

use std::time::Duration;

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{
    AppendParams, AppendResult, CloseParams, CloseResult, EventsParams, EventsResult, ListParams, ListResult,
    NewParams, NewResult, SessionDetail,
};

use super::error::SessionsError;
use super::message::SessionsMessage;
use crate::address::Address;
use crate::reply::Reply;

/// How long a call may take, a wait for a restart and for another process's lock included.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Typed calls to the Sessions. Cheap to clone; outlives restarts.
#[derive(Debug, Clone)]
pub struct SessionsHandle {
    address: Address<SessionsMessage>,
}

impl SessionsHandle {
    /// Makes a handle on the Sessions at `address`.
    pub fn new(address: Address<SessionsMessage>) -> Self {
        Self { address }
    }

    /// Returns the address, for the hot path.
    pub fn address(&self) -> &Address<SessionsMessage> {
        &self.address
    }

    /// Makes a session, or finds the current one of its key; on disk when this returns.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn create(&self, params: NewParams) -> Result<NewResult, SessionsError> {
        self.call(|reply| SessionsMessage::New { params, reply }).await
    }

    /// Appends events, all or none; on disk when this returns. Waits for a place in the queue instead of being told
    /// `Busy`.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn append(&self, params: AppendParams) -> Result<AppendResult, SessionsError> {
        self.call(|reply| SessionsMessage::Append { params, reply }).await
    }

    /// Closes a session; on disk when this returns.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn close(&self, params: CloseParams) -> Result<CloseResult, SessionsError> {
        self.call(|reply| SessionsMessage::Close { params, reply }).await
    }

    /// Returns a page of a session's events.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn events(&self, params: EventsParams) -> Result<EventsResult, SessionsError> {
        self.call(|reply| SessionsMessage::Events { params, reply }).await
    }

    /// Returns the last `limit` events of a session, in order.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn tail(&self, session_id: SessionId, limit: u32) -> Result<EventsResult, SessionsError> {
        self.call(|reply| SessionsMessage::Tail { session_id, limit, reply }).await
    }

    /// Returns a page of sessions, the last changed first.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn list(&self, params: ListParams) -> Result<ListResult, SessionsError> {
        self.call(|reply| SessionsMessage::List { params, reply }).await
    }

    /// Returns one session.
    ///
    /// # Errors
    /// [`SessionsError`].
    pub async fn show(&self, session_id: SessionId) -> Result<SessionDetail, SessionsError> {
        self.call(|reply| SessionsMessage::Show { session_id, reply }).await
    }

    async fn call<T>(
        &self,
        build: impl FnOnce(Reply<Result<T, SessionsError>>) -> SessionsMessage,
    ) -> Result<T, SessionsError> {
        self.address.call_waiting(CALL_LIMIT, build).await?
    }
}
