//! What one incarnation of ControlPlane holds.

use std::time::Instant;

use holdfast_protocol::ids::{AgentAlias, InstanceId};
use holdfast_stores::config::{AgentsConfig, ConfigSnapshot};
use holdfast_stores::control_plane::{AgentInitialize, ConfiguredAgent, ControlPlaneStore, Instance, STORE};
use holdfast_stores::kit::StoreError;

use super::error::ControlPlaneError;
use super::handle::ControlPlaneShown;
use super::message::ControlPlaneMessage;
use crate::address::Down;
use crate::reply::Reply;
use crate::store::{down, judge_check, note_writes, unusable};
use crate::surface::{Context, Fault};

/// The store and who this install is.
pub struct ControlPlaneState {
    store: ControlPlaneStore,
    instance: Instance,
}

impl ControlPlaneState {
    /// Names the instance if it has no name yet, and makes the registry follow the configuration.
    pub(super) async fn begin(
        mut store: ControlPlaneStore,
        proposed: InstanceId,
        config: &ConfigSnapshot,
        context: &Context<ControlPlaneMessage>,
    ) -> Result<Self, Down> {
        let now_ms = context.ports.clock.now_ms();
        let instance = store.instance_ensure(proposed, now_ms).await.map_err(|error| unusable(&error))?;
        match config.section::<AgentsConfig>() {
            Ok(agents) => {
                let configured = agents
                    .0
                    .iter()
                    .map(|(alias, agent)| ConfiguredAgent { alias: alias.clone(), launch_hash: agent.launch_hash() });
                store.agents_follow(configured.collect(), now_ms).await.map_err(|error| unusable(&error))?;
            }
            // Config has said what is wrong. The registry stays as it was, since nobody knows what was meant.
            Err(error) => tracing::warn!(section = error.section, "the registry of agents is left as it was"),
        }
        context.stats.set_size_bytes(store.size_bytes());
        Ok(Self { store, instance })
    }

    pub(super) fn shown(&self) -> ControlPlaneShown {
        ControlPlaneShown { instance: self.instance, readers: self.store.readers().clone() }
    }

    pub(super) async fn agent_started(
        &mut self,
        alias: AgentAlias,
        reply: Reply<Result<(), ControlPlaneError>>,
        context: &Context<ControlPlaneMessage>,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        let outcome = self.store.agent_started(&alias, context.ports.clock.now_ms()).await;
        let known = self.settle(outcome, begun, context).await?;
        reply.send(known.map_err(ControlPlaneError::from).and_then(|known| match known {
            true => Ok(()),
            false => Err(ControlPlaneError::UnknownAgent(alias)),
        }));
        Ok(())
    }

    pub(super) async fn initialize_put(
        &mut self,
        answer: AgentInitialize,
        reply: Reply<Result<(), ControlPlaneError>>,
        context: &Context<ControlPlaneMessage>,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        let outcome = self.store.agent_initialize_put(&answer).await;
        let stored = self.settle(outcome, begun, context).await?;
        reply.send(stored.map_err(ControlPlaneError::from));
        Ok(())
    }

    pub(super) fn checked(&self, outcome: Result<Vec<String>, StoreError>) -> Result<(), Fault> {
        judge_check(STORE, outcome)
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "control_plane.db was not closed cleanly; nothing is lost");
        }
    }

    /// Counts a commit, and replaces a writer of which nobody knows what it did.
    async fn settle<T>(
        &mut self,
        outcome: Result<T, StoreError>,
        begun: Instant,
        context: &Context<ControlPlaneMessage>,
    ) -> Result<Result<T, StoreError>, Fault> {
        let answer = outcome.as_ref().map(|_| ());
        note_writes(&context.stats, context.ports.clock.now_ms(), [answer]);
        match &outcome {
            Ok(_) => {
                context.stats.commit_took(begun.elapsed());
                context.stats.set_size_bytes(self.store.size_bytes());
            }
            Err(StoreError::OutcomeUnknown { .. }) => {
                self.store.reopen_writer().await.map_err(|error| Fault::Down(down(&error)))?;
            }
            Err(_) => {}
        }
        Ok(outcome)
    }
}
