//! What the control plane's store holds, as domain types.

use holdfast_protocol::ids::{AgentAlias, InstanceId, InvalidId};

use super::STORE;
use crate::kit::StoreError;

/// Who this install is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Made at the first start, never changed. Not a secret.
    pub instance_id: InstanceId,
    /// When that was, UTC milliseconds.
    pub created_at_ms: i64,
}

/// An agent as the configuration names it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredAgent {
    /// Its name.
    pub alias: AgentAlias,
    /// The hash of what decides how its process behaves: BLAKE3, hex.
    pub launch_hash: String,
}

/// An agent this install knows or has known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// Its name.
    pub alias: AgentAlias,
    /// The hash of what decides how its process behaves, as last configured.
    pub launch_hash: String,
    /// Whether the configuration in force names it.
    pub configured: bool,
    /// When the configuration first named it, UTC milliseconds.
    pub first_seen_at_ms: i64,
    /// When its process was last started, UTC milliseconds.
    pub last_started_at_ms: Option<i64>,
}

/// What an agent answered to `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentInitialize {
    /// How it was launched.
    pub launch_hash: String,
    /// The version it gave.
    pub agent_version: Option<String>,
    /// The answer, raw JSON.
    pub result_json: String,
    /// When, UTC milliseconds.
    pub recorded_at_ms: i64,
}

/// The error of a stored id that this program would not have written.
pub(super) fn not_understood(action: &'static str, error: InvalidId) -> StoreError {
    StoreError::Row { store: STORE, action, problem: error.to_string() }
}
