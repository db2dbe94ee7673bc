//! One agent process as a JSON-RPC peer: requests out, answers in, everything else handed to its session.
//!
//! The adapter never waits for a session: its reader does, so a session whose store is slow slows the agent down
//! through its pipe and blocks nobody else.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::acp::FRAME_MAX_BYTES;
use holdfast_protocol::error::ErrorObject;
use holdfast_protocol::framing::{LineBuffer, LineTooLong};
use holdfast_protocol::jsonrpc::{self, Frame, Message, OwnedId};
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::acp::launcher::{EndTree, Launched};
use crate::address::{Address, Down};
use crate::reply::Reply;
use crate::surface::{Context, Fault, Surface};

/// How long the pipe of an agent that has exited may be silent before it counts as empty: a grandchild may hold it open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Most bytes that a pipe holds (pipe(7), the default of `pipe-max-size`), so most that an agent that has exited left in
/// it. What comes behind is a grandchild's.
const PIPE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of updates that may be on their way from one adapter to the store; more of them stop the reader.
const UPDATE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What can be asked of an agent's process.
pub enum AdapterMessage {
    /// Takes over a process that was just started. The first message.
    Run {
        /// The process.
        launched: Launched,
    },
    /// Sends a request; answered with the agent's answer.
    Request {
        /// The ACP method.
        method: String,
        /// Its params, with the agent's session id.
        params: Box<RawValue>,
        /// The answer.
        reply: Reply<AgentAnswer>,
    },
    /// Sends a notification.
    Notify {
        /// The ACP method.
        method: String,
        /// Its params, with the agent's session id.
        params: Box<RawValue>,
    },
    /// Answers a request of the agent.
    Respond {
        /// The agent's request id.
        id: OwnedId,
        /// The answer.
        outcome: Result<Box<RawValue>, ErrorObject>,
    },
    /// The agent answered a request of ours.
    Answered {
        /// Our request id.
        id: u64,
        /// The answer.
        outcome: Result<Box<RawValue>, ErrorObject>,
    },
    /// The agent's process has ended.
    Exited {
        /// How, for people.
        how: String,
    },
    /// Ends the process and its tree; answered when it has gone.
    End {
        /// Answered when the tree has gone.
        reply: Reply<()>,
    },
}

/// What an agent answered, or why it did not.
pub type AgentAnswer = Result<Box<RawValue>, AdapterError>;

/// Why a request to an agent brought no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdapterError {
    /// The agent answered an error.
    #[error("the agent answered error {}: {}", .0.code, .0.message)]
    Agent(ErrorObject),
    /// The agent's process has ended.
    #[error("the agent's process ended: {0}")]
    Gone(String),
    /// The agent did not answer in time.
    #[error("the agent did not answer `{method}` within {} s", .limit.as_secs())]
    Timeout {
        /// What was asked.
        method: String,
        /// How long we waited.
        limit: Duration,
    },
}

/// A request of an agent that waits for its answer.
#[derive(Debug)]
pub struct AgentRequest {
    id: OwnedId,
    adapter: Address<AdapterMessage>,
}

impl AgentRequest {
    /// Returns the agent's request id.
    pub fn id(&self) -> &OwnedId {
        &self.id
    }

    /// Answers it.
    pub fn answer(self, outcome: Result<Box<RawValue>, ErrorObject>) {
        // An agent that is gone waits for no answer.
        let _gone = self.adapter.tell_now(AdapterMessage::Respond { id: self.id, outcome });
    }
}

/// What an agent says by itself, in order.
pub enum FromAgent {
    /// A notification.
    Notification {
        /// The ACP method.
        method: String,
        /// Its params, with the agent's session id.
        params: Option<Box<RawValue>>,
        /// Held until it is stored.
        bytes: tokio::sync::OwnedSemaphorePermit,
    },
    /// A request; the agent waits for its answer, whatever state the session is in.
    Request {
        /// What takes the answer.
        asked: AgentRequest,
        /// The ACP method.
        method: String,
        /// Its params, with the agent's session id.
        params: Option<Box<RawValue>>,
    },
    /// A line longer than the limit; it is lost.
    TooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// The process has ended; nothing more comes.
    Exited {
        /// How, for people.
        how: String,
    },
}

/// Where an adapter hands what the agent says. Waiting here slows the agent down.
pub trait AgentSink: Send + Sync + 'static {
    /// Takes one thing the agent said. An error means that nobody listens any more.
    fn take(&self, said: FromAgent) -> impl Future<Output = Result<(), ()>> + Send;
}

/// One agent process.
pub struct Adapter<S> {
    sink: Arc<S>,
}

impl<S: AgentSink> Adapter<S> {
    /// Makes an adapter that hands what the agent says to `sink`.
    pub fn new(sink: S) -> Self {
        Self { sink: Arc::new(sink) }
    }
}

