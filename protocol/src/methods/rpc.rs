//! What the connection itself speaks: `initialize`, `rpc/discover`, `$/cancel`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Empty;
use crate::ids::InstanceId;
use crate::method;

/// The version of this protocol. Raised only by a change that old clients cannot ignore.
pub const PROTOCOL_VERSION: u32 = 1;

/// The notification that cancels a request of the same connection; its params are [`CancelParams`].
///
/// The request is answered at once with an error of kind `cancelled`, unless it was answered already. What it had
/// begun may still take effect.
pub const CANCEL: &str = "$/cancel";

method!(
    Initialize = "initialize", false, InitializeParams => InitializeResult,
    "Opens the conversation: has to be the first request of a connection."
);
method!(
    Discover = "rpc/discover", false, Empty => Value,
    "Returns the OpenRPC document of all methods."
);

/// Params of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitializeParams {
    /// The protocol version the client speaks; see [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Who is calling.
    pub client: PeerInfo,
}

/// A program at one end of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Result of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitializeResult {
    /// The protocol version the connection speaks from here on.
    pub protocol_version: u32,
    /// The daemon.
    pub server: PeerInfo,
    /// The install the daemon serves.
    pub instance_id: InstanceId,
    /// The generation of the tree, raised by each reload.
    pub generation: u64,
    /// What the daemon can do beyond plain requests.
    pub capabilities: Capabilities,
    /// The bounds of this connection.
    pub limits: ConnectionLimits,
}

/// What the daemon can do beyond plain requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// Batches are answered as one array.
    pub batches: bool,
    /// `$/cancel` is understood.
    pub cancel: bool,
    /// `acp/attach` is served.
    pub acp_attach: bool,
}

/// The bounds of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionLimits {
    /// The longest frame in bytes, without its newline. A longer one is answered with an error and closes the connection.
    pub frame_bytes: u64,
    /// The longest frame in bytes after `acp/attach`.
    pub acp_frame_bytes: u64,
    /// The most messages in one batch.
    pub batch_messages: u32,
    /// The most requests in flight; past it a request is answered `busy`.
    pub in_flight_requests: u32,
    /// The most subscriptions at a time.
    pub subscriptions: u32,
    /// How many bytes of answers may wait for a client that does not read them before its requests are no longer read.
    pub unread_bytes: u64,
    /// After how long without traffic, requests in flight and subscriptions the connection is closed.
    pub idle_ms: u64,
}

/// Params of `$/cancel`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CancelParams {
    /// The id of the request, in the form in which it was sent.
    pub id: Box<RawValue>,
}
