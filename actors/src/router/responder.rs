//! The duty to answer one request of a connection.

use std::cell::Cell;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::jsonrpc::{OwnedId, write_error, write_result};
use serde::Serialize;

use crate::address::CallError;
use crate::channel::{Frame, FrameSender};
use crate::reply::Reply;

thread_local! {
    /// Whether this thread is inside a handler. Tells a handler that panics (a fault of ours) from an actor that panics
    /// with the reply in its hand (interrupted, outcome unknown): both drop the reply while unwinding.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Runs a handler; unwinds with it.
pub(super) fn in_handler<T>(handler: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_HANDLER.set(self.0);
        }
    }
    let _leave = Leave(IN_HANDLER.replace(true));
    handler()
}

/// Answers one request, exactly once: dropped unanswered, it answers with an error.
///
/// A notification has one as well, without id: it writes nothing, but tells the connection that the work is done.
#[derive(Debug)]
pub struct Responder {
    id: Option<OwnedId>,
    ticket: u64,
    outgoing: Option<FrameSender>,
}

impl Responder {
    /// Makes the responder of the request `id`, which the connection counts as `ticket`; `None` for a notification.
    pub fn new(id: Option<OwnedId>, ticket: u64, outgoing: FrameSender) -> Self {
        Self { id, ticket, outgoing: Some(outgoing) }
    }

    /// Answers with a result.
    pub fn result(mut self, result: &(impl Serialize + ?Sized)) {
        self.push(|line, id| {
            if let Err(error) = write_result(line, id, result) {
                tracing::error!(%error, "failed to write a result as JSON");
            }
        });
    }

    /// Answers with an error.
    pub fn error(mut self, error: &WireError) {
        self.push(|line, id| write_error(line, id, error));
    }

    /// Turns the duty into a reply that an actor can hold.
    pub fn into_reply<T: Serialize + 'static>(self) -> Reply<Result<T, WireError>> {
        Reply::sink(move |answer: Result<Result<T, WireError>, CallError>| match answer {
            Ok(Ok(result)) => self.result(&result),
            Ok(Err(error)) => self.error(&error),
            // Left to `drop`, which tells the two cases apart.
            Err(CallError::Interrupted) if IN_HANDLER.get() => drop(self),
            Err(error) => self.error(&error.into()),
        })
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>, &OwnedId)) {
        let Some(outgoing) = self.outgoing.take() else { return };
        let mut data = Vec::new();
        if let Some(id) = &self.id {
            write(&mut data, id);
        }
        // A connection that is gone needs no answer.
        let _gone = outgoing.push_now(Frame { data, ticket: Some(self.ticket) });
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let error = if std::thread::panicking() {
            WireError::new(ErrorKind::Internal, "the handler of the request panicked; the log has the details")
        } else {
            CallError::Interrupted.into()
        };
        self.push(|line, id| write_error(line, id, &error));
    }
}
