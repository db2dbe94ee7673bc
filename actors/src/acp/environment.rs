//! What sessions in flight need from the rest of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_protocol::acp::permission::PermissionPolicy;
use holdfast_protocol::error::WireError;
use holdfast_protocol::ids::{AgentAlias, InstanceId};
use holdfast_stores::config::UnattendedPolicy;
use holdfast_stores::kit::CursorKey;
use serde_json::value::RawValue;

use crate::acp::launcher::AgentLauncher;
use crate::acp_sessions::AcpSessionsHandle;
use crate::ports::Ports;
use crate::supervisor::DynamicSupervisor;

/// What an agent's section of the configuration says, as far as sessions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Tells one way of launching the agent from another; see `AgentConfig::launch_hash`.
    pub launch_hash: String,
    /// Added to the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// What to do with permission requests.
    pub permissions: PermissionPolicy,
    /// What to do with those that the policy leaves to a person when nobody is attached.
    pub unattended: UnattendedPolicy,
    /// How long an adapter without a turn is kept.
    pub idle_timeout_ms: i64,
}

/// Knows the install and its agents: their settings, and what they said of themselves last time.
pub trait AgentCatalog: Send + Sync + 'static {
    /// Returns this install's id.
    ///
    /// # Errors
    /// When its store can't be read.
    fn instance_id(&self) -> BoxFuture<'_, Result<InstanceId, WireError>>;

    /// Returns an agent's settings.
    ///
    /// # Errors
    /// `NotFound` when the configuration names no such agent.
    fn settings<'a>(&'a self, alias: &'a AgentAlias) -> BoxFuture<'a, Result<AgentSettings, WireError>>;

    /// Returns the agent's last answer to `initialize` with these settings, if it is known.
    fn initialize_result<'a>(&'a self, settings: &'a AgentSettings) -> BoxFuture<'a, Option<Box<RawValue>>>;

    /// Keeps the agent's answer to `initialize`. A failure to keep it only costs a cold start.
    fn keep_initialize_result<'a>(
        &'a self,
        alias: &'a AgentAlias,
        settings: &'a AgentSettings,
        result: &'a RawValue,
    ) -> BoxFuture<'a, ()>;
}

/// What every session in flight shares. Handles and addresses only, so it outlives a reload.
#[derive(Clone)]
pub struct Environment {
    /// The owner of the ACP sessions' history.
    pub store: AcpSessionsHandle,
    /// Starts agents.
    pub launcher: Arc<dyn AgentLauncher>,
    /// Knows agents.
    pub catalog: Arc<dyn AgentCatalog>,
    /// Looks after the adapters' actors.
    pub adapters: DynamicSupervisor,
    /// Time and ids.
    pub ports: Ports,
    /// Signs the cursors of listings.
    pub cursors: CursorKey,
    /// This run of the daemon; turns of other runs are not running.
    pub boot_id: String,
    /// The program's version, told to agents and clients.
    pub version: &'static str,
}
