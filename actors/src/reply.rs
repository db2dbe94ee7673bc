//! Where an answer goes: a oneshot for callers in this process, or a function for the socket's hot path.

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::address::CallError;

/// The duty to answer one request, with its permit in the address's bound.
///
/// A reply that is dropped unanswered tells the caller [`CallError::Interrupted`], so no request is ever left waiting.
pub struct Reply<T> {
    sink: Option<Sink<T>>,
    permit: Option<OwnedSemaphorePermit>,
}

enum Sink<T> {
    Oneshot(oneshot::Sender<T>),
    Function(Box<dyn FnOnce(Result<T, CallError>) + Send>),
}

impl<T> Reply<T> {
    /// Makes a reply and the receiver of its answer; the receiver fails when the reply is dropped unanswered.
    pub fn oneshot() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sink: Some(Sink::Oneshot(sender)), permit: None }, receiver)
    }

    /// Makes a reply that hands the answer to `sink`, exactly once, on the answering actor's task: keep it short.
    pub fn sink(sink: impl FnOnce(Result<T, CallError>) + Send + 'static) -> Self {
        Self { sink: Some(Sink::Function(Box::new(sink))), permit: None }
    }

    /// Answers. A caller that has gone away is no error.
    pub fn send(mut self, value: T) {
        match self.sink.take() {
            Some(Sink::Oneshot(sender)) => drop(sender.send(value)),
            Some(Sink::Function(sink)) => sink(Ok(value)),
            None => {}
        }
    }

    /// Answers that the call itself failed. In-process callers learn it from the address instead.
    pub fn fail(mut self, error: CallError) {
        if let Some(Sink::Function(sink)) = self.sink.take() {
            sink(Err(error));
        }
    }

    /// Turns the answer on its way, so that a layer can speak its own type.
    pub fn map<U: 'static>(mut self, turn: impl FnOnce(U) -> T + Send + 'static) -> Reply<U>
    where
        T: Send + 'static,
    {
        let permit = self.permit.take();
        let sink = self.sink.take().map(|sink| match sink {
            Sink::Oneshot(sender) => Sink::Function(Box::new(move |answer: Result<U, CallError>| {
                if let Ok(value) = answer {
                    drop(sender.send(turn(value)));
                }
            }) as Box<dyn FnOnce(Result<U, CallError>) + Send>),
            Sink::Function(sink) => Sink::Function(Box::new(move |answer| sink(answer.map(turn)))),
        });
        Reply { sink, permit }
    }

    pub(crate) fn hold(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(Sink::Function(sink)) = self.sink.take() {
            sink(Err(CallError::Interrupted));
        }
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reply").field("answered", &self.sink.is_none()).finish()
    }
}
