//! From memory to disk: changes are sent one at a time, and what waits for one is done once it is there.

use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::acp::errors::{acp_error, not_now};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_stores::acp_sessions::SessionChange;
use holdfast_stores::kit::StoreError;

use super::bring_up::{self, BringUpError};
use super::journal::Abandoned;
use super::state::{Agent, SessionState, Then};
use super::{PromptDone, SessionMessage};
use crate::address::CallError;
use crate::reply::Reply;
use crate::surface::Context;

/// How long a store whose last answer was lost is given before the change is sent again.
const STORE_AGAIN: Duration = Duration::from_millis(200);
/// How long a store that refused is given before it is offered what it must have.
const STORE_OWED: Duration = Duration::from_secs(1);

impl SessionState {
    pub(super) fn after_storing(&mut self, then: Then) {
        if let Some(now) = self.journal.then(then) {
            self.run_then(now, None);
        }
    }

    pub(super) fn store_next(&mut self, context: &Context<SessionMessage>) {
        if let Some(change) = self.journal.next() {
            self.send_change(change, context);
        }
    }

    fn send_change(&self, change: Arc<SessionChange>, context: &Context<SessionMessage>) {
        let store = self.environment.store.clone();
        let reporter = context.reporter();
        tokio::spawn(async move {
            let answer_reporter = reporter.clone();
            let reply = Reply::sink(move |outcome| {
                // A session that ended meanwhile has recorded its end itself.
                let _ended = answer_reporter.report(SessionMessage::Stored { outcome });
            });
            // A refusal drops the reply, which reports it as interrupted; a store that is down says so below.
            if let Err(error) = store.record(change, reply).await {
                tracing::debug!(%error, "the store does not take changes");
            }
        });
    }

    pub(super) fn stored(
        &mut self,
        outcome: Result<Result<(), StoreError>, CallError>,
        context: &Context<SessionMessage>,
    ) {
        match outcome {
            Ok(Ok(())) => self.change_is_stored(),
            Ok(Err(StoreError::OutcomeUnknown { .. } | StoreError::Locked { .. } | StoreError::Closed { .. }))
            | Err(CallError::Interrupted | CallError::Timeout | CallError::Busy) => {
                if let Some(down) = self.environment.store.down() {
                    return self.store_failed(&WireError::from(CallError::Down(down)), context);
                }
                self.store_again_after(STORE_AGAIN, context);
            }
            Ok(Err(error)) => self.store_failed(&error.to_wire(), context),
            Err(error @ (CallError::Down(_) | CallError::Stopped)) => {
                self.store_failed(&WireError::from(error), context)
            }
        }
    }

    pub(super) fn store_again(&mut self, context: &Context<SessionMessage>) {
        if let Some((end, row)) = self.owed.take() {
            let now_ms = self.now_ms();
            if let Some(end) = end {
                self.journal.end(end, now_ms);
            }
            if !row.is_empty() {
                self.journal.row(row, now_ms);
            }
        }
        if let Some(change) = self.journal.again() {
            self.send_change(change, context);
        }
    }

    fn change_is_stored(&mut self) {
        let Some(stored) = self.journal.stored() else { return };
        self.row.update_count = self.journal.stored_seq();
        for update in &stored.change.updates {
            // Nobody attached is no error.
            let _unseen = self.live.send(Arc::new(update.clone()));
        }
        for then in stored.then {
            self.run_then(then, None);
        }
    }

    /// The store refused: nothing that is not on disk is shown to anyone, the turn fails, and its client is told why.
    fn store_failed(&mut self, error: &WireError, context: &Context<SessionMessage>) {
        tracing::error!(session = %self.row.session_id, %error, "the session's history can't be stored");
        let object = acp_error(error, Some(&self.session_id()));
        let Abandoned { then, end, unbegun, row } = self.journal.abandon();
        self.cancel_agent_turn();
        for then in then {
            self.run_then(then, Some(&object));
        }
        let end = self.fail_turn(&object).or(end).filter(|end| unbegun.is_none_or(|number| end.number < number));
        if let Some(number) = unbegun {
            // Its number is free again: it never was a turn.
            self.row.turn_count = number - 1;
        }
        let after_seq = self.journal.stored_seq();
        for prompt in self.waiting.drain(..) {
            prompt.reply.send(PromptDone { after_seq, outcome: Err(object.clone()) });
        }
        if end.is_some() || !row.is_empty() {
            self.owed = Some((end, row));
            self.store_again_after(STORE_OWED, context);
        }
    }

    fn store_again_after(&self, pause: Duration, context: &Context<SessionMessage>) {
        let reporter = context.reporter();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            // A session that ended meanwhile has nothing left to store.
            let _ended = reporter.report(SessionMessage::StoreAgain);
        });
    }

    fn run_then(&mut self, then: Then, failed: Option<&ErrorObject>) {
        let after_seq = self.journal.stored_seq();
        match (then, failed) {
            (Then::PromptAgent { number }, None) => self.prompt_agent(number),
            (Then::PromptAgent { .. }, Some(_)) => {}
            (Then::AnswerPrompt { reply, outcome }, None) => reply.send(PromptDone { after_seq, outcome }),
            (Then::AnswerPrompt { reply, .. }, Some(error)) => {
                reply.send(PromptDone { after_seq, outcome: Err(error.clone()) });
            }
            (Then::AnswerOpen, failed) => {
                for reply in self.opening.drain(..) {
                    reply.send(failed.map_or_else(|| Ok(self.row.clone()), |error| Err(error.clone())));
                }
            }
            (Then::AnswerClose, failed) => {
                for reply in self.closing.drain(..) {
                    reply.send(failed.map_or(Ok(()), |error| Err(error.clone())));
                }
            }
        }
    }

    /// Settles everything for the end of the daemon: the turn is interrupted, its end is on disk, the agent is gone.
    pub(super) async fn shut_down(mut self) {
        self.end_turn_without_agent("the daemon was stopped");
        let error = not_now(ErrorKind::Stopping, "the daemon is stopping; the session can be resumed", None);
        self.agent_failed(&BringUpError(error));
        while let Some(change) = self.journal.again().or_else(|| self.journal.next()) {
            let (reply, answer) = Reply::oneshot();
            if self.environment.store.record(change, reply).await.is_err() {
                break;
            }
            match answer.await {
                Ok(Ok(())) => self.change_is_stored(),
                Ok(Err(error)) => {
                    tracing::error!(session = %self.row.session_id, %error, "the session's last updates were not stored");
                    break;
                }
                // Interrupted: the store may be restarting; the change is safe to send again.
                Err(_dropped) => {}
            }
        }
        if let Agent::Ready(ready) = &self.agent {
            bring_up::end(&ready.adapter).await;
        }
    }
}
