//! The RPC socket: one listener, and a child actor for each connection.
//!
//! ```text
//! Listener (actor)      accepts, checks who it is, starts a Connection
//! Connection (actor)    owns one task: read a batch, dispatch it, write all answers that are there with one write
//!   ├── RPC mode        requests through the router; answers come back through a queue bounded in bytes
//!   └── raw mode        after `acp/attach`: ACP frames in both directions, handed to whoever serves the agent
//! ```

mod acp;
mod connection;
mod listener;
mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use holdfast_actors::router::Router;
use holdfast_protocol::ids::InstanceId;
use holdfast_protocol::jsonrpc::BATCH_MAX;
use holdfast_protocol::methods::rpc::ConnectionLimits;

pub use acp::{AcpAttach, AcpStart, RawChannel};
pub use listener::{Listener, ListenerMessage, SocketServer};
pub use place::{BindError, BoundSocket, bind, connect};

/// What connections are served with.
#[derive(Clone)]
pub struct SocketService {
    /// The methods.
    pub router: Arc<Router>,
    /// Who takes over connections that turn into ACP channels.
    pub acp: Arc<dyn AcpAttach>,
    /// Who the daemon is at the moment a client asks.
    pub identity: Arc<dyn Fn() -> Identity + Send + Sync>,
    /// The bounds.
    pub limits: SocketLimits,
}

/// Who the daemon is, for `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The program's version.
    pub version: String,
    /// The install.
    pub instance_id: InstanceId,
    /// The generation of the tree.
    pub generation: u64,
}

/// The bounds of the socket and of each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketLimits {
    /// Connections at a time; one more is told `busy` and closed.
    pub connections: usize,
    /// The longest frame, without its newline.
    pub frame_bytes: usize,
    /// The longest frame after `acp/attach`.
    pub acp_frame_bytes: usize,
    /// Requests in flight a connection; one more is answered `busy`.
    pub in_flight_requests: usize,
    /// Subscriptions a connection.
    pub subscriptions: usize,
    /// Bytes of answers that may wait for the client before its requests are no longer read.
    pub unread_bytes: usize,
    /// Bytes of notifications and ACP frames that may wait, in each direction.
    pub queue_bytes: usize,
    /// How long a client may take to send `initialize`.
    pub handshake: Duration,
    /// How long a connection without requests in flight and subscriptions, or one whose client reads nothing, may be
    /// silent.
    pub idle: Duration,
    /// How long requests in flight may take to finish when the connection ends or the daemon stops.
    pub finish: Duration,
}

impl Default for SocketLimits {
    /// Frames of 16 MiB (64 MiB as ACP), 1 024 requests in flight, 64 subscriptions, 1 MiB unread, 8 MiB queued; 1 024
    /// connections; 30 s to say who you are, 10 min idle, 10 s to finish.
    fn default() -> Self {
        Self {
            connections: 1024,
            frame_bytes: 16 * 1024 * 1024,
            acp_frame_bytes: 64 * 1024 * 1024,
            in_flight_requests: 1024,
            subscriptions: 64,
            unread_bytes: 1024 * 1024,
            queue_bytes: 8 * 1024 * 1024,
            handshake: Duration::from_secs(30),
            idle: Duration::from_secs(600),
            finish: Duration::from_secs(10),
        }
    }
}

impl SocketLimits {
    /// Returns what `initialize` says of them.
    fn on_the_wire(&self) -> ConnectionLimits {
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let bytes = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        ConnectionLimits {
            frame_bytes: bytes(self.frame_bytes),
            acp_frame_bytes: bytes(self.acp_frame_bytes),
            batch_messages: count(BATCH_MAX),
            in_flight_requests: count(self.in_flight_requests),
            subscriptions: count(self.subscriptions),
            unread_bytes: bytes(self.unread_bytes),
            idle_ms: u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
