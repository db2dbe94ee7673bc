//! Typed questions to Config.

use std::time::Duration;

use holdfast_stores::config::{AgentsConfig, ConfigSection, ConfigSnapshot};

use super::error::ConfigCallError;
use super::message::{ConfigMessage, ConfigStatus};
use crate::address::{Address, CallError};

/// Longer than a reload takes; Config answers from memory otherwise.
const LIMIT: Duration = Duration::from_secs(30);

/// Asks Config. Don't keep what it answers over a reload: ask again.
#[derive(Debug, Clone)]
pub struct ConfigHandle {
    address: Address<ConfigMessage>,
}

impl ConfigHandle {
    /// Makes a handle.
    pub fn new(address: Address<ConfigMessage>) -> Self {
        Self { address }
    }

    /// Returns the configuration in force.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn snapshot(&self) -> Result<ConfigSnapshot, CallError> {
        self.address.call(LIMIT, |reply| ConfigMessage::Snapshot { reply }).await
    }

    /// Returns one section as it is in force; a missing one is its default.
    ///
    /// # Errors
    /// [`ConfigCallError::Section`] when it can't be used.
    pub async fn section<T: ConfigSection>(&self) -> Result<T, ConfigCallError> {
        Ok(self.snapshot().await?.section::<T>()?)
    }

    /// Returns the agents.
    ///
    /// # Errors
    /// As [`ConfigHandle::section`].
    pub async fn agents(&self) -> Result<AgentsConfig, ConfigCallError> {
        self.section::<AgentsConfig>().await
    }

    /// Returns what is in force and what is in the file.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn status(&self) -> Result<ConfigStatus, CallError> {
        self.address.call(LIMIT, |reply| ConfigMessage::Status { reply }).await
    }
}
