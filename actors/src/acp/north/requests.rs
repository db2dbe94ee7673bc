//! What a client can ask, and how it is answered.

use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::acp::capabilities::ClientCapabilities;
use holdfast_protocol::acp::edit::{remove_member, set_member};
use holdfast_protocol::acp::envelope::{cancelled_request_id, required_session_id, session_setup};
use holdfast_protocol::acp::errors::{acp_error, session_not_found};
use holdfast_protocol::acp::initialize::north_result;
use holdfast_protocol::acp::rewrite::with_agent_session_id;
use holdfast_protocol::acp::{META_KEY, method};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::jsonrpc::OwnedId;
use holdfast_protocol::raw;
use holdfast_stores::acp_sessions::AcpSessionRow;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{Client, ClientMessage, ClientState, Joined, JoinedSession, answer_frame};
use crate::acp::directory::{DirectoryHandle, WantedSession};
use crate::acp::environment::Environment;
use crate::acp::feed::{FeedCommand, FeedStart};
use crate::acp::session::bring_up;
use crate::acp::session::{Asker, Attached, Cancelled, ClientId, PromptDone, SessionMessage};
use crate::address::{Address, CallError};
use crate::channel::FrameSender;
use crate::reply::Reply;
use crate::surface::Context;

/// Longer than the slowest agent takes to make a session, and than a close may take.
const SLOW_LIMIT: Duration = Duration::from_secs(300);

impl Client {
    pub(super) async fn request(
        &self,
        id: OwnedId,
        name: &str,
        params: Option<&RawValue>,
        line: &[u8],
        state: &mut ClientState,
        context: &Context<ClientMessage>,
    ) {
        if name == method::INITIALIZE {
            return self.initialize(id, params, state, context);
        }
        let Some(capabilities) = &state.capabilities else {
            let error = WireError::new(ErrorKind::InvalidRequest, "`initialize` comes first");
            return self.say_error(id, &error);
        };
        let joiner = Joiner {
            client: self.client,
            capabilities: *capabilities,
            directory: self.directory.clone(),
            agent: self.agent.clone(),
            out: self.out.clone(),
        };
        match name {
            method::SESSION_NEW => self.session_new(id, params, joiner, context),
            method::SESSION_LOAD => self.session_join(id, params, joiner, Replay::All, context),
            method::SESSION_RESUME => self.session_join(id, params, joiner, Replay::Nothing, context),
            method::SESSION_LIST => self.session_list(id, params),
            method::SESSION_PROMPT | method::SESSION_CLOSE => {
                self.for_session(id, name, params, line, joiner, state, context).await;
            }
            _ if params.and_then(holdfast_protocol::acp::envelope::session_id).is_some() => {
                self.for_session(id, name, params, line, joiner, state, context).await;
            }
            _ => {
                let error = WireError::new(ErrorKind::MethodNotFound, format!("there is no method `{name}`"));
                self.say_error(id, &error);
            }
        }
    }

    pub(super) async fn notification(&self, name: &str, params: Option<&RawValue>, state: &ClientState) {
        let named = params.and_then(holdfast_protocol::acp::envelope::session_id);
        let named = named.and_then(|id| id.parse::<SessionId>().ok()).and_then(|id| state.sessions.get(&id));
        if let (true, Some(joined), Some(params)) = (method::is_extension(name), named, params) {
            let notify = SessionMessage::Notify { method: name.to_owned(), params: params.to_owned() };
            // A session that has ended has no agent to tell.
            let _ended = joined.session.tell(notify).await;
            return;
        }
        let joined: Vec<&JoinedSession> = match name {
            method::SESSION_CANCEL => named.into_iter().collect(),
            // It does not name the session; only the one that has the prompt finds it.
            method::CANCEL_REQUEST => state.sessions.values().collect(),
            _ => Vec::new(),
        };
        let request = cancelled_request_id(params).filter(|_| name == method::CANCEL_REQUEST);
        let which = match request {
            Some(request) => Cancelled::One(Asker { client: self.client, request: request.to_owned() }),
            None if name == method::CANCEL_REQUEST => return,
            None => Cancelled::OfClient(self.client),
        };
        for joined in joined {
            // A session that has ended has no turn to cancel.
            let _ended = joined.session.tell(SessionMessage::Cancel { which: which.clone() }).await;
        }
    }

