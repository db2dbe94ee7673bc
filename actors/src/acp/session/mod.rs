//! A session in flight: the one writer of its history, the queue of its prompts, the owner of its agent's process.
//!
//! It outlives a reload of the tree and every client. A crash of this actor fails the turn in flight and ends the
//! agent's process; the session itself is in the store and goes on with the next prompt.

mod agent;
pub(crate) mod bring_up;
mod events;
mod journal;
mod message;
mod primer;
pub(crate) mod questions;
mod state;
mod storing;
mod turn;

use std::sync::Arc;

use crate::acp::adapter::{AgentSink, FromAgent};
use crate::acp::environment::Environment;
use crate::address::{Address, Down};
use crate::reply::Reply;
use crate::surface::{Context, Fault, Surface};
use holdfast_stores::acp_sessions::AcpSessionRow;

pub use message::{Asker, Attached, Cancelled, ClientId, PromptDone, SessionMessage};
pub use state::SessionState;

/// A session in flight.
pub struct LiveSession {
    environment: Arc<Environment>,
    row: AcpSessionRow,
}

impl LiveSession {
    /// Makes the live side of a stored session.
    pub fn new(environment: Arc<Environment>, row: AcpSessionRow) -> Self {
        Self { environment, row }
    }
}

impl Surface for LiveSession {
    type Message = SessionMessage;
    type State = SessionState;

    async fn start(&self, _context: &Context<SessionMessage>) -> Result<SessionState, Down> {
        Ok(SessionState::new(Arc::clone(&self.environment), self.row.clone()))
    }

    async fn handle(
        &self,
        context: &Context<SessionMessage>,
        message: SessionMessage,
        state: &mut SessionState,
    ) -> Result<(), Fault> {
        match message {
            SessionMessage::Open { reply } => state.open(reply),
            SessionMessage::Attach { client, feed, reply } => state.attach(client, feed, reply),
            SessionMessage::Detach { client } => state.detach(client),
            SessionMessage::Prompt { asker, params, reply } => state.prompt(asker, params, reply),
            SessionMessage::Cancel { which } => state.cancel(&which),
            SessionMessage::Forward { method, params, reply } => state.forward(method, params, reply),
            SessionMessage::Notify { method, params } => state.notify(method, &params),
            SessionMessage::Answered { client, question, outcome } => state.answered(client, question, outcome),
            SessionMessage::Close { reply } => state.close(reply, context),
            SessionMessage::Said { said, epoch, stored } => state.said(said, epoch, stored),
            SessionMessage::BroughtUp { epoch, outcome } => state.brought_up(epoch, *outcome, context),
            SessionMessage::TurnAnswered { number, answer } => state.turn_answered(number, answer),
            SessionMessage::Stored { outcome } => state.stored(outcome, context),
            SessionMessage::StoreAgain => state.store_again(context),
            SessionMessage::ReplayQuiet { epoch, seen } => state.replay_quiet(epoch, seen, context),
            SessionMessage::IdleDue { activity } => state.idle_due(activity, context),
            SessionMessage::AgentEnded { epoch } => state.agent_ended(epoch),
        }
        state.go_on(context);
        Ok(())
    }

    async fn stop(&self, _context: &Context<SessionMessage>, state: SessionState) {
        state.shut_down().await;
    }
}

/// Hands what an agent says to its session, in order, and waits until it is on disk when too much is on its way.
pub(crate) struct SessionSink {
    session: Address<SessionMessage>,
    epoch: u64,
}

impl AgentSink for SessionSink {
    async fn take(&self, said: FromAgent) -> Result<(), ()> {
        // The reply's permit is what bounds the updates on their way; nobody waits for the answer itself.
        let (stored, _answer) = Reply::oneshot();
        let epoch = self.epoch;
        let message = |stored| SessionMessage::Said { said, epoch, stored };
        self.session.post_in_order(stored, message).await.map_err(drop)
    }
}
