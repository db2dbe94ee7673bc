//! The whole door of a live session.

use holdfast_protocol::error::ErrorObject;
use holdfast_protocol::jsonrpc::OwnedId;
use holdfast_stores::acp_sessions::{AcpSessionRow, AcpUpdate};
use holdfast_stores::kit::StoreError;
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

use crate::acp::adapter::{AgentAnswer, FromAgent};
use crate::acp::feed::FeedCommand;
use crate::acp::session::bring_up::{BringUpError, BroughtUp};
use crate::address::CallError;
use crate::reply::Reply;

/// A client of live sessions: one attached connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// The answer to a client's prompt, and the position it must not overtake.
#[derive(Debug)]
pub struct PromptDone {
    /// Every update up to here comes before the answer.
    pub after_seq: i64,
    /// What the agent answered, or why it did not.
    pub outcome: Result<Box<RawValue>, ErrorObject>,
}

/// What a client that attaches needs to follow the session.
#[derive(Debug)]
pub struct Attached {
    /// The session as it is now.
    pub row: AcpSessionRow,
    /// The position of the last stored update; what comes later comes over `live`.
    pub stored_seq: i64,
    /// Updates as they are stored.
    pub live: broadcast::Receiver<Arc<AcpUpdate>>,
}

/// A client's request, by which it is told from the client's others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// The client.
    pub client: ClientId,
    /// Its request id.
    pub request: OwnedId,
}

/// Which prompts are cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// Everybody's.
    All,
    /// All of one client. It may also cancel the turn that a client which has gone left behind.
    OfClient(ClientId),
    /// One.
    One(Asker),
}

/// What a live session can be asked or told.
pub enum SessionMessage {
    /// Waits until the agent has made the session; for `session/new`.
    Open {
        /// The session, or what the agent answered instead.
        reply: Reply<Result<AcpSessionRow, ErrorObject>>,
    },
    /// A client wants to see what happens, and to answer questions.
    Attach {
        /// Which client.
        client: ClientId,
        /// Its feed.
        feed: mpsc::UnboundedSender<FeedCommand>,
        /// Where the session is.
        reply: Reply<Attached>,
    },
    /// A client has gone. Neither a cancel nor a close: its turn goes on.
    Detach {
        /// Which client.
        client: ClientId,
    },
    /// Runs a turn, after those that wait already.
    Prompt {
        /// Who asked, if it is a client.
        asker: Option<Asker>,
        /// The prompt's params; the session id in them is replaced.
        params: Box<RawValue>,
        /// Answered when the turn has ended and its end is on disk.
        reply: Reply<PromptDone>,
    },
    /// Cancels prompts, whether they run or wait. Never ends the adapter.
    Cancel {
        /// Which of them.
        which: Cancelled,
    },
    /// Passes a request on to the agent, starting it if need be.
    Forward {
        /// The ACP method.
        method: String,
        /// Its params; the session id in them is replaced.
        params: Box<RawValue>,
        /// The agent's answer, with our session id.
        reply: Reply<Result<Box<RawValue>, ErrorObject>>,
    },
    /// Passes an extension's notification on to the agent that has the session; there is nobody to tell without one.
    Notify {
        /// The ACP method.
        method: String,
        /// Its params; the session id in them is replaced.
        params: Box<RawValue>,
    },
    /// A client answered a question of the agent.
    Answered {
        /// Which client.
        client: ClientId,
        /// Which question.
        question: u64,
        /// The answer.
        outcome: Result<Box<RawValue>, ErrorObject>,
    },
    /// Ends the turn, the agent's process and, for clients, the session. Its history stays.
    Close {
        /// Answered when nothing of the agent is left.
        reply: Reply<Result<(), ErrorObject>>,
    },
    /// The agent said something.
    Said {
        /// What.
        said: FromAgent,
        /// Which start of the adapter it belongs to.
        epoch: u64,
        /// Answered when it is on disk, so that an agent that says more than the disk takes has to wait.
        stored: Reply<()>,
    },
    /// The agent has the session now, or could not be brought to.
    BroughtUp {
        /// Which start of the adapter it belongs to.
        epoch: u64,
        /// The outcome.
        outcome: Box<Result<BroughtUp, BringUpError>>,
    },
    /// The agent answered the running turn's prompt.
    TurnAnswered {
        /// Which turn.
        number: i64,
        /// What it answered.
        answer: AgentAnswer,
    },
    /// The store took the change that was on its way, or did not.
    Stored {
        /// The outcome.
        outcome: Result<Result<(), StoreError>, CallError>,
    },
    /// Send the change again whose outcome is unknown.
    StoreAgain,
    /// The agent has been quiet for a while after it was asked to load the session.
    ReplayQuiet {
        /// Which start of the adapter it belongs to.
        epoch: u64,
        /// How many updates had come when the wait began.
        seen: u64,
    },
    /// Nothing has happened for the agent's idle time.
    IdleDue {
        /// What had happened when the wait began.
        activity: u64,
    },
    /// The agent's process has been ended for a close.
    AgentEnded {
        /// Which start of the adapter it belongs to.
        epoch: u64,
    },
}
