//! ControlPlane: owns `data/control_plane.db`. Knows who this install is and which agents it has known.
//!
//! At each start the registry of agents follows the configuration in force. A restart forgets nothing.

mod error;
mod handle;
mod message;
mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use holdfast_protocol::ids::InstanceId;
use holdfast_stores::control_plane::ControlPlaneStore;
use holdfast_stores::kit::OpenContext;

pub use error::ControlPlaneError;
pub use handle::{ControlPlaneHandle, ControlPlaneShown};
pub use message::ControlPlaneMessage;

use crate::address::Down;
use crate::config::ConfigHandle;
use crate::shown::Shown;
use crate::store::{check_in_background, down};
use crate::surface::{Context, Fault, Surface};
use state::ControlPlaneState;

/// The ControlPlane surface of one tree.
pub struct ControlPlaneSurface {
    data_dir: PathBuf,
    app_version: &'static str,
    config: ConfigHandle,
    shown: Shown<ControlPlaneShown>,
}

impl ControlPlaneSurface {
    /// Declares the surface. `data_dir` is the root's `data/`; Config is started before. What is read without asking goes
    /// to `shown`.
    pub fn new(
        data_dir: PathBuf,
        app_version: &'static str,
        config: ConfigHandle,
        shown: Shown<ControlPlaneShown>,
    ) -> Self {
        Self { data_dir, app_version, config, shown }
    }
}

impl Surface for ControlPlaneSurface {
    type Message = ControlPlaneMessage;
    type State = ControlPlaneState;

    async fn start(&self, context: &Context<ControlPlaneMessage>) -> Result<ControlPlaneState, Down> {
        let snapshot =
            self.config.snapshot().await.map_err(|error| Down::from(crate::config::ConfigCallError::from(error)))?;
        let now_ms = context.ports.clock.now_ms();
        let open = OpenContext { app_version: self.app_version, now_ms };
        let (store, opened) = ControlPlaneStore::open(&self.data_dir, open).await.map_err(|error| down(&error))?;
        if opened.needs_quick_check {
            let reporter = context.reporter();
            check_in_background(store.readers().clone(), move |outcome| {
                // An incarnation that ended meanwhile asks for the check again if it is still due.
                let _ended = reporter.report(ControlPlaneMessage::Checked { outcome });
            });
        }
        let proposed = InstanceId(context.ports.ids.uuid_v7());
        let state = ControlPlaneState::begin(store, proposed, &snapshot, context).await?;
        self.shown.show(state.shown());
        Ok(state)
    }

    async fn handle(
        &self,
        context: &Context<ControlPlaneMessage>,
        message: ControlPlaneMessage,
        state: &mut ControlPlaneState,
    ) -> Result<(), Fault> {
        match message {
            ControlPlaneMessage::AgentStarted { alias, reply } => state.agent_started(alias, reply, context).await?,
            ControlPlaneMessage::InitializePut { answer, reply } => {
                state.initialize_put(*answer, reply, context).await?
            }
            ControlPlaneMessage::Checked { outcome } => state.checked(outcome)?,
        }
        Ok(())
    }

    async fn stop(&self, _context: &Context<ControlPlaneMessage>, state: ControlPlaneState) {
        self.shown.hide();
        state.close().await;
    }
}
