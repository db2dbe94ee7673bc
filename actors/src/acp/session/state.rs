//! What a live session holds in memory, and how it moves on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use holdfast_protocol::acp::capabilities::AgentCapabilities;
use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids};
use holdfast_protocol::error::ErrorObject;
use holdfast_stores::acp_sessions::{AcpSessionRow, AcpSessionStatus, AcpUpdate, RowChange, TurnEnd};
use serde_json::value::RawValue;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::bring_up;
use super::journal::Journal;
use super::questions::Question;
use super::turn::{Prompt, Turn};
use super::{Attached, ClientId, PromptDone, SessionMessage};
use crate::acp::adapter::AdapterMessage;
use crate::acp::environment::{AgentSettings, Environment};
use crate::acp::feed::FeedCommand;
use crate::address::Address;
use crate::reply::Reply;
use crate::surface::{Context, Reporter};

/// Live updates kept for clients that are a little behind; one further behind reads the store.
const LIVE_BUFFER: usize = 1_024;
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
    pub(super) opening: Vec<Reply<Result<AcpSessionRow, ErrorObject>>>,
    pub(super) forwards: Vec<Forward>,
    pub(super) closing: Vec<Reply<Result<(), ErrorObject>>>,
    /// Dropped to break off the start of an agent.
    pub(super) break_off_start: Option<oneshot::Sender<()>>,
    /// What the store refused but must have: it is offered again until the store takes it.
    pub(super) owed: Option<(Option<TurnEnd>, RowChange)>,
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
pub(super) struct Forward {
    method: String,
    params: Box<RawValue>,
    pub(super) reply: Reply<Result<Box<RawValue>, ErrorObject>>,
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
        self.settle_unanswerable();
    }

    pub(super) fn forward(
        &mut self,
        method: String,
        params: Box<RawValue>,
        reply: Reply<Result<Box<RawValue>, ErrorObject>>,
    ) {
        self.forwards.push(Forward { method, params, reply });
    }

    pub(super) fn notify(&self, method: String, params: &RawValue) {
        let Agent::Ready(ready) = &self.agent else {
            return tracing::debug!(method, "no agent has the session now; it is not told");
        };
        let own_id = self.session_id();
        let south = |id: &str| (id == own_id).then(|| ready.session_id.clone());
        match rewrite_session_ids(params, Places::TopLevel, south) {
            Ok(rewritten) => {
                let params = rewritten.unwrap_or_else(|| params.to_owned());
                // An agent that is gone is told nothing.
                let _gone = ready.adapter.tell_now(AdapterMessage::Notify { method, params });
            }
            Err(error) => tracing::warn!(%error, method, "a client sent a notification that can't be read"),
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
