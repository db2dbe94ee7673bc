//! The agent's process in a session's life: started when it is needed, kept while it is used, ended with the session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::acp::errors::not_now;
use holdfast_protocol::error::{ErrorKind, ErrorObject};
use holdfast_stores::acp_sessions::{AcpSessionStatus, RowChange};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::bring_up::{self, BringUpError, BroughtUp, How, Wanted};
use super::state::{Agent, ReadyAgent, Replay, SessionState, Then};
use super::turn::Turn;
use super::{Cancelled, PromptDone, SessionMessage, SessionSink};
use crate::reply::Reply;
use crate::surface::Context;

/// How long an agent must be silent after a load before its replay counts as over; some replay after their answer.
const REPLAY_QUIET: Duration = Duration::from_millis(250);
/// After this long a replay counts as over whatever comes.
const REPLAY_MAX: Duration = Duration::from_secs(10);

impl SessionState {
    /// Starts an agent unless one runs, starts or ends.
    pub(super) fn need_agent(&mut self, context: &Context<SessionMessage>) {
        if !matches!(self.agent, Agent::Gone) {
            return;
        }
        let new_params = match RawValue::from_string(self.row.new_params.clone()) {
            Ok(params) => params,
            Err(error) => return self.agent_failed(&damaged_params(&error)),
        };
        self.agent = Agent::Starting;
        self.epoch += 1;
        let epoch = self.epoch;
        let wanted = Wanted {
            session_id: Some(self.row.session_id),
            agent: self.row.agent_id.clone(),
            cwd: PathBuf::from(&self.row.cwd),
            new_params,
            agent_session_id: self.row.agent_session_id.clone(),
        };
        let (break_off, broken_off) = oneshot::channel();
        self.break_off_start = Some(break_off);
        let environment = Arc::clone(&self.environment);
        let sink = SessionSink { session: context.address().clone(), epoch };
        let reporter = context.reporter();
        tokio::spawn(async move {
            let outcome = Box::new(bring_up::bring_up(&environment, wanted, sink, broken_off).await);
            if let Err(SessionMessage::BroughtUp { outcome, .. }) =
                reporter.report(SessionMessage::BroughtUp { epoch, outcome })
                && let Ok(brought_up) = *outcome
            {
                // The session ended meanwhile; its agent must not outlive it.
                bring_up::end(&brought_up.adapter).await;
            }
        });
    }

    pub(super) fn brought_up(
        &mut self,
        epoch: u64,
        outcome: Result<BroughtUp, BringUpError>,
        context: &Context<SessionMessage>,
    ) {
        if epoch != self.epoch {
            return;
        }
        self.break_off_start = None;
        match (outcome, &self.agent) {
            (Ok(brought_up), Agent::Starting) => self.agent_ready(brought_up, context),
            (Ok(brought_up), _) => {
                self.report_ended(async move { bring_up::end(&brought_up.adapter).await }, context);
            }
            (Err(error), agent) => {
                let broken_off = matches!(agent, Agent::Ending);
                self.agent = Agent::Gone;
                self.agent_failed(&error);
                if broken_off {
                    self.finish_close();
                }
            }
        }
    }

    fn agent_ready(&mut self, brought_up: BroughtUp, context: &Context<SessionMessage>) {
        let BroughtUp { adapter, capabilities, settings, agent_session_id, setup, how } = brought_up;
        // Some agents replay after a resume as well, and some only behind their answer.
        let may_replay = matches!(how, How::Loaded | How::Resumed);
        let replay = may_replay.then(|| Replay { since: Instant::now(), seen: 0 });
        if replay.is_some() {
            self.await_quiet(0, context);
        }
        let now_ms = self.now_ms();
        let new = self.row.status == AcpSessionStatus::Starting;
        self.row.agent_session_id = Some(agent_session_id.clone());
        self.row.setup = Some(setup.get().to_owned());
        self.row.status = AcpSessionStatus::Active;
        self.journal.row(
            RowChange {
                agent_session_id: Some(agent_session_id.clone()),
                setup: Some(setup.get().to_owned()),
                title: None,
                status: Some(AcpSessionStatus::Active),
            },
            now_ms,
        );
        if new {
            self.after_storing(Then::AnswerOpen);
        }
        self.agent = Agent::Ready(Box::new(ReadyAgent {
            adapter,
            capabilities,
            settings,
            session_id: agent_session_id,
            replay,
            reporter: context.reporter(),
        }));
        if how == How::Replaced {
            self.primer_due = true;
            self.tell_replaced();
        }
    }

