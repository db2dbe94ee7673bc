//! What a live session holds in memory, and how it moves on.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::acp::capabilities::AgentCapabilities;
use holdfast_protocol::acp::errors::{acp_error, not_now};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_stores::acp_sessions::{AcpSessionRow, AcpSessionStatus, AcpUpdate, RowChange, TurnEnd};
use holdfast_stores::kit::StoreError;
use serde_json::value::RawValue;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::bring_up::{self, BringUpError, BroughtUp, How, Wanted};
use super::journal::{Abandoned, Journal};
use super::questions::Question;
use super::turn::{Prompt, Turn};
use super::{Attached, ClientId, PromptDone, SessionMessage, SessionSink};
use crate::acp::adapter::AdapterMessage;
use crate::acp::environment::{AgentSettings, Environment};
use crate::acp::feed::FeedCommand;
use crate::address::{Address, CallError};
use crate::reply::Reply;
use crate::surface::{Context, Reporter};

/// Live updates kept for clients that are a little behind; one further behind reads the store.
const LIVE_BUFFER: usize = 1_024;
/// How long a store whose last answer was lost is given before the change is sent again.
const STORE_AGAIN: Duration = Duration::from_millis(200);
/// How long a store that refused is given before it is offered what it must have.
const STORE_OWED: Duration = Duration::from_secs(1);
/// How long an agent must be silent after a load before its replay counts as over; some replay after their answer.
const REPLAY_QUIET: Duration = Duration::from_millis(250);
/// After this long a replay counts as over whatever comes.
const REPLAY_MAX: Duration = Duration::from_secs(10);
/// How long a session without agent, clients and turns stays in memory.
const LINGER_MS: i64 = 60_000;
/// How much of the first prompt becomes the title.
pub(super) const TITLE_CHARS: usize = 80;

/// What a live session holds. Everything that must not be lost is in the store, or on its way there in `journal`.
pub struct SessionState {
    pub(super) environment: Arc<Environment>,
    pub(super) row: AcpSessionRow,
    pub(super) journal: Journal<Then>,
    pub(super) live: broadcast::Sender<Arc<AcpUpdate>>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    pub(super) agent: Agent,
    /// Counts the starts of the adapter, so that news of an earlier one is told from news of this one.
    pub(super) epoch: u64,
    pub(super) waiting: VecDeque<Prompt>,
    pub(super) turn: Option<Turn>,
    pub(super) questions: BTreeMap<u64, Question>,
    pub(super) next_question: u64,
    opening: Vec<Reply<Result<AcpSessionRow, ErrorObject>>>,
    forwards: Vec<Forward>,
    closing: Vec<Reply<Result<(), ErrorObject>>>,
    /// Dropped to break off the start of an agent.
    break_off_start: Option<oneshot::Sender<()>>,
    /// What the store refused but must have: it is offered again until the store takes it.
    owed: Option<(Option<TurnEnd>, RowChange)>,
    /// Counts what happens, so that an idle timer knows whether anything did.
    activity: u64,
    idle_timer_for: Option<u64>,
    /// What to tell a replaced agent before the next prompt.
    pub(super) primer_due: bool,
}

/// A client that is attached.
pub(super) struct Client {
    pub(super) feed: mpsc::UnboundedSender<FeedCommand>,
}

/// The agent's process.
pub(super) enum Agent {
    /// None runs.
    Gone,
    /// One starts.
    Starting,
    /// One has the session; while it replays what it remembers, that is dropped.
    Ready(Box<ReadyAgent>),
    /// It is being ended; the next one waits until nothing of it is left.
    Ending,
}

/// An agent that has the session.
pub(super) struct ReadyAgent {
    pub(super) adapter: Address<AdapterMessage>,
    pub(super) capabilities: AgentCapabilities,
    pub(super) settings: AgentSettings,
    pub(super) session_id: String,
    pub(super) replay: Option<Replay>,
    pub(super) reporter: Reporter<SessionMessage>,
}

/// A replay that is not over.
pub(super) struct Replay {
    pub(super) since: Instant,
    pub(super) seen: u64,
}

/// A request to be passed on once an agent is there.
struct Forward {
    method: String,
    params: Box<RawValue>,
    reply: Reply<Result<Box<RawValue>, ErrorObject>>,
}

