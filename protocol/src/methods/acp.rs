//! The way into an agent: a connection that turns into an ACP channel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{AgentAlias, SessionId};
use crate::method;

method!(
    Attach = "acp/attach", false, AttachParams => AttachResult,
    "Turns the connection into raw ACP frames with the agent; nothing but ACP is spoken after the answer."
);

/// Params of `acp/attach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachParams {
    /// The agent's alias.
    pub agent: AgentAlias,
    /// Names the client over its reconnects, so that it finds its attachments again. Any text up to 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// The session the client will go on with, if it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// Result of `acp/attach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachResult {
    /// The agent's alias.
    pub agent: AgentAlias,
    /// The longest ACP frame in bytes, without its newline.
    pub frame_bytes: u64,
}