    fn initialize(
        &self,
        id: OwnedId,
        params: Option<&RawValue>,
        state: &mut ClientState,
        context: &Context<ClientMessage>,
    ) {
        state.capabilities = Some(ClientCapabilities::from_initialize_params(params));
        let environment = Arc::clone(&self.environment);
        let agent = self.agent.clone();
        let reporter = context.reporter();
        tokio::spawn(async move {
            let outcome = introduce(&environment, &agent).await;
            // A client that has gone needs no answer.
            let _gone = reporter.report(ClientMessage::Introduced { id, outcome });
        });
    }

    fn session_new(&self, id: OwnedId, params: Option<&RawValue>, joiner: Joiner, context: &Context<ClientMessage>) {
        let wanted = match wanted_session(params, joiner.agent.clone()) {
            Ok(wanted) => wanted,
            Err(error) => return self.say_error(id, &error),
        };
        let reporter = context.reporter();
        tokio::spawn(async move {
            match joiner.make(wanted).await {
                Ok((session_id, session, row)) => {
                    let answer = session_answer(&row, true).map(|result| (0, answer_frame(id, Ok(result))));
                    joiner.join(session_id, session, Replay::All, Answer::Fixed(answer), None, &reporter).await;
                }
                Err(error) => joiner.say(answer_frame(id, Err(error))),
            }
        });
    }

    fn session_join(
        &self,
        id: OwnedId,
        params: Option<&RawValue>,
        joiner: Joiner,
        replay: Replay,
        context: &Context<ClientMessage>,
    ) {
        let parsed = required_session_id(params).and_then(|session_id| {
            let setup = session_setup(params)?;
            Ok((session_id.into_owned(), setup.cwd.into_owned()))
        });
        let (text, cwd) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => return self.say_error(id, &error),
        };
        let Ok(session_id) = text.parse::<SessionId>() else {
            return self.answer(id, Err(session_not_found(&text)));
        };
        let reporter = context.reporter();
        tokio::spawn(async move {
            match joiner.directory.find(session_id, Some(joiner.agent.clone())).await {
                Ok(session) => {
                    joiner.join(session_id, session, replay, Answer::Setup { id, cwd }, None, &reporter).await;
                }
                Err(error) => joiner.say(answer_frame(id, Err(error))),
            }
        });
    }

    /// Handles a request about a session; one that the client has not joined yet is joined first.
    #[expect(clippy::too_many_arguments, reason = "one call, and each is a thing of its own")]
    async fn for_session(
        &self,
        id: OwnedId,
        name: &str,
        params: Option<&RawValue>,
        line: &[u8],
        joiner: Joiner,
        state: &mut ClientState,
        context: &Context<ClientMessage>,
    ) {
        let text = match required_session_id(params) {
            Ok(text) => text.into_owned(),
            Err(error) => return self.say_error(id, &error),
        };
        let (Ok(session_id), Some(params)) = (text.parse::<SessionId>(), params) else {
            return self.answer(id, Err(session_not_found(&text)));
        };
        let joined = state.sessions.get(&session_id).filter(|joined| joined.session.state_name() != "stopped");
        let Some(joined) = joined else {
            let (reporter, line) = (context.reporter(), line.to_vec());
            tokio::spawn(async move {
                match joiner.directory.find(session_id, Some(joiner.agent.clone())).await {
                    Ok(session) => {
                        let answer = Answer::Fixed(Ok((0, Vec::new())));
                        joiner.join(session_id, session, Replay::Nothing, answer, Some((id, line)), &reporter).await;
                    }
                    Err(error) => joiner.say(answer_frame(id, Err(error))),
                }
            });
            return;
        };
        let (session, feed) = (joined.session.clone(), joined.feed.clone());
        match name {
            method::SESSION_PROMPT => {
                self.prompt(id, params, &session, feed).await;
            }
            method::SESSION_CLOSE => {
                let out = self.out.clone();
                tokio::spawn(async move {
                    let closed = session.call_waiting(SLOW_LIMIT, |reply| SessionMessage::Close { reply }).await;
                    let outcome = match closed {
                        Ok(outcome) => outcome.map(|()| raw_object("{}")),
                        Err(error) => Err(acp_error(&error.into(), Some(&text))),
                    };
                    // A client that has gone needs no answer.
                    let _gone = out.push_now(answer_frame(id, outcome));
                });
            }
            _ => self.forward(id, name, params, &session),
        }
    }

    /// Puts the prompt into the session's queue, in the order the client sent it.
    async fn prompt(
        &self,
        id: OwnedId,
        params: &RawValue,
        session: &Address<SessionMessage>,
        feed: mpsc::UnboundedSender<FeedCommand>,
    ) {
        let asker = Some(Asker { client: self.client, request: id.clone() });
        let reply = answer_after_updates(id, feed, self.out.clone());
        let params = params.to_owned();
        let message = |reply| SessionMessage::Prompt { asker, params, reply };
        // A session that ended answers through the dropped reply.
        let _ended = session.post_in_order(reply, message).await;
    }

    /// Passes on what is neither ours nor known: modes, config options, extensions.
    fn forward(&self, id: OwnedId, name: &str, params: &RawValue, session: &Address<SessionMessage>) {
        let (method, params, session, out) = (name.to_owned(), params.to_owned(), session.clone(), self.out.clone());
        tokio::spawn(async move {
            let message = |reply| SessionMessage::Forward { method, params, reply };
            let answered = session.call_waiting(SLOW_LIMIT, message).await;
            let outcome = answered.unwrap_or_else(|error| Err(acp_error(&error.into(), None)));
            // A client that has gone needs no answer.
            let _gone = out.push_now(answer_frame(id, outcome));
        });
    }
}

