//! One dispatcher for the socket and for HTTP: from a method's name to its handler, and back to one answer.
//!
//! A handler of the hot path gets a [`Reply`] and hands it to an actor: no task and no oneshot a request. What it
//! answers is written as a line where it is answered, and goes straight into the connection's queue.

mod caller;
mod frame;
mod responder;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::jsonrpc::parse_params;
use holdfast_protocol::method::{Method, MethodDescriptor, openrpc_document};
use holdfast_protocol::methods;
use holdfast_protocol::methods::rpc::Discover;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::AbortHandle;
use tracing::Instrument;

pub use caller::{Call, Caller, Origin};
pub use responder::Responder;

use crate::reply::Reply;

/// Takes the params, answers through the responder, and returns what cancels the work if that is a task of its own.
type Handler = Box<dyn Fn(&Call, Option<&RawValue>, Responder) -> Option<AbortHandle> + Send + Sync>;

/// Collects handlers; see [`Router`].
pub struct RouterBuilder {
    handlers: HashMap<&'static str, (MethodDescriptor, Handler)>,
}

/// The handlers of one daemon. Does not change once built; what it reaches by address does.
pub struct Router {
    handlers: HashMap<&'static str, (MethodDescriptor, Handler)>,
    openrpc: Value,
}

impl RouterBuilder {
    /// Makes one without handlers.
    pub fn new() -> Self {
        Self { handlers: HashMap::new() }
    }

    /// Registers a handler that only hands the request on (`address.post`). It runs on the connection's task: it must
    /// neither block nor compute for long. A second handler of a method takes the place of the first.
    pub fn on<M: Method>(
        &mut self,
        handler: impl Fn(&Call, M::Params, Reply<Result<M::Result, WireError>>) + Send + Sync + 'static,
    ) -> &mut Self {
        self.register::<M>(Box::new(move |call, params, responder| {
            match parse_params::<M::Params>(params) {
                Ok(params) => handler(call, params, responder.into_reply()),
                Err(error) => responder.error(&error),
            }
            None
        }))
    }

    /// Registers a handler that awaits. It runs as a task of its own, which ends early only when the request is
    /// cancelled; a client that goes away does not end it.
    pub fn on_async<M, F, Work>(&mut self, handler: F) -> &mut Self
    where
        M: Method,
        F: Fn(Call, M::Params) -> Work + Send + Sync + 'static,
        Work: Future<Output = Result<M::Result, WireError>> + Send + 'static,
    {
        self.register::<M>(Box::new(move |call, params, responder| {
            let params = match parse_params::<M::Params>(params) {
                Ok(params) => params,
                Err(error) => {
                    responder.error(&error);
                    return None;
                }
            };
            let work = handler(call.clone(), params);
            let task = async move {
                // Held across the work, so that a panic in it answers by dropping the responder.
                let responder = responder;
                match work.await {
                    Ok(result) => responder.result(&result),
                    Err(error) => responder.error(&error),
                }
            };
            Some(tokio::spawn(task.in_current_span()).abort_handle())
        }))
    }

    /// Ends the registration. `version` is the program's, for the OpenRPC document.
    pub fn build(mut self, version: &str) -> Router {
        let mut described = methods::of_connection();
        described.extend(self.handlers.values().map(|(descriptor, _)| *descriptor));
        described.push(MethodDescriptor::of::<Discover>());
        let openrpc = openrpc_document(&described, version);
        let document = openrpc.clone();
        self.on::<Discover>(move |_call, _params, reply| reply.send(Ok(document.clone())));
        Router { handlers: self.handlers, openrpc }
    }

    fn register<M: Method>(&mut self, handler: Handler) -> &mut Self {
        self.handlers.insert(M::NAME, (MethodDescriptor::of::<M>(), handler));
        self
    }
}

impl Default for RouterBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl Router {
    /// Returns the OpenRPC document of the registered methods and of those that the connection answers.
    pub fn discover(&self) -> &Value {
        &self.openrpc
    }

    /// Returns the declared methods that have no handler. Empty in a complete daemon.
    pub fn missing(&self) -> Vec<&'static str> {
        let declared = methods::of_router();
        declared.iter().map(|method| method.name).filter(|name| !self.handlers.contains_key(name)).collect()
    }

    /// Answers one request through `responder`, exactly once, now or later; a panic of the handler is answered as an
    /// internal error. Returns what cancels the work, where it is a task of its own.
    pub fn dispatch(
        &self,
        call: &Call,
        method: &str,
        params: Option<&RawValue>,
        responder: Responder,
    ) -> Option<AbortHandle> {
        let Some((_, handler)) = self.handlers.get(method) else {
            responder.error(&unknown_method(method));
            return None;
        };
        let span = tracing::debug_span!("rpc", method);
        let _entered = span.enter();
        // Nothing of ours is left half changed: the handler only borrows, and its responder answers when dropped.
        let outcome = catch_unwind(AssertUnwindSafe(|| responder::in_handler(|| handler(call, params, responder))));
        outcome.unwrap_or_else(|_panic| {
            tracing::error!(method, "handler panicked");
            None
        })
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Router").field("methods", &self.handlers.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RouterBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RouterBuilder").field("methods", &self.handlers.len()).finish_non_exhaustive()
    }
}

fn unknown_method(method: &str) -> WireError {
    // A name as long as a frame must not come back twice in its own error.
    let shown: String = method.chars().take(128).collect();
    WireError::new(ErrorKind::MethodNotFound, format!("no method `{shown}`"))
        .with_remedy("`rpc/discover` returns all methods")
}
