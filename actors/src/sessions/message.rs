//! What the Sessions can be asked or told.

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{
    AppendParams, AppendResult, CloseParams, CloseResult, EventsParams, EventsResult, ListParams, ListResult,
    NewParams, NewResult, SessionDetail,
};

use super::error::SessionsError;
use crate::reply::Reply;

/// What the Sessions can be asked or told. Requests carry a `reply`; facts do not.
pub enum SessionsMessage {
    /// Makes a session, or finds the current one of its key; answered once it is on disk.
    New {
        /// As on the wire.
        params: NewParams,
        /// Which session, and whether it is new.
        reply: Reply<Result<NewResult, SessionsError>>,
    },
    /// Appends events to a session, all or none; answered once they are on disk.
    Append {
        /// As on the wire.
        params: AppendParams,
        /// The positions of the events.
        reply: Reply<Result<AppendResult, SessionsError>>,
    },
    /// Closes a session; answered once it is on disk.
    Close {
        /// As on the wire.
        params: CloseParams,
        /// Whether it was open until now.
        reply: Reply<Result<CloseResult, SessionsError>>,
    },
    /// Commit what is pending. Sent by the actor to itself after the first pending write.
    Flush,
    /// The commit that was on its way has ended.
    Committed {
        /// Which, counted by this incarnation.
        number: u64,
    },
    /// Returns a page of a session's events.
    Events {
        /// As on the wire.
        params: EventsParams,
        /// The page.
        reply: Reply<Result<EventsResult, SessionsError>>,
    },
    /// Returns the last events of a session, in order; `more` says whether there are older ones.
    Tail {
        /// Of which session.
        session_id: SessionId,
        /// How many at most.
        limit: u32,
        /// The events.
        reply: Reply<Result<EventsResult, SessionsError>>,
    },
    /// Returns a page of sessions, the last changed first.
    List {
        /// As on the wire.
        params: ListParams,
        /// The page.
        reply: Reply<Result<ListResult, SessionsError>>,
    },
    /// Returns one session.
    Show {
        /// Which.
        session_id: SessionId,
        /// The session.
        reply: Reply<Result<SessionDetail, SessionsError>>,
    },
    /// A check or a read on another task has found the file damaged.
    DamageFound {
        /// What is wrong.
        problem: String,
    },
}
