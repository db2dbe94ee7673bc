//! `[permissions]`: what happens when an agent asks to do something.

pub use holdfast_protocol::acp::permission::PermissionPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::section::ConfigSection;

/// What is answered when nobody is attached who could be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnattendedPolicy {
    /// Deny, so that an unattended run never hangs on a question.
    #[default]
    Deny,
    /// Allow reading, deny the rest.
    AllowReads,
    /// Wait until somebody attaches.
    Wait,
}

/// The defaults for all agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PermissionsConfig {
    /// What is answered when an agent asks for permission.
    pub policy: PermissionPolicy,
    /// What is answered when nobody is attached.
    pub unattended: UnattendedPolicy,
}

impl ConfigSection for PermissionsConfig {
    const NAME: &'static str = "permissions";
}

/// What one agent does otherwise than `[permissions]` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentPermissions {
    /// What is answered when this agent asks for permission.
    pub policy: Option<PermissionPolicy>,
    /// What is answered when nobody is attached.
    pub unattended: Option<UnattendedPolicy>,
}

impl AgentPermissions {
    /// Fills what is not said here from `defaults`.
    pub fn over(self, defaults: PermissionsConfig) -> PermissionsConfig {
        PermissionsConfig {
            policy: self.policy.unwrap_or(defaults.policy),
            unattended: self.unattended.unwrap_or(defaults.unattended),
        }
    }
}
