//! The configured agents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Empty;
use crate::ids::AgentAlias;
use crate::method;

method!(
    List = "agent/list", false, Empty => AgentList,
    "Returns the configured agents, sorted by alias."
);

/// Result of `agent/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentList {
    /// The agents.
    pub agents: Vec<AgentRow>,
}

/// One configured agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentRow {
    /// Its alias in `config.toml`.
    pub agent_id: AgentAlias,
    /// What starts its adapter: the program and its arguments. Empty for a built-in agent.
    pub command: Vec<String>,
    /// Whether the agent is part of this program.
    pub builtin: bool,
    /// Whether it may be started.
    pub enabled: bool,
    /// Adapter processes that run now.
    pub adapters: u64,
    /// Turns in flight.
    pub turns_running: u64,
}
