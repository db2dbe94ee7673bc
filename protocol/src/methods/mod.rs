//! Every method of the socket: its params, its result, its declaration. One file a surface.
//!
//! Instants are UTC milliseconds in fields that end in `_ms`; where people read the answer, the same instant stands
//! beside it as RFC 3339 text in UTC (`2026-03-08T07:00:00Z`). Optional fields are left out rather than null.

pub mod acp;
pub mod agent;
pub mod daemon;
pub mod lease;
pub mod log;
pub mod rpc;
pub mod session;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::MethodDescriptor;

/// Params or a result without fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Empty {}

/// Returns every declared method, in the order of the reference pages.
///
/// `initialize` and `acp/attach` are answered by the connection itself, all others by the router.
pub fn all() -> Vec<MethodDescriptor> {
    let mut methods = of_connection();
    methods.extend(of_router());
    methods
}

/// Returns the methods that only a connection can answer, since they change what it is.
pub fn of_connection() -> Vec<MethodDescriptor> {
    vec![MethodDescriptor::of::<rpc::Initialize>(), MethodDescriptor::of::<acp::Attach>()]
}

/// Returns the methods that the router answers, over the socket and over HTTP alike.
pub fn of_router() -> Vec<MethodDescriptor> {
    vec![
        MethodDescriptor::of::<rpc::Discover>(),
        MethodDescriptor::of::<daemon::Status>(),
        MethodDescriptor::of::<daemon::Reload>(),
        MethodDescriptor::of::<daemon::Shutdown>(),
        MethodDescriptor::of::<daemon::Ping>(),
        MethodDescriptor::of::<session::New>(),
        MethodDescriptor::of::<session::Append>(),
        MethodDescriptor::of::<session::Events>(),
        MethodDescriptor::of::<session::List>(),
        MethodDescriptor::of::<session::Show>(),
        MethodDescriptor::of::<session::Close>(),
        MethodDescriptor::of::<agent::List>(),
        MethodDescriptor::of::<lease::List>(),
        MethodDescriptor::of::<lease::Show>(),
        MethodDescriptor::of::<lease::Verify>(),
        MethodDescriptor::of::<lease::Reap>(),
        MethodDescriptor::of::<log::Query>(),
    ]
}

#[cfg(test)]
mod tests;
