//! The agents of this install: settings from the configuration in force, what they said of themselves from ControlPlane.

use std::collections::BTreeMap;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::{AgentAlias, InstanceId};
use holdfast_protocol::raw;
use holdfast_stores::config::{AgentConfig, AgentsConfig, BuiltinAgent, Launch, PermissionsConfig};
use holdfast_stores::control_plane::AgentInitialize;
use serde_json::value::RawValue;

use crate::acp::environment::{AgentCatalog, AgentSettings};
use crate::config::ConfigHandle;
use crate::control_plane::ControlPlaneHandle;
use crate::ports::Ports;

/// The variable that tells the demonstration agent where to keep its transcripts.
const DEMO_STATE: &str = "HOLDFAST_DEMO_STATE";

/// The agents of one install.
pub struct InstalledAgents {
    config: ConfigHandle,
    control_plane: ControlPlaneHandle,
    /// This program, which is also the built-in agents.
    program: PathBuf,
    /// `agents/`: each agent's own directory is below.
    agents_dir: PathBuf,
    ports: Ports,
}

impl InstalledAgents {
    /// Makes the catalog.
    pub fn new(
        config: ConfigHandle,
        control_plane: ControlPlaneHandle,
        program: PathBuf,
        agents_dir: PathBuf,
        ports: Ports,
    ) -> Self {
        Self { config, control_plane, program, agents_dir, ports }
    }

    async fn read(&self, alias: &AgentAlias) -> Result<AgentSettings, WireError> {
        let agents = self.config.section::<AgentsConfig>().await.map_err(WireError::from)?;
        let defaults = self.config.section::<PermissionsConfig>().await.map_err(WireError::from)?;
        let agent = agents.get(alias).ok_or_else(|| unknown_agent(&agents, alias))?;
        self.settings_of(alias, agent, defaults)
    }

    fn settings_of(
        &self,
        alias: &AgentAlias,
        agent: &AgentConfig,
        defaults: PermissionsConfig,
    ) -> Result<AgentSettings, WireError> {
        let mut env = BTreeMap::new();
        for (name, value) in &agent.env {
            let value = value.expose().map_err(|error| {
                WireError::new(ErrorKind::ConfigInvalid, format!("agents.{alias}.env.{name}: {error}"))
            })?;
            env.insert(name.clone(), value.to_owned());
        }
        let argv = match agent.launch() {
            Some(Launch::Builtin(BuiltinAgent::Demo)) => {
                let state = self.agents_dir.join(alias.as_str()).join("demo-state");
                env.entry(DEMO_STATE.to_owned()).or_insert_with(|| state.display().to_string());
                vec![self.program.display().to_string(), "demo-agent".to_owned()]
            }
            Some(Launch::Command(words)) => words.to_vec(),
            None => {
                let message = format!("agent `{alias}` has neither `command` nor `builtin`");
                return Err(WireError::new(ErrorKind::ConfigInvalid, message)
                    .with_remedy(format!("give [agents.{alias}] a command in config.toml, then `holdfast reload`")));
            }
        };
        let permissions = agent.permissions.over(defaults);
        Ok(AgentSettings {
            argv,
            launch_hash: agent.launch_hash(),
            env,
            permissions: permissions.policy,
            unattended: permissions.unattended,
            idle_timeout_ms: i64::try_from(agent.idle_timeout_s.saturating_mul(1_000)).unwrap_or(i64::MAX),
        })
    }
}

fn unknown_agent(agents: &AgentsConfig, alias: &AgentAlias) -> WireError {
    let error = WireError::new(ErrorKind::NotFound, format!("no agent `{alias}` in config.toml"));
    match agents.nearest(alias.as_str()) {
        Some(near) => error.with_remedy(format!("did you mean `{near}`? `holdfast agent list` shows all")),
        None => error.with_remedy("`holdfast agent list` shows all, `holdfast agent detect` finds installed ones"),
    }
}

impl AgentCatalog for InstalledAgents {
    fn instance_id(&self) -> BoxFuture<'_, Result<InstanceId, WireError>> {
        Box::pin(async move {
            let instance = self.control_plane.instance().await.map_err(WireError::from)?;
            Ok(instance.instance_id)
        })
    }

    fn settings<'a>(&'a self, alias: &'a AgentAlias) -> BoxFuture<'a, Result<AgentSettings, WireError>> {
        Box::pin(self.read(alias))
    }

    fn initialize_result<'a>(&'a self, settings: &'a AgentSettings) -> BoxFuture<'a, Option<Box<RawValue>>> {
        Box::pin(async move {
            match self.control_plane.initialize_get(&settings.launch_hash).await {
                Ok(known) => RawValue::from_string(known?.result_json).ok(),
                Err(error) => {
                    tracing::warn!(%error, "what the agent said of itself can't be read; it is asked again");
                    None
                }
            }
        })
    }

    fn keep_initialize_result<'a>(
        &'a self,
        alias: &'a AgentAlias,
        settings: &'a AgentSettings,
        result: &'a RawValue,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let answer = AgentInitialize {
                launch_hash: settings.launch_hash.clone(),
                agent_version: raw::at(result.get(), &["agentInfo", "version"])
                    .and_then(raw::string)
                    .map(std::borrow::Cow::into_owned),
                result_json: result.get().to_owned(),
                recorded_at_ms: self.ports.clock.now_ms(),
            };
            if let Err(error) = self.control_plane.initialize_put(answer).await {
                tracing::warn!(%error, "what the agent said of itself was not kept; the next start asks again");
            }
            if let Err(error) = self.control_plane.agent_started(alias.clone()).await {
                tracing::warn!(%error, %alias, "the start of the agent was not noted");
            }
        })
    }
}
