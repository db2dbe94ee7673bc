//! The owner of the ACP sessions: their rows, their turns, every update, in `data/sessions/acp-sessions.db`.
//!
//! Live sessions write through [`AcpSessionsHandle::record`]; what queues while a commit runs goes into the next one.
//! A restart forgets nothing: changes that were accepted and not answered are sent again by their sessions.

mod error;
mod handle;
mod message;
mod reads;
mod state;

use std::path::PathBuf;

use holdfast_stores::acp_sessions::AcpSessionsStore;
use holdfast_stores::kit::{OpenContext, Readers};

use crate::address::Down;
use crate::shown::Shown;
use crate::store::{check_in_background, down, unusable};
use crate::surface::{Context, Fault, Surface};

pub use error::AcpSessionsError;
pub use handle::AcpSessionsHandle;
pub use message::AcpSessionsMessage;
pub(crate) use reads::AcpReads;
pub use state::AcpSessionsState;

/// The owner of the ACP sessions.
pub struct AcpSessionsSurface {
    data_dir: PathBuf,
    app_version: &'static str,
    boot_id: String,
    readers: Shown<Readers>,
}

impl AcpSessionsSurface {
    /// Makes the owner of the store below `data_dir`; turns of other runs than `boot_id` are interrupted ones. What reads
    /// the store is shown in `readers`.
    pub fn new(data_dir: PathBuf, app_version: &'static str, boot_id: String, readers: Shown<Readers>) -> Self {
        Self { data_dir, app_version, boot_id, readers }
    }
}

impl Surface for AcpSessionsSurface {
    type Message = AcpSessionsMessage;
    type State = AcpSessionsState;

    async fn start(&self, context: &Context<AcpSessionsMessage>) -> Result<AcpSessionsState, Down> {
        let now_ms = context.ports.clock.now_ms();
        let open = OpenContext { app_version: self.app_version, now_ms };
        let (mut store, opened) = AcpSessionsStore::open(&self.data_dir, open).await.map_err(|error| down(&error))?;
        let recovered = store.interrupted_settle(&self.boot_id, now_ms).await.map_err(|error| unusable(&error))?;
        if recovered.turns > 0 {
            tracing::warn!(turns = recovered.turns, "turns that an earlier run left unfinished are interrupted");
        }
        if opened.needs_quick_check {
            let reporter = context.reporter();
            check_in_background(store.readers().clone(), move |problems| {
                // An incarnation that ended is checked again by the next.
                let _ended = reporter.report(AcpSessionsMessage::Checked { problems });
            });
        }
        context.stats.set_size_bytes(store.size_bytes());
        self.readers.show(store.readers().clone());
        Ok(AcpSessionsState::new(store))
    }

    async fn handle(
        &self,
        context: &Context<AcpSessionsMessage>,
        message: AcpSessionsMessage,
        state: &mut AcpSessionsState,
    ) -> Result<(), Fault> {
        match message {
            AcpSessionsMessage::Create { session, reply } => state.create(context, *session, reply).await?,
            AcpSessionsMessage::Record { change, reply } => {
                if state.push(change, reply) && context.cast_self(AcpSessionsMessage::Flush).is_err() {
                    state.flush(context).await?;
                }
            }
            AcpSessionsMessage::Flush => state.flush(context).await?,
            AcpSessionsMessage::Checked { problems } => state.checked(problems)?,
        }
        Ok(())
    }

    async fn stop(&self, context: &Context<AcpSessionsMessage>, mut state: AcpSessionsState) {
        if let Err(fault) = state.flush(context).await {
            tracing::error!(%fault, "the last changes could not be stored");
        }
        self.readers.hide();
        state.close().await;
    }
}
