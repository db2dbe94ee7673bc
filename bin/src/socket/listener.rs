//! Accepts connections and counts them.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use holdfast_actors::address::{Address, CallError, Down};
use holdfast_actors::reply::Reply;
use holdfast_actors::supervisor::{DynamicSupervisor, Ended, Limits};
use holdfast_actors::surface::{Context, Fault, Surface};
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::jsonrpc::write_error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connection::{Connection, Peer};
use super::{BoundSocket, SocketService};

/// How long to wait after the system had no descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The running socket.
#[derive(Clone)]
pub struct SocketServer {
    shared: Arc<Shared>,
    listener: Address<ListenerMessage>,
}

/// What the listener and its connections share.
pub(super) struct Shared {
    pub(super) service: SocketService,
    supervisor: DynamicSupervisor,
    /// How many connections are open.
    open: watch::Sender<usize>,
    /// Whether connections shall finish.
    stopping: watch::Sender<bool>,
}

impl SocketServer {
    /// Starts to accept on `bound`; the listener and its connections are children of `supervisor`, which has to outlive
    /// reloads.
    ///
    /// # Errors
    /// [`CallError`] when the listener cannot start.
    pub async fn start(
        bound: BoundSocket,
        service: SocketService,
        supervisor: &DynamicSupervisor,
    ) -> Result<Self, CallError> {
        let listener = Listener::new(bound, service, supervisor);
        let shared = Arc::clone(&listener.shared);
        let on_end = |ended| {
            if let Ended::Crashed(reason) = ended {
                tracing::error!(%reason, "the socket's listener crashed; no more clients can connect");
            }
        };
        let listener = supervisor.spawn("socket", Limits::default(), listener, on_end).await?;
        Ok(Self { shared, listener })
    }

    /// Returns how many connections are open.
    pub fn connections(&self) -> usize {
        *self.shared.open.borrow()
    }

    /// Stops accepting and removes the socket's file. Connections go on; their supervisor ends them.
    pub async fn stop_accepting(&self) {
        let limit = self.shared.service.limits.finish;
        if let Err(error) = self.listener.call(limit, |reply| ListenerMessage::Stop { reply }).await {
            // It has ended already, and its end does the same.
            tracing::debug!(%error, "the listener was not there to be stopped");
        }
    }

    /// Stops accepting, removes the socket's file, lets requests in flight finish within their limit, and closes the
    /// connections. Returns when all are closed.
    pub async fn stop(&self) {
        let limit = self.shared.service.limits.finish;
        self.stop_accepting().await;
        self.shared.stopping.send_replace(true);
        let mut open = self.shared.open.subscribe();
        // Connections keep to the limit themselves; twice the time is for one whose task hangs.
        if tokio::time::timeout(limit * 2, open.wait_for(|open| *open == 0)).await.is_err() {
            tracing::warn!(open = self.connections(), "some connections did not end in time");
        }
    }
}

impl std::fmt::Debug for SocketServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SocketServer").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

/// The actor that accepts. It can start again on the same socket, so a supervisor may restart it.
pub struct Listener {
    bound: Arc<BoundSocket>,
    shared: Arc<Shared>,
}

/// What the listener is told.
#[derive(Debug)]
pub enum ListenerMessage {
    /// Stop accepting and remove the socket's file.
    Stop {
        /// Answered when that is done.
        reply: Reply<()>,
    },
    /// The accepting task panicked.
    AcceptPanicked,
}

impl Listener {
    /// Makes the listener of `bound`; connections become children of `supervisor`.
    pub fn new(bound: BoundSocket, service: SocketService, supervisor: &DynamicSupervisor) -> Self {
        let shared = Shared {
            service,
            supervisor: supervisor.clone(),
            open: watch::Sender::new(0),
            stopping: watch::Sender::new(false),
        };
        Self { bound: Arc::new(bound), shared: Arc::new(shared) }
    }
}