/// Makes a reply that answers a prompt through the client's feed, so that it overtakes no update.
fn answer_after_updates(id: OwnedId, feed: mpsc::UnboundedSender<FeedCommand>, out: FrameSender) -> Reply<PromptDone> {
    Reply::sink(move |done: Result<PromptDone, CallError>| {
        let (seq, outcome) = match done {
            Ok(done) => (done.after_seq, done.outcome),
            Err(error) => (0, Err(acp_error(&error.into(), None))),
        };
        let frame = answer_frame(id, outcome);
        if let Err(unsent) = feed.send(FeedCommand::After { seq, frame })
            && let FeedCommand::After { frame, .. } = unsent.0
        {
            // The feed ended before the client did; the answer must not be lost with it.
            let _gone = out.push_now(frame);
        }
    })
}

/// How much of a session's history a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replay {
    All,
    Nothing,
}

/// What a client is told once it has joined.
enum Answer {
    /// This frame, after this position; or the error in place of both.
    Fixed(Result<(i64, Vec<u8>), ErrorObject>),
    /// How the session is set up, after its replay, if it works where the client thinks it does.
    Setup { id: OwnedId, cwd: String },
}

/// Joins a client to a session, beside the client's other requests.
struct Joiner {
    client: ClientId,
    capabilities: ClientCapabilities,
    directory: DirectoryHandle,
    agent: holdfast_protocol::ids::AgentAlias,
    out: FrameSender,
}

impl Joiner {
    /// Makes a session and waits until the agent has it.
    async fn make(
        &self,
        wanted: WantedSession,
    ) -> Result<(SessionId, Address<SessionMessage>, AcpSessionRow), ErrorObject> {
        let (session_id, session) = self.directory.create(wanted).await?;
        let opened = session.call_waiting(SLOW_LIMIT, |reply| SessionMessage::Open { reply }).await;
        let row = opened.unwrap_or_else(|error| Err(acp_error(&error.into(), Some(&session_id.to_string()))))?;
        Ok((session_id, session, row))
    }

    async fn join(
        self,
        session_id: SessionId,
        session: Address<SessionMessage>,
        replay: Replay,
        answer: Answer,
        line: Option<(OwnedId, Vec<u8>)>,
        reporter: &crate::surface::Reporter<ClientMessage>,
    ) {
        let (feed, commands) = mpsc::unbounded_channel();
        let (client, sender) = (self.client, feed.clone());
        let attach = |reply| SessionMessage::Attach { client, feed: sender, reply };
        let attached = session.call_waiting(SLOW_LIMIT, attach).await;
        let request = match (&answer, &line) {
            (Answer::Setup { id, .. }, _) | (Answer::Fixed(_), Some((id, _))) => Some(id.clone()),
            (Answer::Fixed(_), None) => None,
        };
        let Attached { row, stored_seq, live } = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let error = acp_error(&error.into(), Some(&session_id.to_string()));
                return self.say(answer_frame(request.unwrap_or(OwnedId::Null), Err(error)));
            }
        };
        let answer = match answer {
            Answer::Fixed(answer) => answer,
            Answer::Setup { id, cwd } if cwd == row.cwd => {
                session_answer(&row, false).map(|result| (stored_seq, answer_frame(id, Ok(result))))
            }
            Answer::Setup { cwd, .. } => Err(wrong_directory(&row, &cwd)),
        };
        let answer = match answer {
            Ok((_, frame)) if frame.is_empty() => None,
            Ok(answer) => Some(answer),
            Err(error) => {
                // A session that ended meanwhile has no clients.
                let _ended = session.tell(SessionMessage::Detach { client }).await;
                return self.say(answer_frame(request.unwrap_or(OwnedId::Null), Err(error)));
            }
        };
        let next_seq = if replay == Replay::All { 1 } else { stored_seq + 1 };
        let start = FeedStart { row_id: row.row_id, next_seq, replay_through: stored_seq, live, commands };
        let capabilities = self.capabilities;
        let joined =
            Joined { session_id, session, feed, start, capabilities, answer, line: line.map(|(_, line)| line) };
        if let Err(ClientMessage::Joined(joined)) = reporter.report(ClientMessage::Joined(Box::new(joined))) {
            // The client went meanwhile.
            let _ended = joined.session.tell(SessionMessage::Detach { client }).await;
        }
    }

    fn say(&self, frame: Vec<u8>) {
        // A client that has gone needs no answer.
        let _gone = self.out.push_now(frame);
    }
}

