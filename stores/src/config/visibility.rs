//! `[agents.<alias>.visibility]`: which sessions an agent may see when it asks the daemon from within one of its own.

use std::collections::BTreeSet;

use holdfast_protocol::ids::AgentAlias;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which sessions an agent's sessions see. The owner of the install sees all, whatever this says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentVisibility {
    /// Which sessions it sees.
    pub sessions: SessionVisibility,
    /// Which other agents' sessions it sees with `sessions = "all"`: `false`, `true`, or a list of agents.
    pub a2a: A2aPolicy,
    /// It runs in a sandbox: whatever `sessions` says, it sees no more than `tree`.
    pub sandboxed: bool,
}

/// Which sessions are seen. Each but `agent` sees what the one before it does, and `all` sees what `agent` does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionVisibility {
    /// Only the one that asks.
    #[serde(rename = "self")]
    OwnSession,
    /// That, and those it owns or spawned, also through others.
    Tree,
    /// All of the same agent, and those it owns of others.
    #[default]
    Agent,
    /// That, and those of the other agents that `a2a` allows.
    All,
}

/// Which other agents' sessions are seen with [`SessionVisibility::All`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum A2aPolicy {
    /// All of them, or none.
    Everyone(bool),
    /// Those of these agents.
    Agents(BTreeSet<AgentAlias>),
}

impl Default for A2aPolicy {
    fn default() -> Self {
        Self::Everyone(false)
    }
}

impl A2aPolicy {
    /// Says whether the sessions of `agent` may be seen.
    pub fn allows(&self, agent: &AgentAlias) -> bool {
        match self {
            Self::Everyone(allowed) => *allowed,
            Self::Agents(agents) => agents.contains(agent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_people_write_it() {
        let read = |text: &str| toml_edit::de::from_str::<AgentVisibility>(text).unwrap();
        assert_eq!(read(""), AgentVisibility::default());
        let codex: AgentAlias = "codex".parse().unwrap();
        let some = read("sessions = \"all\"\na2a = [\"codex\"]\nsandboxed = true");
        assert_eq!((some.sessions, some.sandboxed), (SessionVisibility::All, true));
        assert!(some.a2a.allows(&codex) && !some.a2a.allows(&"gemini".parse().unwrap()));
        assert!(read("a2a = true").a2a.allows(&codex) && !read("a2a = false").a2a.allows(&codex));
        assert_eq!(read("sessions = \"self\"").sessions, SessionVisibility::OwnSession);
        assert!(toml_edit::de::from_str::<AgentVisibility>("a2a = [\"No Such\"]").is_err());
    }
}