/// The accepting task; ends with the incarnation that owns it.
pub struct Accepting(Option<JoinHandle<()>>);

impl Drop for Accepting {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Surface for Listener {
    type Message = ListenerMessage;
    type State = Accepting;

    async fn start(&self, context: &Context<ListenerMessage>) -> Result<Accepting, Down> {
        let listener = self.bound.listener().and_then(UnixListener::from_std).map_err(|error| Down {
            kind: ErrorKind::Down,
            reason: format!("failed to listen on `{}`: {error}", self.bound.path().display()),
            remedy: "restart the daemon".to_owned(),
        })?;
        let accepting = accept(listener, Arc::clone(&self.shared));
        let reporter = context.reporter();
        let task = tokio::spawn(async move {
            // The listener's state is not looked at again after a panic; the next incarnation makes its own.
            if AssertUnwindSafe(accepting).catch_unwind().await.is_err() {
                // An incarnation that is gone needs no report.
                let _gone = reporter.report(ListenerMessage::AcceptPanicked);
            }
        });
        Ok(Accepting(Some(task)))
    }

    async fn handle(
        &self,
        _context: &Context<ListenerMessage>,
        message: ListenerMessage,
        state: &mut Accepting,
    ) -> Result<(), Fault> {
        match message {
            ListenerMessage::Stop { reply } => {
                stop_accepting(state).await;
                self.bound.remove_file();
                reply.send(());
                Ok(())
            }
            ListenerMessage::AcceptPanicked => Err(Fault::Restart("the accepting task panicked".to_owned())),
        }
    }

    async fn stop(&self, _context: &Context<ListenerMessage>, mut state: Accepting) {
        stop_accepting(&mut state).await;
        self.bound.remove_file();
        self.shared.stopping.send_replace(true);
    }
}

async fn stop_accepting(state: &mut Accepting) {
    if let Some(task) = state.0.take() {
        task.abort();
        // Aborted or done: either way it accepts no more.
        let _ended = task.await;
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, _unnamed)) => welcome(stream, &shared),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts a connection, or says why not and closes it.
fn welcome(stream: UnixStream, shared: &Arc<Shared>) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => return turn_away(&stream, &error),
    };
    let Some(open) = Open::one_more(shared) else {
        let error = WireError::new(ErrorKind::Busy, "the daemon has as many connections as it may have")
            .with_remedy("close another client and try again");
        return turn_away(&stream, &error);
    };
    let limits = &shared.service.limits;
    let child = Limits {
        in_flight_max: 16,
        start: Duration::from_secs(5),
        // A connection that ends waits for its requests; see `Connection`.
        drain: limits.finish + Duration::from_secs(1),
        stop: Duration::from_secs(1),
    };
    let (service, stopping) = (shared.service.clone(), shared.stopping.subscribe());
    let supervisor = shared.supervisor.clone();
    // A task of its own: the supervisor that starts the connection may be waiting for this listener to end.
    tokio::spawn(async move {
        let connection = Connection::new(stream, peer.look().await, service, stopping, open);
        if let Err(error) = supervisor.spawn("connection", child, connection, |_ended| {}).await {
            tracing::debug!(%error, "a connection could not be started");
        }
    });
}

fn turn_away(stream: &UnixStream, error: &WireError) {
    let mut line = Vec::new();
    write_error(&mut line, None::<u64>, error);
    // A fresh socket has room for a line; a client that is gone already misses nothing.
    let _unread = stream.try_write(&line);
    tracing::warn!(error = %error.message, "turned a connection away");
}

/// Counts an open connection for as long as it lives.
pub(super) struct Open(Arc<Shared>);

impl Open {
    fn one_more(shared: &Arc<Shared>) -> Option<Self> {
        let most = shared.service.limits.connections;
        let counted = shared.open.send_if_modified(|open| {
            let room = *open < most;
            *open += usize::from(room);
            room
        });
        counted.then(|| Self(Arc::clone(shared)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open = open.saturating_sub(1));
    }
}
