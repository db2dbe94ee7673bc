//! What the agent says by itself, and its end.

use holdfast_protocol::acp::method;
use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids};
use holdfast_protocol::acp::update::{UpdateKind, parse_update};
use holdfast_stores::acp_sessions::RowChange;
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;

use super::bring_up::not_offered;
use super::journal::What;
use super::state::{Agent, SessionState};
use crate::acp::adapter::{AgentRequest, FromAgent};
use crate::reply::Reply;

impl SessionState {
    pub(super) fn said(&mut self, said: FromAgent, epoch: u64, stored: Reply<()>) {
        if epoch != self.epoch {
            return;
        }
        match said {
            FromAgent::Notification { method, params, .. } if method == method::CANCEL_REQUEST => {
                self.question_taken_back(params.as_deref());
            }
            FromAgent::Notification { method, .. } if method.starts_with("$/") => {
                tracing::debug!(method, "the agent sent a notification about the connection; it ends here");
            }
            FromAgent::Notification { method, params, bytes } => {
                self.notified(&method, params.as_deref(), stored, bytes);
            }
            FromAgent::Request { asked, method, params } => self.requested(asked, &method, params),
            FromAgent::TooLong { limit_bytes } => {
                tracing::warn!(session = %self.row.session_id, limit_bytes, "the agent sent a message over the limit; it is lost");
                self.turn_lost_a_message(limit_bytes);
            }
            FromAgent::Exited { how } => self.agent_exited(&how),
        }
    }

    fn notified(&mut self, name: &str, params: Option<&RawValue>, stored: Reply<()>, bytes: OwnedSemaphorePermit) {
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
        let rewritten = match params.map(|params| rewrite_session_ids(params, Places::of_method(name), ours)) {
            Some(Ok(rewritten)) => rewritten,
            Some(Err(error)) => {
                tracing::warn!(%error, method = name, "the agent sent a notification that can't be read; it is ignored");
                return;
            }
            None => None,
        };
        let recorded = rewritten.as_deref().or(params);
        let turn_number = self.turn.as_ref().map(|turn| turn.number);
        let now_ms = self.now_ms();
        let held = (Some(stored), Some(bytes));
        let text = recorded.map_or_else(String::new, |params| params.get().to_owned());
        if name != method::SESSION_UPDATE {
            self.journal.update(turn_number, What::Other(name), text, now_ms, held);
            return;
        }
        match parse_update(recorded) {
            Ok(update) => {
                self.take_title(&update);
                self.journal.update(turn_number, What::Update(update.kind.name()), text, now_ms, held);
            }
            Err(error) => {
                tracing::warn!(%error, "the agent sent an update that can't be routed; it is ignored");
                return;
            }
        }
        if let (Some(turn), Some(recorded)) = (&mut self.turn, recorded) {
            turn.saw(recorded);
        }
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

    fn requested(&mut self, asked: AgentRequest, name: &str, params: Option<Box<RawValue>>) {
        if name == method::SESSION_REQUEST_PERMISSION {
            return self.permission_requested(asked, params);
        }
        if method::is_extension(name) {
            return self.extension_requested(asked, name, params);
        }
        // Files, terminals and forms were not offered to the agent.
        asked.answer(Err(not_offered(name)));
    }

    fn agent_exited(&mut self, how: &str) {
        self.withdraw_all_questions();
        self.end_turn_without_agent(&format!("the agent's process ended: {how}"));
        if matches!(self.agent, Agent::Ready(_)) {
            tracing::warn!(session = %self.row.session_id, how, "the agent's process ended; the next prompt starts another");
            self.agent = Agent::Gone;
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
        self.journal.update(None, What::Update("agent_message_chunk"), params.to_string(), self.now_ms(), (None, None));
    }

    pub(super) fn agent_session_id(&self) -> Option<String> {
        match &self.agent {
            Agent::Ready(ready) => Some(ready.session_id.clone()),
            Agent::Starting | Agent::Gone | Agent::Ending => self.row.agent_session_id.clone(),
        }
    }
}