/// Returns our answer to `initialize`: the agent's own, from last time or asked for now, with what our store adds.
async fn introduce(
    environment: &Environment,
    agent: &holdfast_protocol::ids::AgentAlias,
) -> Result<Box<RawValue>, ErrorObject> {
    let settings = environment.catalog.settings(agent).await.map_err(|error| acp_error(&error, None))?;
    let result = match environment.catalog.initialize_result(&settings).await {
        Some(result) => result,
        None => bring_up::probe(environment, agent).await.map_err(|error| error.0)?,
    };
    north_result(&result, environment.version, &[])
        .map_err(|error| acp_error(&WireError::new(ErrorKind::AgentFailed, error.to_string()), None))
}

/// Reads `session/new` params. A name is given in `_meta.holdfast.sessionKey`.
fn wanted_session(
    params: Option<&RawValue>,
    agent: holdfast_protocol::ids::AgentAlias,
) -> Result<WantedSession, WireError> {
    let setup = session_setup(params)?;
    let broken = |error: &dyn std::fmt::Display| WireError::new(ErrorKind::InvalidParams, error.to_string());
    let text = params.map_or("{}", RawValue::get);
    let session_key =
        raw::at(text, &["_meta", META_KEY, "sessionKey"]).and_then(raw::string).map(std::borrow::Cow::into_owned);
    if session_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 512) {
        let error = WireError::new(ErrorKind::InvalidParams, "a session name has 1 to 512 bytes");
        return Err(error.at_path("_meta.holdfast.sessionKey"));
    }
    // The agent wants the list of MCP servers, and our own words are not for it.
    let south = raw_object(text);
    let south = set_member(&south, &["mcpServers"], setup.mcp_servers).map_err(|error| broken(&error))?;
    let south = remove_member(&south, &["_meta", META_KEY]).map_err(|error| broken(&error))?;
    Ok(WantedSession { agent, session_key, cwd: setup.cwd.into_owned(), new_params: south.get().to_owned() })
}

/// Returns what a client is told about how a session is set up: the agent's own words with our session id, and the
/// agent's id beside it.
fn session_answer(row: &AcpSessionRow, with_id: bool) -> Result<Box<RawValue>, ErrorObject> {
    let broken = |error: holdfast_protocol::acp::edit::EditError| {
        acp_error(&WireError::new(ErrorKind::Internal, error.to_string()), Some(&row.session_id.to_string()))
    };
    // Some agents answer null to load and resume.
    let setup = row.setup.as_deref().filter(|setup| setup.trim_start().starts_with('{')).unwrap_or("{}");
    let setup = raw_object(setup);
    let setup = remove_member(&setup, &["sessionId"]).map_err(broken)?;
    let setup = match &row.agent_session_id {
        Some(agent_session_id) => with_agent_session_id(&setup, agent_session_id).map_err(broken)?,
        None => setup,
    };
    if with_id {
        return set_member(&setup, &["sessionId"], &raw::quote(&row.session_id.to_string())).map_err(broken);
    }
    Ok(setup)
}

/// A client that thinks the session works elsewhere is told both places.
fn wrong_directory(row: &AcpSessionRow, cwd: &str) -> ErrorObject {
    let message = format!("session {} works in `{}`, not in `{cwd}`", row.session_id, row.cwd);
    WireError::new(ErrorKind::InvalidParams, message).at_path("cwd").to_object()
}

/// Takes text that was read as JSON before.
fn raw_object(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