/// What is done once something is on disk.
pub(super) enum Then {
    /// The turn's beginning is there: prompt the agent.
    PromptAgent { number: i64 },
    /// The turn's end is there: answer whoever asked.
    AnswerPrompt { reply: Reply<PromptDone>, outcome: Result<Box<RawValue>, ErrorObject> },
    /// The agent's session is there: answer `session/new`.
    AnswerOpen,
    /// The close is there.
    AnswerClose,
}

impl SessionState {
    pub(super) fn new(environment: Arc<Environment>, row: AcpSessionRow) -> Self {
        Self {
            environment,
            journal: Journal::new(row.row_id, row.update_count),
            row,
            live: broadcast::Sender::new(LIVE_BUFFER),
            clients: BTreeMap::new(),
            agent: Agent::Gone,
            epoch: 0,
            waiting: VecDeque::new(),
            turn: None,
            questions: BTreeMap::new(),
            next_question: 1,
            opening: Vec::new(),
            forwards: Vec::new(),
            closing: Vec::new(),
            break_off_start: None,
            owed: None,
            activity: 0,
            idle_timer_for: None,
            primer_due: false,
        }
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.environment.ports.clock.now_ms()
    }

    /// Whether a new turn may begin.
    pub(super) fn accepts_turns(&self) -> bool {
        self.closing.is_empty() && self.owed.is_none()
    }

    /// The agent's process, while it has the session.
    pub(super) fn adapter(&self) -> Option<&Address<AdapterMessage>> {
        match &self.agent {
            Agent::Ready(ready) => Some(&ready.adapter),
            Agent::Gone | Agent::Starting | Agent::Ending => None,
        }
    }

    /// Our session id as text.
    pub(super) fn session_id(&self) -> String {
        self.row.session_id.to_string()
    }

    pub(super) fn open(&mut self, reply: Reply<Result<AcpSessionRow, ErrorObject>>) {
        if self.row.status != AcpSessionStatus::Starting {
            return reply.send(Ok(self.row.clone()));
        }
        self.opening.push(reply);
    }

    pub(super) fn attach(
        &mut self,
        client: ClientId,
        feed: mpsc::UnboundedSender<FeedCommand>,
        reply: Reply<Attached>,
    ) {
        let live = self.live.subscribe();
        reply.send(Attached { row: self.row.clone(), stored_seq: self.journal.stored_seq(), live });
        self.clients.insert(client, Client { feed });
        self.offer_questions(client);
    }

    pub(super) fn detach(&mut self, client: ClientId) {
        self.clients.remove(&client);
        if self.clients.is_empty() {
            self.nobody_attached();
        }
    }

    pub(super) fn forward(
        &mut self,
        method: String,
        params: Box<RawValue>,
        reply: Reply<Result<Box<RawValue>, ErrorObject>>,
    ) {
        self.forwards.push(Forward { method, params, reply });
    }

