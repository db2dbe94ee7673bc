//! One client: an actor that owns the task which reads and writes. A panic in it ends only this connection.

mod raw;
mod requests;
mod rpc;
mod writer;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use holdfast_actors::address::Down;
use holdfast_actors::process::proc_table::ProcHandle;
use holdfast_actors::process::{Lineage, LineageError, ProcTable, ProcessHandle, lineage_of};
use holdfast_actors::surface::{Context, Fault, Surface};
use holdfast_protocol::error::{ErrorKind, WireError};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::SocketService;
use super::listener::Open;

/// Who is at the other end, as the kernel says.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    /// A hold on the process that connected, where the kernel hands one out.
    pidfd: Option<OwnedFd>,
}

/// What is known of whoever connected.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    pub(super) lineage: Option<Arc<Result<Lineage, LineageError>>>,
}

impl Peer {
    /// Reads the peer's credentials.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] unless it is the daemon's own user or root.
    pub(super) fn of(stream: &UnixStream) -> Result<Self, WireError> {
        let credentials = stream.peer_cred().map_err(|error| {
            WireError::new(ErrorKind::Denied, format!("failed to find out which user connects: {error}"))
        })?;
        let uid = credentials.uid();
        let ours = rustix::process::geteuid().as_raw();
        if uid != ours && uid != 0 {
            return Err(WireError::new(ErrorKind::Denied, format!("the socket is user {ours}'s, not user {uid}'s")));
        }
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        Ok(Self { uid, pid, pidfd: peer_pidfd(stream) })
    }

    /// Looks whose child it is, before it can end. One outside of our PID namespace descends from nobody here.
    pub(super) async fn look(self) -> Connected {
        let Self { uid, pid, pidfd } = self;
        let Some(number) = pid.and_then(|pid| i32::try_from(pid).ok()) else {
            return Connected { uid, pid, lineage: None };
        };
        let looked = tokio::task::spawn_blocking(move || {
            let held = pidfd.map(|pidfd| Box::new(ProcHandle::new(number, pidfd)) as Box<dyn ProcessHandle>);
            lineage_of(number, held, &ProcTable)
        });
        // A look that panicked says nothing, which leaves its caller without rights.
        let lineage = looked.await.unwrap_or(Err(LineageError::Gone));
        Connected { uid, pid, lineage: Some(Arc::new(lineage)) }
    }
}

/// Returns a pidfd of the process that connected; `None` before Linux 6.5, and where it has been reaped. Its number could
/// pass to another process, this can't.
fn peer_pidfd(stream: &UnixStream) -> Option<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).ok()?;
    // SAFETY: both pointers are to live values of the sizes given; the kernel writes at most that.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut length,
        )
    };
    // SAFETY: the kernel made the descriptor for us, and nothing else has it.
    (asked == 0 && pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The actor of one connection.
pub(super) struct Connection {
    stream: Arc<UnixStream>,
    peer: Connected,
    service: SocketService,
    /// Whether the whole socket is stopping.
    stopping: watch::Receiver<bool>,
    /// Counts the connection as open until the supervisor has let go of it.
    _open: Open,
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        peer: Connected,
        service: SocketService,
        stopping: watch::Receiver<bool>,
        open: Open,
    ) -> Self {
        Self { stream: Arc::new(stream), peer, service, stopping, _open: open }
    }
}

/// What the task reports.
#[derive(Debug)]
pub(super) enum ConnectionMessage {
    /// The connection is closed.
    Closed,
    /// The task panicked.
    Panicked,
}

/// The task, which ends with the actor.
pub(super) struct Running {
    task: JoinHandle<()>,
    finish: Option<oneshot::Sender<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Surface for Connection {
    type Message = ConnectionMessage;
    type State = Running;

    async fn start(&self, context: &Context<ConnectionMessage>) -> Result<Running, Down> {
        let (finish, finish_asked) = oneshot::channel();
        let stop = Stop { socket: self.stopping.clone(), connection: finish_asked };
        let work = rpc::serve(Arc::clone(&self.stream), self.peer.clone(), self.service.clone(), stop);
        let stream = Arc::clone(&self.stream);
        let reporter = context.reporter();
        let task = tokio::spawn(async move {
            let outcome = AssertUnwindSafe(work).catch_unwind().await;
            // The actor still holds the stream for a moment; the client shall not wait for that.
            if let Err(error) = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Both) {
                tracing::trace!(%error, "the client had closed the connection");
            }
            let message = match outcome {
                Ok(Ok(())) => ConnectionMessage::Closed,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a connection broke");
                    ConnectionMessage::Closed
                }
                Err(_panic) => ConnectionMessage::Panicked,
            };
            // An actor that is ending already needs no report.
            let _ending = reporter.report(message);
        });
        Ok(Running { task, finish: Some(finish) })
    }

    async fn handle(
        &self,
        context: &Context<ConnectionMessage>,
        message: ConnectionMessage,
        _state: &mut Running,
    ) -> Result<(), Fault> {
        match message {
            ConnectionMessage::Closed => {
                context.stop_self();
                Ok(())
            }
            ConnectionMessage::Panicked => Err(Fault::Restart("the connection's task panicked".to_owned())),
        }
    }

    async fn stop(&self, _context: &Context<ConnectionMessage>, mut state: Running) {
        if let Some(finish) = state.finish.take() {
            // A task that has ended needs not be asked.
            let _ended = finish.send(());
        }
        // The task keeps to its limit; the supervisor's limit is behind it.
        let _ended = (&mut state.task).await;
    }
}

/// When to finish: with the socket, or with this connection's actor.
pub(super) struct Stop {
    socket: watch::Receiver<bool>,
    connection: oneshot::Receiver<()>,
}

impl Stop {
    /// Waits until it is time. Not to be awaited again after that.
    async fn asked(&mut self) {
        tokio::select! {
            // Either sender gone means that nobody is left to serve for.
            _ = self.socket.wait_for(|stopping| *stopping) => {}
            _ = &mut self.connection => {}
        }
    }
}

/// Reads once, without waiting. `None` when there is nothing to read now.
fn read_now(stream: &UnixStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.try_read(into) {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says whether the peer has closed both directions, so that no answer can reach it.
fn hung_up(stream: &UnixStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut descriptors = [PollFd::new(stream, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut descriptors, Some(&at_once)) {
        Ok(_) => descriptors[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        // Not known; the next write will tell.
        Err(_) => false,
    }
}
