//! What the agent asks. Permissions: answered by the policy, else by the first attached client, else by the rule for when
//! nobody is there. Extensions: passed on as they are to the client whose turn runs, else to all, and so is the answer.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_protocol::acp::envelope::cancelled_request_id;
use holdfast_protocol::acp::errors::acp_error;
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
use super::bring_up::not_offered;
use super::state::{Agent, SessionState};
use super::turn::Turn;
use crate::acp::adapter::AgentRequest;
use crate::acp::feed::FeedCommand;

/// A question that is open.
pub(super) struct Question {
    /// What takes the answer.
    agent_request: AgentRequest,
    /// What is asked.
    subject: Subject,
    /// The request's params as clients see them.
    params: Option<Box<RawValue>>,
    /// No update after this one comes before the question.
    after_seq: i64,
    /// Who was asked.
    asked: BTreeSet<ClientId>,
    /// Who could not answer.
    refused: BTreeSet<ClientId>,
}

enum Subject {
    Permission {
        /// The request's params as the agent sent them.
        agent_params: Box<RawValue>,
    },
    Extension {
        /// The method.
        method: String,
        /// The client whose turn it is about; without one, all are asked.
        only: Option<ClientId>,
    },
}

impl Subject {
    fn method(&self) -> &str {
        match self {
            Self::Permission { .. } => method::SESSION_REQUEST_PERMISSION,
            Self::Extension { method, .. } => method,
        }
    }
}

impl Question {
    /// Whether this client may be asked.
    fn is_for(&self, client: ClientId) -> bool {
        match &self.subject {
            Subject::Permission { .. } => true,
            Subject::Extension { only, .. } => only.is_none_or(|only| only == client),
        }
    }
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
    pub(super) fn permission_requested(&mut self, agent_request: AgentRequest, params: Option<Box<RawValue>>) {
        let request = match parse_permission_request(params.as_deref()) {
            Ok(request) => request,
            Err(error) => return agent_request.answer(Err(error.to_object())),
        };
        let decision = match self.turn_is_cancelled() {
            true => Decision::Cancelled,
            false => self.decided(&request),
        };
        match (decision, params) {
            (Decision::Ask, Some(agent_params)) => {
                let params = Some(agent_params.clone());
                self.ask_clients(agent_request, Subject::Permission { agent_params }, params);
            }
            (decision, _) => answer_permission(agent_request, decision),
        }
    }

