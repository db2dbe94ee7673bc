//! The requests of one connection that are not answered yet, and the batches they belong to.

use std::collections::HashMap;

use holdfast_protocol::jsonrpc::{OwnedId, write_batch};
use tokio::task::AbortHandle;

/// A request's place in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchPlace {
    batch: u64,
    index: usize,
}

/// Requests in flight. Two with the same id are two: each has a ticket of its own.
#[derive(Debug)]
pub(super) struct Requests {
    in_flight_max: usize,
    next: u64,
    open: HashMap<u64, Request>,
    batches: HashMap<u64, Batch>,
}

#[derive(Debug)]
struct Request {
    /// `None` for a notification.
    id: Option<OwnedId>,
    cancel: Option<AbortHandle>,
    place: Option<BatchPlace>,
}

#[derive(Debug)]
struct Batch {
    answers: Vec<Vec<u8>>,
    missing: usize,
}

impl Requests {
    pub(super) fn new(in_flight_max: usize) -> Self {
        Self { in_flight_max, next: 0, open: HashMap::new(), batches: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Begins a batch of `size` messages; every one of them has to be answered, if only with nothing.
    pub(super) fn begin_batch(&mut self, size: usize) -> u64 {
        let batch = self.take_number();
        self.batches.insert(batch, Batch { answers: vec![Vec::new(); size], missing: size });
        batch
    }

    /// Returns the place of a message in a batch.
    pub(super) fn place(batch: u64, index: usize) -> BatchPlace {
        BatchPlace { batch, index }
    }

    /// Admits a request and returns its ticket; `None` when as many are in flight as may be.
    pub(super) fn admit(&mut self, id: Option<OwnedId>, place: Option<BatchPlace>) -> Option<u64> {
        if self.open.len() >= self.in_flight_max {
            return None;
        }
        let ticket = self.take_number();
        self.open.insert(ticket, Request { id, cancel: None, place });
        Some(ticket)
    }

    /// Keeps what cancels the work of a request.
    pub(super) fn cancellable(&mut self, ticket: u64, cancel: AbortHandle) {
        if let Some(request) = self.open.get_mut(&ticket) {
            request.cancel = Some(cancel);
        }
    }

    /// Settles a request with its answer, empty for none. Returns the line to write, if one is due: not for a request
    /// that was cancelled before, nor for a batch that still misses others.
    pub(super) fn settle(&mut self, ticket: u64, answer: Vec<u8>) -> Option<Vec<u8>> {
        let request = self.open.remove(&ticket)?;
        match request.place {
            Some(place) => self.settle_place(place, answer),
            None => (!answer.is_empty()).then_some(answer),
        }
    }

    /// Settles a message of a batch that never became a request.
    pub(super) fn settle_place(&mut self, place: BatchPlace, answer: Vec<u8>) -> Option<Vec<u8>> {
        let batch = self.batches.get_mut(&place.batch)?;
        batch.missing -= 1;
        batch.answers[place.index] = answer;
        if batch.missing > 0 {
            return None;
        }
        let batch = self.batches.remove(&place.batch)?;
        let mut line = Vec::new();
        write_batch(&mut line, batch.answers.iter().filter(|answer| !answer.is_empty()).map(Vec::as_slice));
        (!line.is_empty()).then_some(line)
    }

    /// Cancels the work of all requests with this id, and returns their tickets; they still have to be settled.
    pub(super) fn cancel(&mut self, id: &OwnedId) -> Vec<u64> {
        let with_id = self.open.iter().filter(|(_, request)| request.id.as_ref() == Some(id));
        with_id
            .map(|(ticket, request)| {
                if let Some(cancel) = &request.cancel {
                    cancel.abort();
                }
                *ticket
            })
            .collect()
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
