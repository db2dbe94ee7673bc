//! Prompts, one turn at a time, and how a turn ends.

use std::time::Duration;

use holdfast_protocol::acp::edit::set_member;
use holdfast_protocol::acp::errors::{acp_error, not_now, session_not_found};
use holdfast_protocol::acp::prompt::{
    parse_prompt_result, prompt_blocks, prompt_text, update_params, user_message_chunk,
};
use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids};
use holdfast_protocol::acp::{errors, method};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::ids::TurnId;
use holdfast_protocol::raw;
use holdfast_stores::acp_sessions::{RowChange, TurnEnd, TurnOutcome};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::journal::What;
use super::state::{Agent, ReadyAgent, SessionState, TITLE_CHARS, Then};
use super::{Asker, Cancelled, ClientId, PromptDone, SessionMessage};
use crate::acp::adapter::{AdapterError, AdapterMessage, AgentAnswer};
use crate::acp::feed::FeedCommand;
use crate::acp::session::bring_up;
use crate::address::Address;
use crate::reply::Reply;
use crate::surface::Context;
use holdfast_protocol::acp::open_calls::OpenCalls;

/// Prompts that may wait in one session.
const WAITING_MAX: usize = 64;
/// How long an agent may take over a cancelled turn before a close goes on without it.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How long an agent may take over `session/close` before it is ended without.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Requests passed on for a client.
const FORWARD_LIMIT: Duration = Duration::from_secs(180);

/// A prompt that waits for its turn.
pub(super) struct Prompt {
    pub(super) asker: Option<Asker>,
    pub(super) params: Box<RawValue>,
    pub(super) reply: Reply<PromptDone>,
}

/// The turn that runs.
pub(super) struct Turn {
    pub(super) number: i64,
    asker: Option<Asker>,
    params: Box<RawValue>,
    reply: Reply<PromptDone>,
    open_calls: OpenCalls,
    /// The agent was asked; until then a cancel needs no word to it.
    prompted: bool,
    cancelled: bool,
    /// Why it fails though the agent goes on.
    lost: Option<String>,
    ended: Option<oneshot::Sender<()>>,
}

impl Turn {
    /// Returns what resolves when the turn has ended.
    pub(super) fn await_end(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.ended = Some(sender);
        receiver
    }

    /// Returns the client that asked for it.
    pub(super) fn asker(&self) -> Option<ClientId> {
        self.asker.as_ref().map(|asker| asker.client)
    }

    pub(super) fn saw(&mut self, params: &RawValue) {
        self.open_calls.saw(params);
    }
}

impl SessionState {
    pub(super) fn prompt(&mut self, asker: Option<Asker>, params: Box<RawValue>, reply: Reply<PromptDone>) {
        if self.waiting.len() >= WAITING_MAX {
            let error = not_now(ErrorKind::Busy, format!("{WAITING_MAX} prompts wait in this session"), Some(1_000));
            return reply.send(PromptDone { after_seq: self.journal.stored_seq(), outcome: Err(error) });
        }
        self.waiting.push_back(Prompt { asker, params, reply });
    }

    /// Records the next prompt. The agent gets it once it is on disk.
    pub(super) fn begin_next_turn(&mut self, context: &Context<SessionMessage>) {
        if self.turn.is_some() || !self.accepts_turns() {
            return;
        }
        let Some(Prompt { asker, params, reply }) = self.waiting.pop_front() else { return };
        let now_ms = self.now_ms();
        let number = self.row.turn_count + 1;
        self.row.turn_count = number;
        let turn_id = TurnId(context.ports.ids.uuid_v7());
        let boot_id = self.environment.boot_id.clone();
        self.journal.begin(number, turn_id, params.get().to_owned(), boot_id, now_ms);
        let client = asker.as_ref().map(|asker| asker.client);
        self.record_user_message(&params, number, client, now_ms);
        self.name_after(&params, now_ms);
        self.turn = Some(Turn {
            number,
            asker,
            params,
            reply,
            open_calls: OpenCalls::default(),
            prompted: false,
            cancelled: false,
            lost: None,
            ended: None,
        });
        self.after_storing(Then::PromptAgent { number });
    }