/// What the actor owns: our side of the process.
#[derive(Default)]
pub struct AdapterState {
    writer: Option<mpsc::UnboundedSender<Vec<u8>>>,
    end: Option<EndTree>,
    pending: HashMap<u64, Reply<AgentAnswer>>,
    next_id: u64,
    exited: Option<String>,
    ending: Vec<Reply<()>>,
}

impl<S: AgentSink> Surface for Adapter<S> {
    type Message = AdapterMessage;
    type State = AdapterState;

    async fn start(&self, _context: &Context<AdapterMessage>) -> Result<AdapterState, Down> {
        Ok(AdapterState::default())
    }

    async fn handle(
        &self,
        context: &Context<AdapterMessage>,
        message: AdapterMessage,
        state: &mut AdapterState,
    ) -> Result<(), Fault> {
        match message {
            AdapterMessage::Run { launched } => state.run(launched, &self.sink, context),
            AdapterMessage::Request { method, params, reply } => state.request(&method, &params, reply),
            AdapterMessage::Notify { method, params } => {
                let mut line = Vec::new();
                jsonrpc::write_raw_notification(&mut line, &method, Some(&params));
                state.write(line);
            }
            AdapterMessage::Respond { id, outcome } => {
                let mut line = Vec::new();
                match outcome {
                    Ok(result) => jsonrpc::write_raw_result(&mut line, id, &result),
                    Err(error) => jsonrpc::write_error_object(&mut line, id, &error),
                }
                state.write(line);
            }
            AdapterMessage::Answered { id, outcome } => match state.pending.remove(&id) {
                Some(reply) => reply.send(outcome.map_err(AdapterError::Agent)),
                None => tracing::warn!(id, "the agent answered a request that was never made or already answered"),
            },
            AdapterMessage::Exited { how } => state.exited(&how, context),
            AdapterMessage::End { reply } => state.end(reply, context),
        }
        Ok(())
    }

    async fn stop(&self, _context: &Context<AdapterMessage>, state: AdapterState) {
        if let (None, Some(end)) = (&state.exited, &state.end) {
            end().await;
        }
        for reply in state.ending {
            reply.send(());
        }
    }
}

impl AdapterState {
    fn run<S: AgentSink>(&mut self, launched: Launched, sink: &Arc<S>, context: &Context<AdapterMessage>) {
        let (writer, outgoing) = mpsc::unbounded_channel();
        self.writer = Some(writer);
        self.end = Some(launched.end);
        tokio::spawn(write_lines(launched.stdin, outgoing));
        let (tell_exited, exited) = watch::channel(false);
        let lines = Lines { sink: Arc::clone(sink), adapter: context.address().clone() };
        let reading = tokio::spawn(lines.read(launched.stdout, exited));
        let reporter = context.reporter();
        let sink = Arc::clone(sink);
        tokio::spawn(async move {
            let how = launched.exited.await;
            tell_exited.send_replace(true);
            // However slow the store is: what the agent said before it ended comes before its end.
            if let Err(died) = reading.await {
                tracing::error!(%died, "the reader of an agent died");
            }
            // Whoever is gone needs no news.
            let _unheard = reporter.report(AdapterMessage::Exited { how: how.clone() });
            let _unheard = sink.take(FromAgent::Exited { how }).await;
        });
    }

    fn write(&self, line: Vec<u8>) {
        if let Some(writer) = &self.writer {
            // A writer that has ended means that the process has; `Exited` is on its way and settles what waits.
            let _gone = writer.send(line);
        }
    }

    fn request(&mut self, method: &str, params: &RawValue, reply: Reply<AgentAnswer>) {
        if let Some(how) = &self.exited {
            return reply.send(Err(AdapterError::Gone(how.clone())));
        }
        self.next_id += 1;
        let id = self.next_id;
        let mut line = Vec::new();
        jsonrpc::write_raw_request(&mut line, id, method, Some(params));
        self.pending.insert(id, reply);
        self.write(line);
    }

    fn exited(&mut self, how: &str, context: &Context<AdapterMessage>) {
        self.exited = Some(how.to_owned());
        for (_, reply) in self.pending.drain() {
            reply.send(Err(AdapterError::Gone(how.to_owned())));
        }
        context.stop_self();
    }

    fn end(&mut self, reply: Reply<()>, context: &Context<AdapterMessage>) {
        let Some(end) = self.end.clone().filter(|_| self.exited.is_none()) else { return reply.send(()) };
        let first = self.ending.is_empty();
        self.ending.push(reply);
        if first {
            let ending = end();
            let reporter = context.reporter();
            tokio::spawn(async move {
                ending.await;
                // The exit itself is reported by its own watcher; this covers a tree that could not be ended.
                let _unheard = reporter.report(AdapterMessage::Exited { how: "it was ended".to_owned() });
            });
        }
    }
}

async fn write_lines(mut stdin: Box<dyn AsyncWrite + Send + Unpin>, mut outgoing: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = outgoing.recv().await {
        if let Err(error) = stdin.write_all(&line).await {
            tracing::debug!(%error, "failed to write to the agent; it is ending");
            return;
        }
        if let Err(error) = stdin.flush().await {
            tracing::debug!(%error, "failed to write to the agent; it is ending");
            return;
        }
    }
}

