//! What the agent says by itself, and its end.

use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids};
use holdfast_protocol::acp::update::{UpdateKind, parse_update};
use holdfast_protocol::acp::{errors, method};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::jsonrpc::OwnedId;
use holdfast_stores::acp_sessions::RowChange;
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;

use super::state::{Agent, SessionState};
use crate::acp::adapter::{AdapterMessage, FromAgent};
use crate::reply::Reply;

impl SessionState {
    pub(super) fn said(&mut self, said: FromAgent, epoch: u64, stored: Reply<()>) {
        if epoch != self.epoch {
            return;
        }
        match said {
            FromAgent::Notification { method, params: Some(params), bytes } => {
                self.notified(&method, &params, stored, bytes);
            }
            FromAgent::Notification { method, params: None, .. } => {
                tracing::debug!(method, "the agent sent a notification without params; it is ignored");
            }
            FromAgent::Request { id, method, params } => self.requested(id, &method, params),
            FromAgent::TooLong { limit_bytes } => {
                let reason = format!("the agent sent a message over the limit of {limit_bytes} bytes");
                self.cancel_agent_turn();
                self.end_turn_failed(&reason);
            }
            FromAgent::Exited { how } => self.agent_exited(&how),
        }
    }

    fn notified(&mut self, name: &str, params: &RawValue, stored: Reply<()>, bytes: OwnedSemaphorePermit) {
        if let Agent::Ready(ready) = &mut self.agent
            && let Some(replay) = &mut ready.replay
        {
            // What an agent replays is its memory; ours is the history.
            replay.seen += 1;
            return;
        }
        if matches!(self.agent, Agent::Starting) && self.row.agent_session_id.is_some() {
            // Replayed before its answer to load.
            return;
        }
        let own_id = self.session_id();
        let agent_id = self.agent_session_id();
        let ours = |id: &str| agent_id.as_deref().is_none_or(|agent_id| id == agent_id).then(|| own_id.clone());
        let rewritten = match rewrite_session_ids(params, Places::of_method(name), ours) {
            Ok(rewritten) => rewritten,
            Err(error) => {
                tracing::warn!(%error, method = name, "the agent sent a notification that can't be read; it is ignored");
                return;
            }
        };
        let recorded = rewritten.as_deref().unwrap_or(params);
        let kind = if name == method::SESSION_UPDATE {
            match parse_update(Some(recorded)) {
                Ok(update) => {
                    self.take_title(&update);
                    update.kind.name().to_owned()
                }
                Err(error) => {
                    tracing::warn!(%error, "the agent sent an update that can't be routed; it is ignored");
                    return;
                }
            }
        } else {
            name.to_owned()
        };
        if let Some(turn) = &mut self.turn {
            turn.saw(recorded);
        }
        let turn_number = self.turn.as_ref().map(|turn| turn.number);
        let now_ms = self.now_ms();
        self.journal.update(turn_number, &kind, recorded.get().to_owned(), now_ms, (Some(stored), Some(bytes)));
    }

    fn take_title(&mut self, update: &holdfast_protocol::acp::update::Update<'_>) {
        if update.kind != UpdateKind::SessionInfoUpdate {
            return;
        }
        if let Some(title) = update.title() {
            self.row.title = Some(title.clone().into_owned());
            let change = RowChange { title: Some(title.into_owned()), ..RowChange::default() };
            self.journal.row(change, self.now_ms());
        }
    }

    fn requested(&mut self, id: OwnedId, name: &str, params: Option<Box<RawValue>>) {
        if name == method::SESSION_REQUEST_PERMISSION {
            return self.permission_requested(id, params.as_deref());
        }
        // Files, terminals and forms were not offered to the agent.
        let error = WireError::new(ErrorKind::MethodNotFound, format!("`{name}` was not offered by this client"));
        self.answer_agent(id, Err(error.to_object()));
    }

    pub(super) fn answer_agent(&self, id: OwnedId, outcome: Result<Box<RawValue>, ErrorObject>) {
        if let Some(adapter) = self.adapter() {
            // An agent that is gone waits for no answer.
            let _gone = adapter.tell_now(AdapterMessage::Respond { id, outcome });
        }
    }

    fn agent_exited(&mut self, how: &str) {
        self.withdraw_questions();
        self.end_turn_without_agent(&format!("the agent's process ended: {how}"));
        if matches!(self.agent, Agent::Ready(_)) {
            tracing::warn!(session = %self.row.session_id, how, "the agent's process ended; the next prompt starts another");
            self.agent = Agent::Gone;
        }
    }

    fn end_turn_failed(&mut self, reason: &str) {
        let told = errors::not_now(ErrorKind::AgentFailed, reason, None);
        if let Some(end) = self.fail_turn(&told) {
            self.journal.end(end, self.now_ms());
        }
    }

    /// Tells the user, in the history, that the agent starts anew.
    pub(super) fn tell_replaced(&mut self) {
        let text = "The agent no longer had this session and starts anew; it will be told what was said so far.";
        let params = serde_json::json!({
            "sessionId": self.session_id(),
            "update": {
                "sessionUpdate": "agent_message_chunk",
                "content": { "type": "text", "text": format!("[{text}]\n\n") },
                "_meta": { holdfast_protocol::acp::META_KEY: { "replaced": true } },
            },
        });
        self.journal.update(None, "agent_message_chunk", params.to_string(), self.now_ms(), (None, None));
    }

    fn agent_session_id(&self) -> Option<String> {
        match &self.agent {
            Agent::Ready(ready) => Some(ready.session_id.clone()),
            Agent::Starting | Agent::Gone | Agent::Ending => self.row.agent_session_id.clone(),
        }
    }
}
