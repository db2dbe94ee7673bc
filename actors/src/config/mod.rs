//! Config: holds the configuration in force. Reads nothing by itself: the root reads and validates a file once, puts the
//! snapshot into the cell, and every incarnation of every surface starts from that same text, whatever happens to the file
//! in between.
//!
//! A restart forgets nothing, since it owns no store but the file.

mod error;
mod handle;
mod message;
mod state;
#[cfg(test)]
mod tests;

use holdfast_stores::config::{ConfigSnapshot, ConfigSource};
use tokio::sync::watch;

pub use error::ConfigCallError;
pub use handle::ConfigHandle;
pub use message::{ConfigMessage, ConfigStatus};

use crate::address::Down;
use crate::surface::{Context, Fault, Surface};
use state::ConfigState;

/// The Config surface of one tree.
pub struct ConfigSurface {
    applied: watch::Receiver<ConfigSnapshot>,
    source: ConfigSource,
}

impl ConfigSurface {
    /// Declares the surface. `applied` holds what the root has validated; `source` is where it was read from.
    pub fn new(applied: watch::Receiver<ConfigSnapshot>, source: ConfigSource) -> Self {
        Self { applied, source }
    }
}

impl Surface for ConfigSurface {
    type Message = ConfigMessage;
    type State = ConfigState;

    async fn start(&self, context: &Context<ConfigMessage>) -> Result<ConfigState, Down> {
        let state = ConfigState::new(self.applied.borrow().clone(), self.source.clone(), context.generation);
        state.log_problems();
        context.stats.set_size_bytes(state.size_bytes());
        Ok(state)
    }

    async fn handle(
        &self,
        _context: &Context<ConfigMessage>,
        message: ConfigMessage,
        state: &mut ConfigState,
    ) -> Result<(), Fault> {
        match message {
            ConfigMessage::Snapshot { reply } => reply.send(state.snapshot()),
            ConfigMessage::Status { reply } => state.status(reply),
        }
        Ok(())
    }

    async fn stop(&self, _context: &Context<ConfigMessage>, _state: ConfigState) {}
}
