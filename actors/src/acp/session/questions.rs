//! Permission requests of the agent: answered by the policy, else by the first attached client, else by the rule for
//! when nobody is there.

use std::collections::BTreeSet;

use holdfast_protocol::acp::method;
use holdfast_protocol::acp::permission::{
    Decision, PermissionPolicy, PermissionRequest, allow, cancelled_result, decide, deny, parse_permission_request,
    selected_option, selected_result,
};
use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::jsonrpc::{self, OwnedId};
use holdfast_stores::config::UnattendedPolicy;
use serde_json::value::RawValue;

use super::ClientId;
use super::state::{Agent, SessionState};
use crate::acp::feed::FeedCommand;

/// A question that is open.
pub(super) struct Question {
    /// The agent's request id.
    agent_request: OwnedId,
    /// The request's params as clients see them.
    params: Box<RawValue>,
    /// The request's params as the agent sent them.
    agent_params: Box<RawValue>,
    /// No update after this one comes before the question.
    after_seq: i64,
    /// Who was asked.
    asked: BTreeSet<ClientId>,
}

/// The JSON-RPC id of a question to a client: it names the session, so that the answer finds its way back.
pub(crate) fn question_id(session_id: &str, question: u64) -> String {
    format!("\"holdfast/{session_id}/{question}\"")
}

/// Reads an id made by [`question_id`].
pub(crate) fn parse_question_id(id: &str) -> Option<(&str, u64)> {
    let (session_id, question) = id.strip_prefix("\"holdfast/")?.strip_suffix('"')?.split_once('/')?;
    Some((session_id, question.parse().ok()?))
}

impl SessionState {
    pub(super) fn permission_requested(&mut self, agent_request: OwnedId, params: Option<&RawValue>) {
        let request = match parse_permission_request(params) {
            Ok(request) => request,
            Err(error) => return self.answer_agent(agent_request, Err(error.to_object())),
        };
        let Some(params) = params else { return };
        if self.turn_is_cancelled() {
            return self.decide_for_agent(agent_request, Decision::Cancelled);
        }
        match self.decided(&request) {
            Decision::Ask => self.ask_clients(agent_request, params),
            decision => self.decide_for_agent(agent_request, decision),
        }
    }

    /// What the agent's policy says, and, where that leaves it to a person and none is there, the rule for that.
    fn decided(&self, request: &PermissionRequest<'_>) -> Decision {
        let (policy, unattended) = match &self.agent {
            Agent::Ready(ready) => (ready.settings.permissions, ready.settings.unattended),
            Agent::Gone | Agent::Starting | Agent::Ending => (PermissionPolicy::DenyAll, UnattendedPolicy::Deny),
        };
        match decide(policy, request.tool_kind.as_ref(), &request.options) {
            Decision::Ask if self.clients.is_empty() => decide_unattended(unattended, request),
            decision => decision,
        }
    }

    fn ask_clients(&mut self, agent_request: OwnedId, params: &RawValue) {
        let own_id = self.session_id();
        let rewritten = rewrite_session_ids(params, Places::TopLevel, |_| Some(own_id.clone()));
        let for_clients = match rewritten {
            Ok(rewritten) => rewritten.unwrap_or_else(|| params.to_owned()),
            Err(error) => {
                let error = WireError::new(ErrorKind::InvalidParams, error.to_string());
                return self.answer_agent(agent_request, Err(error.to_object()));
            }
        };
        let question = self.next_question;
        self.next_question += 1;
        let after_seq = self.journal.last_seq();
        let agent_params = params.to_owned();
        let open = Question { agent_request, params: for_clients, agent_params, after_seq, asked: BTreeSet::new() };
        self.questions.insert(question, open);
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in clients {
            self.offer_questions(client);
        }
    }

    /// Asks a client all questions that are open and that it was not asked yet.
    pub(super) fn offer_questions(&mut self, client: ClientId) {
        let session_id = self.session_id();
        let Some(attached) = self.clients.get(&client) else { return };
        for (question, open) in &mut self.questions {
            if !open.asked.insert(client) {
                continue;
            }
            let mut frame = Vec::new();
            let id = OwnedId::Other(question_id(&session_id, *question).into());
            jsonrpc::write_raw_request(&mut frame, id, method::SESSION_REQUEST_PERMISSION, Some(&open.params));
            // A feed that has ended can't be asked; its detach is on the way.
            let _gone = attached.feed.send(FeedCommand::After { seq: open.after_seq, frame });
        }
    }