    fn record_user_message(&mut self, params: &RawValue, number: i64, client: Option<ClientId>, now_ms: i64) {
        let session_id = self.session_id();
        let blocks: Vec<String> = prompt_blocks(params).map(|block| user_message_chunk(block, None)).collect();
        for update in blocks {
            // Blocks of a prompt that was JSON make updates that are JSON.
            let Ok(update) = update_params(&session_id, &update) else { continue };
            let seq = self.journal.update(
                Some(number),
                What::Update("user_message_chunk"),
                update.get().to_owned(),
                now_ms,
                (None, None),
            );
            if let Some(client) = client.and_then(|client| self.clients.get(&client)) {
                // A feed that has ended needs no instructions.
                let _gone = client.feed.send(FeedCommand::Skip { seq });
            }
        }
    }

    fn name_after(&mut self, params: &RawValue, now_ms: i64) {
        if self.row.title.is_some() {
            return;
        }
        let text = prompt_text(params);
        let Some(line) = text.lines().map(str::trim).find(|line| !line.is_empty()) else { return };
        let title: String = line.chars().take(TITLE_CHARS).collect();
        self.row.title = Some(title.clone());
        self.journal.row(RowChange { title: Some(title), ..RowChange::default() }, now_ms);
    }

    /// Sends the recorded prompt to the agent, unless the turn was cancelled or the agent went meanwhile.
    pub(super) fn prompt_agent(&mut self, number: i64) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.number == number) else { return };
        if turn.cancelled {
            return self.settle_turn(TurnOutcome::Cancelled, Ok(cancelled_result()), None);
        }
        let Agent::Ready(ready) = &self.agent else {
            return self.end_turn_without_agent("the agent ended before it got the prompt");
        };
        turn.prompted = true;
        let primer = std::mem::take(&mut self.primer_due).then_some(self.row.row_id);
        let store = self.environment.store.clone();
        let adapter = ready.adapter.clone();
        let params = turn.params.clone();
        let agent_session_id = ready.session_id.clone();
        let reporter = ready.reporter.clone();
        let before_seq = self.journal.last_seq();
        tokio::spawn(async move {
            let params = match primer {
                Some(row_id) => super::primer::with_primer(&store, row_id, before_seq, params).await,
                None => params,
            };
            let answer = match set_member(&params, &["sessionId"], &raw::quote(&agent_session_id)) {
                Ok(params) => {
                    let request =
                        |reply| AdapterMessage::Request { method: method::SESSION_PROMPT.to_owned(), params, reply };
                    let asked = adapter.call_waiting(Duration::MAX, request).await;
                    asked.unwrap_or_else(|error| Err(AdapterError::Gone(error.to_string())))
                }
                Err(error) => Err(AdapterError::Agent(invalid_prompt(&error.to_string()))),
            };
            // A session that ended meanwhile has recorded the turn's end itself.
            let _ended = reporter.report(SessionMessage::TurnAnswered { number, answer });
        });
    }

    pub(super) fn turn_answered(&mut self, number: i64, answer: AgentAnswer) {
        if self.turn.as_ref().is_none_or(|turn| turn.number != number) || self.settle_lost() {
            return;
        }
        let Some(turn) = &self.turn else { return };
        match answer {
            Ok(result) => {
                let outcome = match parse_prompt_result(&result).stop_reason.as_ref().map(|reason| reason.name()) {
                    Some("cancelled") => TurnOutcome::Cancelled,
                    _ => TurnOutcome::Ended,
                };
                self.settle_turn(outcome, Ok(result), None);
            }
            // The protocol wants `cancelled`, never an error, after a cancel; not every agent keeps to it.
            Err(_) if turn.cancelled => self.settle_turn(TurnOutcome::Cancelled, Ok(cancelled_result()), None),
            Err(AdapterError::Agent(error)) => {
                let reason = error.message.clone();
                let told = self.normalise(error);
                self.settle_turn(TurnOutcome::Failed, Err(told), Some(reason));
            }
            Err(error @ (AdapterError::Gone(_) | AdapterError::Timeout { .. })) => {
                self.end_turn_without_agent(&error.to_string());
            }
        }
    }

    /// What a client is told of an agent's error: codes that make clients start a new session without a word are
    /// replaced, since the session is here whatever the agent says.
    fn normalise(&self, error: ErrorObject) -> ErrorObject {
        match error.code {
            errors::AUTH_REQUIRED | errors::REQUEST_CANCELLED => error,
            _ => not_now(ErrorKind::AgentFailed, format!("the agent failed: {}", error.message), None),
        }
    }

    /// Ends the turn, if one runs, because something the agent said in it could not be taken: what is stored of it has a
    /// gap, and nobody is told otherwise.
    ///
    /// It ends when the agent has heard of the cancel, so that nothing of it runs into the next one; an agent whose
    /// answer is what was lost is not waited for long.
    pub(super) fn turn_lost_a_message(&mut self, limit_bytes: usize) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.prompted && turn.lost.is_none()) else { return };
        turn.lost = Some(format!("the agent sent a message over the limit of {limit_bytes} bytes"));
        let number = turn.number;
        self.cancel_agent_turn();
        if let Agent::Ready(ready) = &self.agent {
            let reporter = ready.reporter.clone();
            tokio::spawn(async move {
                tokio::time::sleep(CANCEL_LIMIT).await;
                let error = AdapterError::Timeout { method: method::SESSION_PROMPT.to_owned(), limit: CANCEL_LIMIT };
                // A session that ended meanwhile has recorded the turn's end itself.
                let _ended = reporter.report(SessionMessage::TurnAnswered { number, answer: Err(error) });
            });
        }
    }

    /// Ends the turn as failed if something of it was lost; says whether it was.
    fn settle_lost(&mut self) -> bool {
        let Some(reason) = self.turn.as_mut().and_then(|turn| turn.lost.take()) else { return false };
        let told = not_now(ErrorKind::TooLarge, format!("the turn failed: {reason}"), None);
        self.settle_turn(TurnOutcome::Failed, Err(told), Some(reason));
        true
    }

    /// Ends the turn, if one runs, because its agent is not there any more.
    pub(super) fn end_turn_without_agent(&mut self, reason: &str) {
        if self.settle_lost() {
            return;
        }
        let Some(turn) = &self.turn else { return };
        if turn.cancelled {
            return self.settle_turn(TurnOutcome::Cancelled, Ok(cancelled_result()), None);
        }
        let told = not_now(ErrorKind::AgentFailed, format!("the turn was interrupted: {reason}"), None);
        self.settle_turn(TurnOutcome::Interrupted, Err(told), Some(reason.to_owned()));
    }

    /// Records the turn's end; whoever asked is answered once it is on disk.
    fn settle_turn(&mut self, outcome: TurnOutcome, answer: Result<Box<RawValue>, ErrorObject>, error: Option<String>) {
        let Some(mut turn) = self.turn.take() else { return };
        let now_ms = self.now_ms();
        if outcome != TurnOutcome::Ended {
            let reason = error.as_deref().unwrap_or("the turn was cancelled");
            self.close_open_calls(&mut turn, reason, now_ms);
        }
        self.journal.end(turn_end(turn.number, outcome, answer.as_deref().ok(), error), now_ms);
        self.row.turn_state = outcome.turn_state();
        self.withdraw_permissions();
        self.after_storing(Then::AnswerPrompt { reply: turn.reply, outcome: answer });
        if let Some(ended) = turn.ended {
            // A close that no longer waits goes on by itself.
            let _unheard = ended.send(());
        }
    }

    fn close_open_calls(&mut self, turn: &mut Turn, reason: &str, now_ms: i64) {
        for params in turn.open_calls.interrupt(&self.session_id(), reason) {
            self.journal.update(Some(turn.number), What::Update("tool_call_update"), params, now_ms, (None, None));
        }
    }

    /// Ends the turn in memory because the store refused it. Returns the end that the store is still owed.
    pub(super) fn fail_turn(&mut self, error: &ErrorObject) -> Option<TurnEnd> {
        let turn = self.turn.take()?;
        let after_seq = self.journal.stored_seq();
        turn.reply.send(PromptDone { after_seq, outcome: Err(error.clone()) });
        self.withdraw_permissions();
        self.row.turn_state = TurnOutcome::Failed.turn_state();
        Some(turn_end(turn.number, TurnOutcome::Failed, None, Some(error.message.clone())))
    }

    pub(super) fn cancel(&mut self, which: &Cancelled) {
        let is_meant = |asker: Option<&Asker>| match which {
            Cancelled::All => true,
            Cancelled::OfClient(client) => asker.is_some_and(|asker| asker.client == *client),
            Cancelled::One(one) => asker == Some(one),
        };
        let after_seq = self.journal.stored_seq();
        let (cancelled, kept): (Vec<Prompt>, Vec<Prompt>) =
            self.waiting.drain(..).partition(|prompt| is_meant(prompt.asker.as_ref()));
        self.waiting = kept.into();
        for prompt in cancelled {
            prompt.reply.send(PromptDone { after_seq, outcome: Ok(cancelled_result()) });
        }
        let Some(turn) = &self.turn else { return };
        // The turn of a client that has gone belongs to whoever is here.
        let is_left_behind = !turn.asker.as_ref().is_some_and(|asker| self.clients.contains_key(&asker.client));
        if is_meant(turn.asker.as_ref()) || (is_left_behind && matches!(which, Cancelled::OfClient(_))) {
            self.cancel_agent_turn();
        }
    }

    pub(super) fn turn_is_cancelled(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.cancelled)
    }

    /// Cancels the running turn: the agent is told once, and open questions are answered `cancelled`.
    pub(super) fn cancel_agent_turn(&mut self) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.cancelled) else { return };
        turn.cancelled = true;
        if !turn.prompted {
            return;
        }
        if let Agent::Ready(ready) = &self.agent {
            let params = session_params(&ready.session_id);
            // An agent that is gone has no turn left to cancel.
            let _gone =
                ready.adapter.tell_now(AdapterMessage::Notify { method: method::SESSION_CANCEL.to_owned(), params });
        }
        // Only now: an agent whose question is answered before it knows of the cancel goes on with its turn.
        self.cancel_permissions();
    }
}