    pub(super) fn extension_requested(
        &mut self,
        agent_request: AgentRequest,
        name: &str,
        params: Option<Box<RawValue>>,
    ) {
        let asker = self.turn.as_ref().and_then(Turn::asker).filter(|client| self.clients.contains_key(client));
        let subject = Subject::Extension { method: name.to_owned(), only: asker };
        self.ask_clients(agent_request, subject, params);
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

    fn ask_clients(&mut self, agent_request: AgentRequest, subject: Subject, params: Option<Box<RawValue>>) {
        let (own_id, agent_id) = (self.session_id(), self.agent_session_id());
        let own = |id: &str| {
            let is_ours = match &subject {
                Subject::Permission { .. } => true,
                Subject::Extension { .. } => agent_id.as_deref().is_none_or(|agent_id| id == agent_id),
            };
            is_ours.then(|| own_id.clone())
        };
        let params = match params.map(|params| rewritten(params, own)).transpose() {
            Ok(params) => params,
            Err(error) => return agent_request.answer(Err(error)),
        };
        let question = self.next_question;
        self.next_question += 1;
        let (asked, refused) = (BTreeSet::new(), BTreeSet::new());
        let open = Question { agent_request, subject, params, after_seq: self.journal.last_seq(), asked, refused };
        self.questions.insert(question, open);
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in clients {
            self.offer_questions(client);
        }
        self.settle_unanswerable();
    }

    /// Asks a client all questions that are open and that it was not asked yet.
    pub(super) fn offer_questions(&mut self, client: ClientId) {
        let session_id = self.session_id();
        let Some(attached) = self.clients.get(&client) else { return };
        for (question, open) in &mut self.questions {
            if !open.is_for(client) || !open.asked.insert(client) {
                continue;
            }
            let mut frame = Vec::new();
            let id = OwnedId::Other(question_id(&session_id, *question).into());
            jsonrpc::write_raw_request(&mut frame, id, open.subject.method(), open.params.as_deref());
            // A feed that has ended can't be asked; its detach is on the way.
            let _gone = attached.feed.send(FeedCommand::After { seq: open.after_seq, frame });
        }
    }

    pub(super) fn answered(&mut self, client: ClientId, question: u64, outcome: Result<Box<RawValue>, ErrorObject>) {
        // One that is no longer open was answered by somebody else first.
        let Some(open) = self.questions.get_mut(&question).filter(|open| open.asked.contains(&client)) else { return };
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                // This client can't answer such questions; another one may.
                tracing::debug!(code = error.code, message = error.message, "a client could not answer a question");
                open.refused.insert(client);
                if !self.may_be_answered(question)
                    && let Some(open) = self.questions.remove(&question)
                {
                    self.answer_alone(open, Some(error));
                }
                return;
            }
        };
        let Some(open) = self.questions.remove(&question) else { return };
        self.withdraw_from(&open, question, Some(client));
        match open.subject {
            Subject::Permission { agent_params } => {
                if selected_option(&result).is_some() || self.turn_is_cancelled() {
                    return open.agent_request.answer(Ok(result));
                }
                // `cancelled` means "the turn is being cancelled"; agents take it as such, so a client that only closed
                // its dialog has said no.
                let decision = parse_permission_request(Some(&agent_params))
                    .map_or(Decision::Cancelled, |request| deny(&request.options));
                answer_permission(open.agent_request, decision);
            }
            Subject::Extension { .. } => {
                let (own_id, agent_id) = (self.session_id(), self.agent_session_id());
                let agents = |id: &str| agent_id.clone().filter(|_| id == own_id);
                open.agent_request.answer(rewritten(result, agents));
            }
        }
    }

    /// Whether somebody is attached who was asked and may still answer, or the rule is to wait for somebody.
    fn may_be_answered(&self, question: u64) -> bool {
        let Some(open) = self.questions.get(&question) else { return false };
        let waits = matches!(open.subject, Subject::Permission { .. })
            && self.clients.is_empty()
            && self.unattended() == UnattendedPolicy::Wait;
        waits || self.clients.keys().any(|client| open.asked.contains(client) && !open.refused.contains(client))
    }

    /// Somebody has gone: what only they could have answered is answered without them.
    pub(super) fn settle_unanswerable(&mut self) {
        let open: Vec<u64> = self.questions.keys().copied().collect();
        for question in open {
            if !self.may_be_answered(question)
                && let Some(open) = self.questions.remove(&question)
            {
                self.answer_alone(open, None);
            }
        }
    }

    fn unattended(&self) -> UnattendedPolicy {
        match &self.agent {
            Agent::Ready(ready) => ready.settings.unattended,
            Agent::Gone | Agent::Starting | Agent::Ending => UnattendedPolicy::Deny,
        }
    }

    /// Answers what no client answers. `error` is what the last of them said.
    fn answer_alone(&self, open: Question, error: Option<ErrorObject>) {
        match open.subject {
            Subject::Permission { agent_params } => {
                let unattended = match self.unattended() {
                    UnattendedPolicy::AllowReads => UnattendedPolicy::AllowReads,
                    UnattendedPolicy::Deny | UnattendedPolicy::Wait => UnattendedPolicy::Deny,
                };
                let decision = parse_permission_request(Some(&agent_params))
                    .map_or(Decision::Cancelled, |request| decide_unattended(unattended, &request));
                answer_permission(open.agent_request, decision);
            }
            Subject::Extension { method, .. } => {
                open.agent_request.answer(Err(error.unwrap_or_else(|| not_offered(&method))));
            }
        }
    }

    /// A cancelled turn: the protocol wants every open question answered `cancelled`. Extensions go on: what they mean is
    /// not ours to know, and the agent can take them back itself.
    pub(super) fn cancel_permissions(&mut self) {
        for (question, open) in self.take_permissions() {
            self.withdraw_from(&open, question, None);
            answer_permission(open.agent_request, Decision::Cancelled);
        }
    }

    /// The turn has ended: nobody waits for permissions any more.
    pub(super) fn withdraw_permissions(&mut self) {
        for (question, open) in self.take_permissions() {
            self.withdraw_from(&open, question, None);
        }
    }

    /// The agent has ended: nobody waits for answers any more.
    pub(super) fn withdraw_all_questions(&mut self) {
        for (question, open) in std::mem::take(&mut self.questions) {
            self.withdraw_from(&open, question, None);
        }
    }

    /// The agent no longer waits for one of its questions.
    pub(super) fn question_taken_back(&mut self, params: Option<&RawValue>) {
        let Some(request) = cancelled_request_id(params).map(|id| id.to_owned()) else { return };
        let found = self.questions.iter().find(|(_, open)| *open.agent_request.id() == request);
        // One that is no longer open was answered already.
        let Some(question) = found.map(|(question, _)| *question) else { return };
        let Some(open) = self.questions.remove(&question) else { return };
        self.withdraw_from(&open, question, None);
        let error = WireError::new(ErrorKind::Cancelled, "the request was cancelled by its sender");
        open.agent_request.answer(Err(acp_error(&error, None)));
    }

    fn take_permissions(&mut self) -> BTreeMap<u64, Question> {
        let is_permission = |open: &Question| matches!(open.subject, Subject::Permission { .. });
        let (permissions, others) =
            std::mem::take(&mut self.questions).into_iter().partition(|(_, open)| is_permission(open));
        self.questions = others;
        permissions
    }

    /// Takes the question back from everybody who was asked but did not answer.
    fn withdraw_from(&self, open: &Question, question: u64, answered_by: Option<ClientId>) {
        let params = format!("{{\"requestId\":{}}}", question_id(&self.session_id(), question));
        let Ok(params) = RawValue::from_string(params) else { return };
        let mut frame = Vec::new();
        jsonrpc::write_raw_notification(&mut frame, method::CANCEL_REQUEST, Some(&params));
        let waiting = open.asked.difference(&open.refused);
        for client in waiting.filter(|client| Some(**client) != answered_by) {
            if let Some(attached) = self.clients.get(client) {
                // A feed that has ended has no dialog to close.
                let _gone = attached.feed.send(FeedCommand::After { seq: open.after_seq, frame: frame.clone() });
            }
        }
    }
}

/// Replaces the session id at the top of raw params or a raw result.
fn rewritten(message: Box<RawValue>, map: impl FnMut(&str) -> Option<String>) -> Result<Box<RawValue>, ErrorObject> {
    match rewrite_session_ids(&message, Places::TopLevel, map) {
        Ok(rewritten) => Ok(rewritten.unwrap_or(message)),
        Err(error) => Err(WireError::new(ErrorKind::InvalidParams, error.to_string()).to_object()),
    }
}

fn answer_permission(agent_request: AgentRequest, decision: Decision) {
    let result = match decision {
        Decision::Select(option) => selected_result(&option),
        Decision::Cancelled | Decision::Ask => cancelled_result(),
    };
    agent_request.answer(result.map_err(|error| WireError::new(ErrorKind::Internal, error.to_string()).to_object()));
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