    pub(super) fn answered(&mut self, client: ClientId, question: u64, outcome: Result<Box<RawValue>, ErrorObject>) {
        let Some(mut open) = self.questions.remove(&question) else {
            // Somebody else was first.
            return;
        };
        match outcome {
            Ok(result) => {
                let agent_request = open.agent_request.clone();
                self.withdraw_from(&open, question, Some(client));
                if selected_option(&result).is_none() && !self.turn_is_cancelled() {
                    // `cancelled` means "the turn is being cancelled"; agents take it as such, so a client that only
                    // closed its dialog has said no.
                    let decision = parse_permission_request(Some(&open.agent_params))
                        .map_or(Decision::Cancelled, |request| deny(&request.options));
                    return self.decide_for_agent(agent_request, decision);
                }
                self.answer_agent(agent_request, Ok(result));
            }
            Err(error) => {
                // This client can't answer such questions; another one may.
                tracing::debug!(code = error.code, message = error.message, "a client could not answer a question");
                open.asked.insert(client);
                let others = self.clients.keys().any(|other| *other != client);
                if others {
                    self.questions.insert(question, open);
                } else {
                    self.decide_alone(open);
                }
            }
        }
    }

    /// Nobody is attached any more: open questions go by the rule for that.
    pub(super) fn nobody_attached(&mut self) {
        for (question, open) in std::mem::take(&mut self.questions) {
            let unattended = match &self.agent {
                Agent::Ready(ready) => ready.settings.unattended,
                Agent::Gone | Agent::Starting | Agent::Ending => UnattendedPolicy::Deny,
            };
            if unattended == UnattendedPolicy::Wait {
                self.questions.insert(question, Question { asked: BTreeSet::new(), ..open });
            } else {
                self.decide_alone(open);
            }
        }
    }

    fn decide_alone(&mut self, open: Question) {
        let unattended = match &self.agent {
            Agent::Ready(ready) if ready.settings.unattended == UnattendedPolicy::AllowReads => {
                UnattendedPolicy::AllowReads
            }
            _ => UnattendedPolicy::Deny,
        };
        let decision = parse_permission_request(Some(&open.agent_params))
            .map_or(Decision::Cancelled, |request| decide_unattended(unattended, &request));
        self.decide_for_agent(open.agent_request, decision);
    }

    fn decide_for_agent(&self, agent_request: OwnedId, decision: Decision) {
        let result = match decision {
            Decision::Select(option) => selected_result(&option),
            Decision::Cancelled | Decision::Ask => cancelled_result(),
        };
        let outcome = result.map_err(|error| WireError::new(ErrorKind::Internal, error.to_string()).to_object());
        self.answer_agent(agent_request, outcome);
    }

    /// A cancelled turn: the protocol wants every open question answered `cancelled`.
    pub(super) fn cancel_questions(&mut self) {
        for (question, open) in std::mem::take(&mut self.questions) {
            self.withdraw_from(&open, question, None);
            self.decide_for_agent(open.agent_request, Decision::Cancelled);
        }
    }

    /// The turn or the agent has ended: nobody waits for answers any more.
    pub(super) fn withdraw_questions(&mut self) {
        for (question, open) in std::mem::take(&mut self.questions) {
            self.withdraw_from(&open, question, None);
        }
    }

    /// Takes the question back from everybody who was asked but did not answer.
    fn withdraw_from(&self, open: &Question, question: u64, answered_by: Option<ClientId>) {
        let params = format!("{{\"requestId\":{}}}", question_id(&self.session_id(), question));
        let Ok(params) = RawValue::from_string(params) else { return };
        let mut frame = Vec::new();
        jsonrpc::write_raw_notification(&mut frame, method::CANCEL_REQUEST, Some(&params));
        for client in open.asked.iter().filter(|client| Some(**client) != answered_by) {
            if let Some(attached) = self.clients.get(client) {
                // A feed that has ended has no dialog to close.
                let _gone = attached.feed.send(FeedCommand::After { seq: open.after_seq, frame: frame.clone() });
            }
        }
    }
}

fn decide_unattended(unattended: UnattendedPolicy, request: &PermissionRequest<'_>) -> Decision {
    match unattended {
        UnattendedPolicy::Wait => Decision::Ask,
        UnattendedPolicy::Deny => deny(&request.options),
        UnattendedPolicy::AllowReads => {
            let reads = request.tool_kind.as_ref().is_some_and(|kind| kind.only_reads());
            match reads.then(|| allow(&request.options)) {
                Some(decision @ Decision::Select(_)) => decision,
                Some(Decision::Ask | Decision::Cancelled) | None => deny(&request.options),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_session() {
        let id = question_id("0199a3c2-0000-7000-8000-000000000001", 7);
        assert_eq!(parse_question_id(&id), Some(("0199a3c2-0000-7000-8000-000000000001", 7)));
        assert_eq!(parse_question_id("\"other/1/2\""), None);
        assert_eq!(parse_question_id("7"), None);
    }
}