fn turn_end(number: i64, outcome: TurnOutcome, result: Option<&RawValue>, error: Option<String>) -> TurnEnd {
    let stop_reason =
        result.and_then(|result| parse_prompt_result(result).stop_reason.map(|reason| reason.name().to_owned()));
    TurnEnd { number, outcome, stop_reason, result: result.map(|result| result.get().to_owned()), error }
}

fn cancelled_result() -> Box<RawValue> {
    known_json(r#"{"stopReason":"cancelled"}"#.to_owned())
}

fn session_params(agent_session_id: &str) -> Box<RawValue> {
    known_json(format!("{{\"sessionId\":{}}}", raw::quote(agent_session_id)))
}

/// Takes text that is JSON by its making.
fn known_json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn invalid_prompt(reason: &str) -> ErrorObject {
    WireError::new(ErrorKind::InvalidParams, format!("the prompt can't be read: {reason}")).to_object()
}

/// Ends the agent of a session that is closed: waits for the cancelled turn, asks it to close, ends its process. Each
/// step is bounded; none depends on the agent's answer.
pub(super) async fn close_agent(ready: ReadyAgent, turn_ended: Option<oneshot::Receiver<()>>) {
    if let Some(turn_ended) = turn_ended
        && tokio::time::timeout(CANCEL_LIMIT, turn_ended).await.is_err()
    {
        tracing::warn!("the agent did not end its cancelled turn in time");
    }
    if ready.capabilities.close {
        let params = session_params(&ready.session_id);
        if let Err(error) = bring_up::ask(&ready.adapter, method::SESSION_CLOSE, params, CLOSE_LIMIT).await {
            tracing::warn!(%error, "the agent did not close the session; it is ended all the same");
        }
    }
    bring_up::end(&ready.adapter).await;
}

/// Passes a client's request on: our session id becomes the agent's, and back in the answer.
pub(super) async fn ask_for_client(
    adapter: &Address<AdapterMessage>,
    method: &str,
    params: &RawValue,
    agent_session_id: &str,
    session_id: &str,
) -> Result<Box<RawValue>, ErrorObject> {
    let broken =
        |error: &dyn std::fmt::Display| acp_error(&WireError::new(ErrorKind::Internal, error.to_string()), None);
    let places = Places::of_method(method);
    let south = |id: &str| (id == session_id).then(|| agent_session_id.to_owned());
    let params = rewrite_session_ids(params, places, south)
        .map_err(|error| broken(&error))?
        .unwrap_or_else(|| params.to_owned());
    let result = match bring_up::ask(adapter, method, params, FORWARD_LIMIT).await {
        Ok(result) => result,
        Err(AdapterError::Agent(error)) if errors::is_unknown_session(&error) => {
            return Err(session_not_found(session_id));
        }
        Err(AdapterError::Agent(error)) => return Err(error),
        Err(error) => return Err(not_now(ErrorKind::AgentFailed, error.to_string(), None)),
    };
    let north = |id: &str| (id == agent_session_id).then(|| session_id.to_owned());
    Ok(rewrite_session_ids(&result, places, north).map_err(|error| broken(&error))?.unwrap_or(result))
}