/// Reads what an agent prints and hands it on, line by line.
struct Lines<S> {
    sink: Arc<S>,
    adapter: Address<AdapterMessage>,
}

impl<S: AgentSink> Lines<S> {
    async fn read(self, mut stdout: Box<dyn AsyncRead + Send + Unpin>, mut exited: watch::Receiver<bool>) {
        let budget = Arc::new(Semaphore::new(UPDATE_BYTES_MAX));
        let mut buffer = LineBuffer::new(FRAME_MAX_BYTES);
        let mut noise: u64 = 0;
        let mut left_bytes = PIPE_BYTES_MAX;
        loop {
            while let Some(line) = buffer.next_line() {
                if self.hand_over(sort_line(line, &mut noise), &budget).await.is_err() {
                    return;
                }
            }
            let read = read_some(&mut stdout, buffer.spare_mut(), &mut exited).await;
            match read {
                Ok(0) => break,
                Ok(count) => buffer.advance(count),
                Err(error) => {
                    tracing::debug!(%error, "failed to read from the agent; it is ending");
                    break;
                }
            }
            if *exited.borrow() {
                let Some(left) = left_bytes.checked_sub(read.unwrap_or(0)) else { break };
                left_bytes = left;
            }
        }
        // Some agents end without a last newline.
        if let Some(line) = buffer.finish() {
            // Nobody listens any more: then nobody misses it.
            let _unheard = self.hand_over(sort_line(line, &mut noise), &budget).await;
        }
    }

    async fn hand_over(&self, said: Sorted, budget: &Arc<Semaphore>) -> Result<(), ()> {
        match said {
            Sorted::Nothing => Ok(()),
            Sorted::Answer { id, outcome } => {
                self.adapter.tell(AdapterMessage::Answered { id, outcome }).await.map_err(drop)
            }
            Sorted::TooLong(limit_bytes) => self.sink.take(FromAgent::TooLong { limit_bytes }).await,
            Sorted::Request { id, method, params } => {
                let asked = AgentRequest { id, adapter: self.adapter.clone() };
                self.sink.take(FromAgent::Request { asked, method, params }).await
            }
            Sorted::Notification { method, params } => {
                let wanted = params.as_ref().map_or(0, |raw| raw.get().len()).clamp(1, UPDATE_BYTES_MAX);
                let permits = u32::try_from(wanted).unwrap_or(u32::MAX);
                // The semaphore lives as long as the reader and is never closed.
                let bytes = Arc::clone(budget).acquire_many_owned(permits).await.map_err(drop)?;
                self.sink.take(FromAgent::Notification { method, params, bytes }).await
            }
        }
    }
}

/// Reads what there is; 0 at the end, also when the agent has exited and nothing more comes.
async fn read_some(
    stdout: &mut (dyn AsyncRead + Send + Unpin),
    room: &mut [u8],
    exited: &mut watch::Receiver<bool>,
) -> io::Result<usize> {
    tokio::select! {
        biased;
        read = stdout.read(room) => return read,
        // An error: whoever watches the process is gone, and so is the process.
        _exited = exited.wait_for(|exited| *exited) => {}
    }
    tokio::time::timeout(LAST_WORDS, stdout.read(room)).await.unwrap_or(Ok(0))
}

enum Sorted {
    Nothing,
    Answer { id: u64, outcome: Result<Box<RawValue>, ErrorObject> },
    Request { id: OwnedId, method: String, params: Option<Box<RawValue>> },
    Notification { method: String, params: Option<Box<RawValue>> },
    TooLong(usize),
}

/// Sorts one line. Noise on stdout is common among agents: it is counted and never answered.
fn sort_line(line: Result<&[u8], LineTooLong>, noise: &mut u64) -> Sorted {
    let own = |params: Option<&RawValue>| params.map(ToOwned::to_owned);
    let line = match line {
        Ok(line) => line,
        Err(too_long) => return Sorted::TooLong(too_long.limit_bytes),
    };
    match jsonrpc::parse_frame(line) {
        Frame::Single(Message::Request { id, method, params }) => {
            Sorted::Request { id: id.to_owned(), method: method.into_owned(), params: own(params) }
        }
        Frame::Single(Message::Notification { method, params }) => {
            Sorted::Notification { method: method.into_owned(), params: own(params) }
        }
        Frame::Single(Message::Response { id, outcome }) => match id.as_u64() {
            Some(id) => Sorted::Answer { id, outcome: outcome.map(ToOwned::to_owned) },
            None => Sorted::Nothing,
        },
        Frame::Single(Message::Invalid { .. }) | Frame::Batch(_) | Frame::Invalid(_) => {
            *noise += 1;
            if noise.is_power_of_two() {
                tracing::warn!(lines = *noise, "the agent printed lines that are no ACP messages; they are ignored");
            }
            Sorted::Nothing
        }
    }
}
