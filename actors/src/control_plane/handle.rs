//! Typed calls to ControlPlane.

use std::time::Duration;

use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::control_plane::{self, AgentInitialize, AgentRow, Instance};
use holdfast_stores::kit::{Reader, Readers};

use super::error::ControlPlaneError;
use super::message::ControlPlaneMessage;
use crate::address::{Address, CallError};
use crate::shown::Shown;
use crate::store;

/// Longer than a disk with a full queue takes; past it the outcome is unknown.
const LIMIT: Duration = Duration::from_secs(30);

/// What ControlPlane shows without being asked.
#[derive(Debug, Clone)]
pub struct ControlPlaneShown {
    /// Who this install is.
    pub(super) instance: Instance,
    /// What reads its store.
    pub(super) readers: Readers,
}

/// Asks ControlPlane. Reads go through its read-only connections and see committed rows only.
#[derive(Debug, Clone)]
pub struct ControlPlaneHandle {
    address: Address<ControlPlaneMessage>,
    shown: Shown<ControlPlaneShown>,
}

impl ControlPlaneHandle {
    /// Makes a handle; `shown` is where the surface shows what it knows.
    pub fn new(address: Address<ControlPlaneMessage>, shown: Shown<ControlPlaneShown>) -> Self {
        Self { address, shown }
    }

    /// Returns who this install is. Never changes, so callers may keep it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn instance(&self) -> Result<Instance, CallError> {
        Ok(self.shown.get(&self.address, LIMIT).await?.instance)
    }

    /// Notes that an agent's process was started now; on disk when this returns.
    ///
    /// # Errors
    /// [`ControlPlaneError::UnknownAgent`] when no configuration has named it.
    pub async fn agent_started(&self, alias: AgentAlias) -> Result<(), ControlPlaneError> {
        self.address.call(LIMIT, |reply| ControlPlaneMessage::AgentStarted { alias, reply }).await?
    }

    /// Keeps what an agent answered to `initialize`; on disk when this returns. Safe to repeat.
    ///
    /// # Errors
    /// [`ControlPlaneError`].
    pub async fn initialize_put(&self, answer: AgentInitialize) -> Result<(), ControlPlaneError> {
        let answer = Box::new(answer);
        self.address.call(LIMIT, |reply| ControlPlaneMessage::InitializePut { answer, reply }).await?
    }

    /// Returns what an agent launched so (see `AgentConfig::launch_hash`) last answered to `initialize`.
    ///
    /// # Errors
    /// [`ControlPlaneError`].
    pub async fn initialize_get(&self, launch_hash: &str) -> Result<Option<AgentInitialize>, ControlPlaneError> {
        let mut reader = self.reader().await?;
        Ok(control_plane::agent_initialize_get(&mut reader, launch_hash).await?)
    }

    /// Returns all agents this install knows or has known, by alias.
    ///
    /// # Errors
    /// [`ControlPlaneError`].
    pub async fn agent_list(&self) -> Result<Vec<AgentRow>, ControlPlaneError> {
        let mut reader = self.reader().await?;
        Ok(control_plane::agent_list(&mut reader).await?)
    }

    async fn reader(&self) -> Result<Reader, ControlPlaneError> {
        store::reader(&self.shown, |shown| &shown.readers, &self.address, LIMIT).await
    }
}