    /// Everybody who waits for an agent learns that there is none.
    pub(super) fn agent_failed(&mut self, error: &BringUpError) {
        tracing::warn!(session = %self.row.session_id, agent = %self.row.agent_id, error = error.0.message, "agent is not available");
        for reply in self.opening.drain(..) {
            reply.send(Err(error.0.clone()));
        }
        if self.row.status == AcpSessionStatus::Starting {
            self.row.status = AcpSessionStatus::Failed;
            let change = RowChange { status: Some(AcpSessionStatus::Failed), ..RowChange::default() };
            self.journal.row(change, self.now_ms());
        }
        for forward in self.forwards.drain(..) {
            forward.reply.send(Err(error.0.clone()));
        }
        let after_seq = self.journal.stored_seq();
        for prompt in self.waiting.drain(..) {
            prompt.reply.send(PromptDone { after_seq, outcome: Err(error.0.clone()) });
        }
    }

    fn await_quiet(&self, seen: u64, context: &Context<SessionMessage>) {
        let reporter = context.reporter();
        let epoch = self.epoch;
        tokio::spawn(async move {
            tokio::time::sleep(REPLAY_QUIET).await;
            // A session that has ended waits for nothing.
            let _ended = reporter.report(SessionMessage::ReplayQuiet { epoch, seen });
        });
    }

    pub(super) fn replay_quiet(&mut self, epoch: u64, seen: u64, context: &Context<SessionMessage>) {
        if epoch != self.epoch {
            return;
        }
        let Agent::Ready(ready) = &mut self.agent else { return };
        let Some(replay) = &ready.replay else { return };
        let now_seen = replay.seen;
        if now_seen == seen || replay.since.elapsed() >= REPLAY_MAX {
            ready.replay = None;
        } else {
            self.await_quiet(now_seen, context);
        }
    }

    pub(super) fn close(&mut self, reply: Reply<Result<(), ErrorObject>>, context: &Context<SessionMessage>) {
        let first = self.closing.is_empty();
        self.closing.push(reply);
        if !first {
            return;
        }
        self.cancel(&Cancelled::All);
        match std::mem::replace(&mut self.agent, Agent::Ending) {
            Agent::Ready(ready) => {
                let turn_ended = self.turn.as_mut().map(Turn::await_end);
                let ending = super::turn::close_agent(*ready, turn_ended);
                self.report_ended(ending, context);
            }
            // The start is broken off and reports when nothing of it is left; what is ending already reports, too.
            Agent::Starting => self.break_off_start = None,
            Agent::Ending => {}
            Agent::Gone => {
                self.agent = Agent::Gone;
                self.finish_close();
            }
        }
    }

    pub(super) fn report_ended(
        &self,
        ending: impl Future<Output = ()> + Send + 'static,
        context: &Context<SessionMessage>,
    ) {
        let reporter = context.reporter();
        let epoch = self.epoch;
        tokio::spawn(async move {
            ending.await;
            // A session that ended meanwhile has nothing left to do.
            let _ended = reporter.report(SessionMessage::AgentEnded { epoch });
        });
    }

    pub(super) fn agent_ended(&mut self, epoch: u64) {
        if epoch != self.epoch || !matches!(self.agent, Agent::Ending) {
            return;
        }
        self.agent = Agent::Gone;
        self.withdraw_all_questions();
        self.end_turn_without_agent("the agent was ended");
        if !self.closing.is_empty() {
            self.finish_close();
        }
    }

    pub(super) fn finish_close(&mut self) {
        self.row.status = AcpSessionStatus::Closed;
        let change = RowChange { status: Some(AcpSessionStatus::Closed), ..RowChange::default() };
        self.journal.row(change, self.now_ms());
        self.after_storing(Then::AnswerClose);
    }
}

fn damaged_params(error: &serde_json::Error) -> BringUpError {
    BringUpError(not_now(ErrorKind::Damaged, format!("the session's stored parameters are damaged: {error}"), None))
}
