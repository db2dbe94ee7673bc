//! The way to a running daemon.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_protocol::acp::FRAME_MAX_BYTES;
use holdfast_protocol::client::{Client, ClientError};
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::method::Method;
use holdfast_protocol::methods::acp::{Attach, AttachParams};
use holdfast_protocol::methods::rpc::{InitializeResult, PeerInfo};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::value::RawValue;

use super::Place;
use crate::render::{Exit, Failure};

/// The longest path that fits into a socket address with its final zero: `sun_path` in unix(7) has 108 bytes.
const SOCKET_PATH_MAX: usize = 107;

/// How long an answer may take. A reload waits for every surface, each with limits of its own, and stays below this.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// A conversation with the daemon, opened by `initialize`.
pub struct Connection {
    client: Client<UnixStream>,
    /// What the daemon said of itself.
    pub server: InitializeResult,
    process: Option<OwnedFd>,
}

/// A connection that carries raw ACP frames.
#[derive(Debug)]
pub struct AcpStream {
    /// The stream.
    pub stream: UnixStream,
    /// What was read from it already, and splits the rest into frames.
    pub incoming: LineBuffer,
}

/// Who is at the other end of the socket.
pub(super) enum Reached {
    /// A daemon.
    Daemon(Connection),
    /// Nobody: there is no socket, or nobody listens on it any more. Holds what a command that needs a daemon says.
    Nobody(Failure),
}

/// Connects to the daemon of `place`.
///
/// # Errors
/// [`Exit::DaemonUnreachable`] when none answers, [`Exit::Refused`] when the socket is somebody else's, else what the
/// daemon says.
pub fn connect(place: &Place) -> Result<Connection, Failure> {
    match reach(place)? {
        Reached::Daemon(connection) => Ok(connection),
        Reached::Nobody(failure) => Err(failure),
    }
}

/// Connects to the daemon of `place`, if there is one.
///
/// # Errors
/// As [`connect`], but for the absence of a daemon.
pub(super) fn reach(place: &Place) -> Result<Reached, Failure> {
    let stream = match open(&place.root.socket()) {
        Ok(stream) => stream,
        Err(error) if is_absence(&error) => return Ok(Reached::Nobody(unreachable_daemon(place, &error))),
        Err(error) => return Err(unreachable_daemon(place, &error)),
    };
    let limited =
        stream.set_read_timeout(Some(ANSWER_LIMIT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_LIMIT)));
    limited.map_err(|error| Failure::new(Exit::Failed, format!("could not set up the connection: {error}")))?;
    // The descriptor names this very process, also after its number has gone to another.
    let process = rustix::net::sockopt::socket_peercred(&stream)
        .ok()
        .and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
    let mut client = Client::new(stream);
    let caller = PeerInfo { name: "holdfast".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let server = client.initialize(caller).map_err(failure)?;
    Ok(Reached::Daemon(Connection { client, server, process }))
}

impl Connection {
    /// Calls the method `M`.
    ///
    /// # Errors
    /// What the daemon says, or that the connection broke.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.client.call::<M>(params).map_err(failure)
    }

    /// Calls any method with params as JSON text.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_raw(&mut self, method: &str, params: &RawValue) -> Result<Box<RawValue>, Failure> {
        self.client.call_raw(method, Some(params)).map_err(failure)
    }

    /// Turns the connection into raw ACP frames with an agent.
    ///
    /// # Errors
    /// What the daemon says, or that the connection broke.
    pub fn attach(mut self, params: &AttachParams) -> Result<AcpStream, Failure> {
        self.call::<Attach>(params)?;
        let parts = self.client.into_parts();
        let mut incoming = parts.incoming;
        incoming.set_limit_bytes(FRAME_MAX_BYTES);
        // An agent may think for hours.
        let unlimited = parts.stream.set_read_timeout(None).and_then(|()| parts.stream.set_write_timeout(None));
        unlimited.map_err(|error| Failure::new(Exit::Failed, format!("could not set up the connection: {error}")))?;
        Ok(AcpStream { stream: parts.stream, incoming })
    }

    /// Waits until the daemon's process has ended. Returns whether it has, within `limit`.
    ///
    /// Where the kernel does not say which process it is (another pid namespace), the end of the connection counts.
    pub fn wait_for_end(mut self, limit: Duration) -> bool {
        let Some(process) = &self.process else {
            return loop {
                if let Err(error) = self.client.next_notification() {
                    break matches!(error, ClientError::Closed);
                }
            };
        };
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
        // A descriptor of a process becomes readable when the process ends: pidfd_open(2).
        let mut watched = [PollFd::new(process, PollFlags::IN)];
        matches!(rustix::io::retry_on_intr(|| poll(&mut watched, Some(&limit))), Ok(count) if count > 0)
    }
}

/// Opens the socket. A path over the kernel's limit is reached through a descriptor of its directory.
fn open(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().as_bytes().len() <= SOCKET_PATH_MAX {
        return UnixStream::connect(path);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).join(name);
    UnixStream::connect(short)
}

/// Nothing there, or a socket file that nobody listens on any more.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn unreachable_daemon(place: &Place, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Failure::new(Exit::DaemonUnreachable, format!("no daemon answers at {}", place.shown()))
                .hint("`holdfast run demo \"hello\"` starts one; `holdfast daemon` runs it in the foreground")
        }
        io::ErrorKind::PermissionDenied => {
            Failure::new(Exit::Refused, format!("the daemon at {} belongs to somebody else", place.shown()))
                .hint("run as its owner, or choose another root with --root")
        }
        _ => Failure::new(Exit::DaemonUnreachable, format!("could not reach the daemon at {}: {error}", place.shown()))
            .hint("holdfast status"),
    }
}

/// Turns what the client met into what the user is told.
pub(super) fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(error) => error.into(),
        ClientError::Closed => closed(),
        ClientError::Io { ref source, .. }
            if matches!(source.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
        {
            closed()
        }
        ClientError::Io { ref source, .. }
            if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Failure::new(Exit::DaemonUnreachable, format!("no answer within {} s", ANSWER_LIMIT.as_secs()))
                .hint("whether it took effect is not known; `holdfast status` shows how busy it is")
        }
        ClientError::Io { .. } => Failure::caused(Exit::DaemonUnreachable, &error).hint("holdfast status"),
        ClientError::Protocol { .. } | ClientError::Result { .. } => Failure::caused(Exit::Failed, &error)
            .hint("daemon and program may be of different versions: holdfast status"),
        ClientError::Params { .. } => Failure::caused(Exit::Failed, &error),
    }
}

/// The daemon ended, or ended the connection: the system reports it in more than one way.
fn closed() -> Failure {
    Failure::caused(Exit::DaemonUnreachable, &ClientError::Closed)
        .hint("whether it took effect is not known; `holdfast status` shows whether it lives")
}