    /// Starts an agent unless one runs, starts or ends.
    fn need_agent(&mut self, context: &Context<SessionMessage>) {
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
        let replay = (how == How::Loaded).then(|| Replay { since: Instant::now(), seen: 0 });
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
    fn agent_failed(&mut self, error: &BringUpError) {
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

    /// Does what can be done now: pass requests on, begin the next turn, store what waits, let go of what is idle.
    pub(super) fn go_on(&mut self, context: &Context<SessionMessage>) {
        self.activity += 1;
        let wanted = !self.waiting.is_empty() || !self.forwards.is_empty() || !self.opening.is_empty();
        if wanted && self.closing.is_empty() {
            self.need_agent(context);
        }
        if let Agent::Ready(ready) = &self.agent
            && ready.replay.is_none()
        {
            for forward in self.forwards.drain(..) {
                pass_on(forward, ready, &self.row);
            }
            self.begin_next_turn(context);
        }
        self.store_next(context);
        self.watch_idle(context);
    }

    pub(super) fn after_storing(&mut self, then: Then) {
        if let Some(now) = self.journal.then(then) {
            self.run_then(now, None);
        }
    }

    fn store_next(&mut self, context: &Context<SessionMessage>) {
        if let Some(change) = self.journal.next() {
            self.send_change(change, context);
        }
    }

    fn send_change(
        &self,
        change: Arc<holdfast_stores::acp_sessions::SessionChange>,
        context: &Context<SessionMessage>,
    ) {
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
        let Abandoned { then, end, row } = self.journal.abandon();
        self.cancel_agent_turn();
        for then in then {
            self.run_then(then, Some(&object));
        }
        let end = self.fail_turn(&object).or(end);
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

    pub(super) fn close(&mut self, reply: Reply<Result<(), ErrorObject>>, context: &Context<SessionMessage>) {
        let first = self.closing.is_empty();
        self.closing.push(reply);
        if !first {
            return;
        }
        self.cancel(None);
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

    fn report_ended(&self, ending: impl Future<Output = ()> + Send + 'static, context: &Context<SessionMessage>) {
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
        self.end_turn_without_agent("the agent was ended");
        if !self.closing.is_empty() {
            self.finish_close();
        }
    }

    fn finish_close(&mut self) {
        self.row.status = AcpSessionStatus::Closed;
        let change = RowChange { status: Some(AcpSessionStatus::Closed), ..RowChange::default() };
        self.journal.row(change, self.now_ms());
        self.after_storing(Then::AnswerClose);
    }

    fn watch_idle(&mut self, context: &Context<SessionMessage>) {
        let timeout_ms = match &self.agent {
            Agent::Ready(ready) => ready.settings.idle_timeout_ms,
            Agent::Gone => LINGER_MS,
            Agent::Starting | Agent::Ending => return,
        };
        if self.is_busy() || self.idle_timer_for.is_some() {
            return;
        }
        let activity = self.activity;
        self.idle_timer_for = Some(activity);
        let clock = Arc::clone(&self.environment.ports.clock);
        let due_ms = clock.now_ms().saturating_add(timeout_ms);
        let reporter = context.reporter();
        tokio::spawn(async move {
            clock.wait_until(due_ms).await;
            // A session that has ended is as idle as can be.
            let _ended = reporter.report(SessionMessage::IdleDue { activity });
        });
    }

    fn is_busy(&self) -> bool {
        self.turn.is_some()
            || !self.waiting.is_empty()
            || !self.journal.is_empty()
            || !self.closing.is_empty()
            || !self.forwards.is_empty()
            || !self.questions.is_empty()
    }

    pub(super) fn idle_due(&mut self, activity: u64, context: &Context<SessionMessage>) {
        if self.idle_timer_for != Some(activity) {
            return;
        }
        self.idle_timer_for = None;
        if activity != self.activity || self.is_busy() {
            return;
        }
        match &self.agent {
            Agent::Ready(ready) => {
                tracing::info!(session = %self.row.session_id, "the agent was idle and is ended; the session stays");
                let adapter = ready.adapter.clone();
                self.agent = Agent::Ending;
                self.report_ended(async move { bring_up::end(&adapter).await }, context);
            }
            Agent::Gone if self.clients.is_empty() => context.stop_self(),
            Agent::Gone | Agent::Starting | Agent::Ending => {}
        }
    }

    /// Settles everything for the end of the daemon: the turn is interrupted, its end is on disk, the agent is gone.
    pub(super) async fn shut_down(mut self) {
        self.end_turn_without_agent("the daemon was stopped");
        let error = not_now(ErrorKind::Stopping, "the daemon is stopping; the session can be resumed", None);
        self.agent_failed(&BringUpError(error));
        loop {
            let Some(change) = self.journal.again().or_else(|| self.journal.next()) else { break };
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

fn damaged_params(error: &serde_json::Error) -> BringUpError {
    BringUpError(not_now(ErrorKind::Damaged, format!("the session's stored parameters are damaged: {error}"), None))
}

fn pass_on(forward: Forward, ready: &ReadyAgent, row: &AcpSessionRow) {
    let Forward { method, params, reply } = forward;
    let adapter = ready.adapter.clone();
    let agent_session_id = ready.session_id.clone();
    let session_id = row.session_id.to_string();
    tokio::spawn(async move {
        let outcome = super::turn::ask_for_client(&adapter, &method, &params, &agent_session_id, &session_id).await;
        reply.send(outcome);
    });
}
