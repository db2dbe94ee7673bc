//! One client that speaks ACP: an editor, acpx, `holdfast run`. To it the daemon is an agent.
//!
//! The client's going away is a detach: neither a cancel nor a close. Sessions have our ids; requests that may take long
//! run beside the client's other requests.

mod list;
mod requests;

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_protocol::acp::capabilities::ClientCapabilities;
use holdfast_protocol::error::{ErrorObject, WireError};
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_protocol::jsonrpc::{self, Frame, Message, OwnedId};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::acp::directory::DirectoryHandle;
use crate::acp::environment::Environment;
use crate::acp::feed::{self, FeedCommand, FeedStart};
use crate::acp::session::questions::parse_question_id;
use crate::acp::session::{ClientId, SessionMessage};
use crate::address::{Address, Down};
use crate::channel::{FrameSender, FrameTooLong};
use crate::surface::{Context, Fault, Surface};

/// One attached client.
pub struct Client {
    client: ClientId,
    agent: AgentAlias,
    environment: Arc<Environment>,
    directory: DirectoryHandle,
    out: FrameSender,
}

impl Client {
    /// Makes the daemon's side of a client that wants `agent`; what is said to it goes through `out`.
    pub fn new(
        client: ClientId,
        agent: AgentAlias,
        environment: Arc<Environment>,
        directory: DirectoryHandle,
        out: FrameSender,
    ) -> Self {
        Self { client, agent, environment, directory, out }
    }
}

/// What a client's actor is told.
pub enum ClientMessage {
    /// The client sent a line.
    Line(Result<Vec<u8>, FrameTooLong>),
    /// The agent's answer to `initialize` is known.
    Introduced {
        /// Who asked.
        id: OwnedId,
        /// The answer.
        outcome: Result<Box<RawValue>, ErrorObject>,
    },
    /// The client follows a session now.
    Joined(Box<Joined>),
    /// The client has gone.
    Gone,
}

/// A session that the client follows from now on.
pub struct Joined {
    session_id: SessionId,
    session: Address<SessionMessage>,
    feed: mpsc::UnboundedSender<FeedCommand>,
    /// Where its feed begins. It is not started before it knows the answer, which comes before what follows.
    start: FeedStart,
    /// What the client takes.
    capabilities: ClientCapabilities,
    /// An answer that comes after an update, and that update's position.
    answer: Option<(i64, Vec<u8>)>,
    /// A line that could not be handled before the client had joined.
    line: Option<Vec<u8>>,
}

/// What is known of a client.
#[derive(Default)]
pub struct ClientState {
    /// Set by its `initialize`.
    capabilities: Option<ClientCapabilities>,
    sessions: HashMap<SessionId, JoinedSession>,
}

struct JoinedSession {
    session: Address<SessionMessage>,
    feed: mpsc::UnboundedSender<FeedCommand>,
}

impl Surface for Client {
    type Message = ClientMessage;
    type State = ClientState;

    async fn start(&self, _context: &Context<ClientMessage>) -> Result<ClientState, Down> {
        Ok(ClientState::default())
    }

    async fn handle(
        &self,
        context: &Context<ClientMessage>,
        message: ClientMessage,
        state: &mut ClientState,
    ) -> Result<(), Fault> {
        match message {
            ClientMessage::Line(Ok(line)) => self.line(line, state, context).await,
            ClientMessage::Line(Err(too_long)) => self.refuse_line(too_long),
            ClientMessage::Introduced { id, outcome } => self.answer(id, outcome),
            ClientMessage::Joined(joined) => self.joined(*joined, state, context).await,
            ClientMessage::Gone => context.stop_self(),
        }
        Ok(())
    }

    async fn stop(&self, _context: &Context<ClientMessage>, state: ClientState) {
        for (_, joined) in state.sessions {
            // A session that has ended has no clients.
            let _ended = joined.session.tell(SessionMessage::Detach { client: self.client }).await;
        }
    }
}

impl Client {
    async fn line(&self, line: Vec<u8>, state: &mut ClientState, context: &Context<ClientMessage>) {
        match jsonrpc::parse_frame(&line) {
            Frame::Single(Message::Request { id, method, params }) => {
                self.request(id.to_owned(), &method, params, &line, state, context).await;
            }
            Frame::Single(Message::Notification { method, params }) => {
                self.notification(&method, params, state).await;
            }
            Frame::Single(Message::Response { id, outcome }) => {
                let Some((session_id, question)) = parse_question_id(id.as_raw()) else { return };
                let Some(joined) = session_id.parse().ok().and_then(|id: SessionId| state.sessions.get(&id)) else {
                    return;
                };
                let outcome = outcome.map(ToOwned::to_owned);
                let answered = SessionMessage::Answered { client: self.client, question, outcome };
                // A session that has ended asks nothing any more.
                let _ended = joined.session.tell(answered).await;
            }
            Frame::Single(Message::Invalid { id, error }) => self.say_error(id, &error),
            // The protocol has no batches.
            Frame::Batch(_) => self.say_error(None::<OwnedId>, &no_batches()),
            Frame::Invalid(error) => self.say_error(None::<OwnedId>, &error),
        }
    }

    fn refuse_line(&self, too_long: FrameTooLong) {
        let error = WireError::new(holdfast_protocol::error::ErrorKind::TooLarge, too_long.to_string());
        self.say_error(None::<OwnedId>, &error);
    }

    async fn joined(&self, joined: Joined, state: &mut ClientState, context: &Context<ClientMessage>) {
        let Joined { session_id, session, feed, start, capabilities, answer, line } = joined;
        if let Some((seq, frame)) = answer {
            // The other end is in `start`, which goes to the feed only below.
            let _gone = feed.send(FeedCommand::After { seq, frame });
        }
        tokio::spawn(feed::run(start, self.environment.store.clone(), capabilities, self.out.clone()));
        state.sessions.insert(session_id, JoinedSession { session, feed });
        if let Some(line) = line {
            self.line(line, state, context).await;
        }
    }

    fn answer(&self, id: OwnedId, outcome: Result<Box<RawValue>, ErrorObject>) {
        self.say(answer_frame(id, outcome));
    }

    fn say_error(&self, id: impl jsonrpc::IdText, error: &WireError) {
        let mut frame = Vec::new();
        jsonrpc::write_error(&mut frame, id, error);
        self.say(frame);
    }

    /// Answers are bounded by the requests in flight, so they need not wait for room.
    fn say(&self, frame: Vec<u8>) {
        // A client that has gone needs no answer; its `Gone` is on the way.
        let _gone = self.out.push_now(frame);
    }
}

fn answer_frame(id: OwnedId, outcome: Result<Box<RawValue>, ErrorObject>) -> Vec<u8> {
    let mut frame = Vec::new();
    match outcome {
        Ok(result) => jsonrpc::write_raw_result(&mut frame, id, &result),
        Err(error) => jsonrpc::write_error_object(&mut frame, id, &error),
    }
    frame
}

fn no_batches() -> WireError {
    WireError::new(
        holdfast_protocol::error::ErrorKind::InvalidRequest,
        "the Agent Client Protocol has no batches; send one message a line",
    )
}
