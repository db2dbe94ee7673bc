//! The admin HTTP: a thin door beside the socket. It owns no state of the daemon; what it serves comes from the same
//! dispatcher as the socket ([`Dispatch`]) and from the health probe.
//!
//! | path | what |
//! | --- | --- |
//! | `GET /health` | 200 while the process answers; no detail, no access rules |
//! | `GET /ready` | 200 or 503; no detail, no access rules |
//! | `GET /metrics` | Prometheus text |
//! | `POST /api/rpc` | one JSON-RPC frame, any method of the socket |
//! | `GET /api/status`, `/api/health`, `/api/sessions` | reads as plain JSON |
//! | `POST /admin/reload`, `/admin/shutdown` | as the methods `daemon/reload`, `daemon/shutdown` |
//!
//! [`access`] says who may; [`listener`] how an address is bound and changed without a refused connection.

pub mod access;
mod config;
mod dispatch;
pub mod listener;
mod peer;
mod routes;
mod serve;
mod throttle;
mod token;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use futures_util::future::BoxFuture;

pub use config::GatewayConfig;
pub use dispatch::RouterDispatch;
pub use listener::{HttpListener, HttpState};
pub use serve::HttpLimits;
pub use token::{HttpToken, TokenError};

/// Answers JSON-RPC frames: the same dispatcher that serves the socket.
pub trait Dispatch: Send + Sync + 'static {
    /// Answers `frame`, one JSON-RPC message or batch, for a caller who may do anything. Returns the response's bytes,
    /// empty for a notification. Dropping the future gives the answer up, not what was begun.
    fn dispatch(&self, frame: Vec<u8>, caller: HttpCaller) -> BoxFuture<'static, Vec<u8>>;
}

/// Who a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpCaller {
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// By what right it was let in.
    pub grant: access::Grant,
}
