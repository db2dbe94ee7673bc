//! Writes that wait for the next commit, in the order in which they came.

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{AppendResult, CloseResult, NewResult};
use holdfast_stores::sessions::{Append, NewSession};

use super::error::SessionsError;
use crate::address::CallError;
use crate::reply::Reply;

/// Rows that may wait: past them a commit is made at once.
const ROWS_MAX: usize = 1_024;
/// Bytes of bodies that may wait.
const BYTES_MAX: usize = 8 * 1024 * 1024;

type NewReply = Reply<Result<NewResult, SessionsError>>;
type AppendReply = Reply<Result<AppendResult, SessionsError>>;
type CloseReply = Reply<Result<CloseResult, SessionsError>>;

/// Writes of one kind that came one after another: one transaction.
pub(super) enum Run {
    News(Vec<NewSession>, Vec<NewReply>),
    Appends(Vec<Append>, Vec<AppendReply>),
    Closes(Vec<SessionId>, Vec<CloseReply>),
}

/// Writes that wait. A client may send an append and a close without waiting for the first answer, so kinds are not
/// sorted: each run of one kind is a transaction of its own.
#[derive(Default)]
pub(super) struct Pending {
    runs: Vec<Run>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    pub(super) fn push_new(&mut self, request: NewSession, reply: NewReply) {
        self.rows += 1;
        match self.runs.last_mut() {
            Some(Run::News(requests, replies)) => {
                requests.push(request);
                replies.push(reply);
            }
            _ => self.runs.push(Run::News(vec![request], vec![reply])),
        }
    }

    pub(super) fn push_append(&mut self, request: Append, reply: AppendReply) {
        self.rows += request.events.len();
        self.bytes += request.events.iter().map(|event| event.body_json.len()).sum::<usize>();
        match self.runs.last_mut() {
            Some(Run::Appends(requests, replies)) => {
                requests.push(request);
                replies.push(reply);
            }
            _ => self.runs.push(Run::Appends(vec![request], vec![reply])),
        }
    }

    pub(super) fn push_close(&mut self, request: SessionId, reply: CloseReply) {
        self.rows += 1;
        match self.runs.last_mut() {
            Some(Run::Closes(requests, replies)) => {
                requests.push(request);
                replies.push(reply);
            }
            _ => self.runs.push(Run::Closes(vec![request], vec![reply])),
        }
    }

    /// Says whether no more should wait.
    pub(super) fn is_full(&self) -> bool {
        self.rows >= ROWS_MAX || self.bytes >= BYTES_MAX
    }

    /// Says whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes all that waits.
    pub(super) fn take(&mut self) -> Vec<Run> {
        (self.rows, self.bytes) = (0, 0);
        std::mem::take(&mut self.runs)
    }
}

impl Run {
    /// Answers that the surface went down before any of it was tried.
    pub(super) fn refuse(self, error: &CallError) {
        match self {
            Self::News(_, replies) => refuse_all(replies, error),
            Self::Appends(_, replies) => refuse_all(replies, error),
            Self::Closes(_, replies) => refuse_all(replies, error),
        }
    }
}

fn refuse_all<T>(replies: Vec<Reply<Result<T, SessionsError>>>, error: &CallError) {
    for reply in replies {
        reply.send(Err(SessionsError::Call(error.clone())));
    }
}
