//! The Sessions: owns `data/sessions/sessions.db`, the chat and channel sessions and their transcripts.
//!
//! Writes queue and commit together: what arrives while a commit runs goes into the next one, and each is answered
//! after the commit that holds it. Commits and reads run on tasks of their own, so reads never wait for a write; they see
//! what has been answered. A restart forgets nothing but cursors of lists.

mod commit;
mod error;
mod handle;
mod message;
mod pending;
mod read;
mod reads;
mod rules;
mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use holdfast_stores::kit::OpenContext;
use holdfast_stores::sessions::SessionsStore;

pub use error::SessionsError;
pub use handle::SessionsHandle;
pub use message::SessionsMessage;
pub(crate) use reads::ChatReads;

use crate::address::Down;
use crate::store::{chain, down};
use crate::surface::{Context, Fault, Surface};
use state::SessionsState;

/// The Sessions of one tree.
pub struct SessionsSurface {
    data_dir: PathBuf,
    version: &'static str,
}

impl SessionsSurface {
    /// Declares the Sessions kept below `data_dir`. `version` is the program's.
    pub fn new(data_dir: PathBuf, version: &'static str) -> Self {
        Self { data_dir, version }
    }
}

impl Surface for SessionsSurface {
    type Message = SessionsMessage;
    type State = SessionsState;

    async fn start(&self, context: &Context<SessionsMessage>) -> Result<SessionsState, Down> {
        let open = OpenContext { app_version: self.version, now_ms: context.ports.clock.now_ms() };
        let (store, opened) = SessionsStore::open(&self.data_dir, open).await.map_err(|error| {
            tracing::error!(path = %error.path().display(), error = %chain(&error), "the sessions can't be opened");
            down(&error)
        })?;
        Ok(SessionsState::new(context, store, opened))
    }

    async fn handle(
        &self,
        context: &Context<SessionsMessage>,
        message: SessionsMessage,
        state: &mut SessionsState,
    ) -> Result<(), Fault> {
        match message {
            SessionsMessage::New { params, reply } => state.new_session(context, params, reply).await?,
            SessionsMessage::Append { params, reply } => state.append(context, params, reply).await?,
            SessionsMessage::Close { params, reply } => state.close_session(context, params, reply).await?,
            SessionsMessage::Flush => state.flush(context),
            SessionsMessage::Committed { number } => state.committed(context, number).await?,
            SessionsMessage::Events { params, reply } => state.events(context, params, reply),
            SessionsMessage::Tail { session_id, limit, reply } => state.tail(context, session_id, limit, reply),
            SessionsMessage::List { params, reply } => state.list(context, params, reply),
            SessionsMessage::Show { session_id, reply } => state.show(context, session_id, reply),
            SessionsMessage::DamageFound { problem } => return state.damage_found(&problem),
        }
        Ok(())
    }

    async fn stop(&self, context: &Context<SessionsMessage>, state: SessionsState) {
        state.stop(context).await;
    }
}
