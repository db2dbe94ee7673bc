//! `holdfast acp`: an ACP agent on standard input and output, for editors.
//!
//! ```text
//! editor --stdin--> [reader] --\
//!                               >-- one queue --> [this thread: state] --> daemon's socket, stdout
//! daemon --socket-> [reader] --/
//! ```
//!
//! Frames go both ways byte for byte. The bridge holds no session: when the editor goes, it goes; when the daemon goes,
//! it answers what is open, finds or starts a daemon, introduces the editor again and attaches its sessions again, and
//! the editor never learns more than that a request has to be repeated. It never makes a session by itself.

mod state;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_protocol::acp::FRAME_MAX_BYTES;
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::ids::AgentAlias;
use holdfast_protocol::methods::acp::AttachParams;

use self::state::{Bridge, FromClient, FromDaemon, too_long};
use crate::cli::AcpArguments;
use crate::commands::{AcpStream, Place, connect, connect_or_start};
use crate::render::{Exit, Failure, Renderer};

/// Frames that may wait on their way to either side; past it the sender is not read.
const QUEUE_LEN: usize = 64;

/// How long requests wait for a daemon that went away before they are answered with an error.
const AWAY_LIMIT: Duration = Duration::from_secs(10);

/// Lines of the editor that wait for a daemon; past it they are answered at once.
const WAITING_MAX: usize = 256;

/// The pauses between attempts to reach a daemon: the first, and the longest.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a daemon may take to introduce the editor and attach its sessions again. An agent may have to be started.
const REPLAY_LIMIT: Duration = Duration::from_secs(60);

enum Event {
    /// A line of the editor.
    Client(Vec<u8>),
    /// The editor sent a line over the limit.
    ClientTooLong(String),
    /// The editor has gone.
    ClientEnded,
    /// A line of the daemon, over the connection with this number.
    Daemon(u64, Vec<u8>),
    /// That connection ended.
    DaemonEnded(u64),
}

/// Runs the bridge until the editor leaves.
///
/// # Errors
/// Why no daemon could be reached at the start; later the bridge waits for one instead.
pub fn run(arguments: &AcpArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let agent: AgentAlias =
        arguments.agent.parse().map_err(|error| Failure::caused(Exit::Usage, &error).hint("holdfast agent list"))?;
    leave_quietly_on_signals()
        .map_err(|error| Failure::new(Exit::Failed, format!("could not take over the signals: {error}")))?;
    let (sender, events) = sync_channel(QUEUE_LEN);
    let mut running = Running {
        place,
        agent,
        client_key: format!("bridge-{}", uuid::Uuid::new_v4()),
        sender,
        events,
        waiting: VecDeque::new(),
        connection: None,
        connections: 0,
        bridge: Bridge::default(),
        output: io::stdout(),
    };
    running.connect(Start::Always, renderer)?;
    let sender = running.sender.clone();
    thread::spawn(move || read_client(&sender));
    running.serve(renderer);
    Ok(Exit::Ok)
}

struct Running<'a> {
    place: &'a Place,
    agent: AgentAlias,
    client_key: String,
    sender: SyncSender<Event>,
    events: Receiver<Event>,
    /// Lines of the editor that came while there was no daemon.
    waiting: VecDeque<Vec<u8>>,
    connection: Option<UnixStream>,
    connections: u64,
    bridge: Bridge,
    output: io::Stdout,
}

/// Whether a daemon is started where none runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Somebody needs one.
    Always,
    /// Nobody asks for anything: a daemon that was stopped stays stopped.
    Never,
}

/// The editor has gone, so there is nothing left to do.
struct Gone;

impl Running<'_> {
    fn serve(&mut self, renderer: &mut Renderer) {
        // Whatever ends it, the editor has gone: the end of the process is the detach.
        while let Ok(event) = self.events.recv() {
            if self.handle(event, renderer).is_err() {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event, renderer: &mut Renderer) -> Result<(), Gone> {
        match event {
            Event::Client(line) => self.send_daemon(line, renderer),
            Event::ClientTooLong(message) => self.send_client(&too_long(&message)),
            Event::ClientEnded => Err(Gone),
            Event::Daemon(number, line) if number == self.connections => match self.bridge.heard_daemon(&line) {
                FromDaemon::Pass => self.send_client_line(line),
                FromDaemon::Swallow => Ok(()),
            },
            Event::DaemonEnded(number) if number == self.connections => self.reconnect(renderer),
            // Of a connection that was given up.
            Event::Daemon(..) | Event::DaemonEnded(_) => Ok(()),
        }
    }

    /// Attaches to the daemon.
    fn connect(&mut self, start: Start, renderer: &mut Renderer) -> Result<(), Failure> {
        let params =
            AttachParams { agent: self.agent.clone(), client_key: Some(self.client_key.clone()), session_id: None };
        let connection = match start {
            Start::Always => connect_or_start(self.place, renderer)?,
            Start::Never => connect(self.place)?,
        };
        let acp = connection.attach(&params)?;
        let AcpStream { stream, incoming } = acp;
        let reading = stream
            .try_clone()
            .map_err(|error| Failure::new(Exit::Failed, format!("could not set up the connection: {error}")))?;
        self.connections += 1;
        let (number, sender) = (self.connections, self.sender.clone());
        thread::spawn(move || read_daemon(number, reading, incoming, &sender));
        self.connection = Some(stream);
        Ok(())
    }

    /// Answers what is open, finds a daemon, and brings it to where the last one was.
    fn reconnect(&mut self, renderer: &mut Renderer) -> Result<(), Gone> {
        self.connection = None;
        let went = self.bridge.daemon_went();
        self.send_client(&went)?;
        let mut pause = RETRY_PAUSE;
        let mut asked_since: Option<Instant> = None;
        loop {
            let start = if self.waiting.is_empty() { Start::Never } else { Start::Always };
            match self.connect(start, renderer) {
                Ok(()) => {
                    if self.replay()? {
                        break;
                    }
                }
                Err(failure) if start == Start::Always => {
                    renderer.failure(&failure);
                }
                // It is expected that none runs.
                Err(_) => {}
            }
            self.connection = None;
            if !self.waiting.is_empty() {
                let since = *asked_since.get_or_insert_with(Instant::now);
                if since.elapsed() > AWAY_LIMIT {
                    asked_since = None;
                    self.answer_waiting()?;
                }
            }
            self.wait_away(pause)?;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
        // In their order; a daemon that goes again leaves the rest waiting for the next one.
        while let Some(line) = self.waiting.pop_front() {
            self.send_daemon(line, renderer)?;
        }
        Ok(())
    }

    /// Answers what waits with an error: no daemon came in time.
    fn answer_waiting(&mut self) -> Result<(), Gone> {
        for line in std::mem::take(&mut self.waiting) {
            self.bridge.heard_client(&line);
        }
        let answers = self.bridge.daemon_went();
        self.send_client(&answers)
    }

    /// Waits for `pause`, or until the editor asks for something and nothing waited before.
    fn wait_away(&mut self, pause: Duration) -> Result<(), Gone> {
        let deadline = Instant::now() + pause;
        let was_idle = self.waiting.is_empty();
        while !was_idle || self.waiting.is_empty() {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => self.keep(event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Introduces the editor and attaches its sessions. Returns false if the daemon went or did not answer.
    fn replay(&mut self) -> Result<bool, Gone> {
        let Some(greeting) = self.bridge.greeting() else { return Ok(true) };
        if !self.write_daemon(&greeting) || !self.await_answers()? {
            return Ok(false);
        }
        let attachments = self.bridge.attachments();
        Ok(self.write_daemon(&attachments) && self.await_answers()?)
    }

    /// Waits until our own requests are answered; what else comes goes its way.
    fn await_answers(&mut self) -> Result<bool, Gone> {
        let deadline = Instant::now() + REPLAY_LIMIT;
        while self.bridge.is_replaying() {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Daemon(number, line)) if number == self.connections => {
                    if self.bridge.heard_daemon(&line) == FromDaemon::Pass {
                        self.send_client_line(line)?;
                    }
                }
                Ok(Event::DaemonEnded(number)) if number == self.connections => {
                    let answers = self.bridge.daemon_went();
                    self.send_client(&answers)?;
                    return Ok(false);
                }
                Ok(event) => self.keep(event)?,
                Err(RecvTimeoutError::Timeout) => {
                    let answers = self.bridge.daemon_went();
                    self.send_client(&answers)?;
                    return Ok(false);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
        Ok(true)
    }

    /// Keeps what the editor says while there is no daemon to hear it.
    fn keep(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Client(line) => {
                self.waiting.push_back(line);
                if self.waiting.len() > WAITING_MAX {
                    self.answer_waiting()?;
                }
            }
            Event::ClientTooLong(message) => self.send_client(&too_long(&message))?,
            Event::ClientEnded => return Err(Gone),
            Event::Daemon(..) | Event::DaemonEnded(_) => {}
        }
        Ok(())
    }

    fn send_daemon(&mut self, mut line: Vec<u8>, renderer: &mut Renderer) -> Result<(), Gone> {
        if self.bridge.heard_client(&line) == FromClient::Drop {
            return Ok(());
        }
        line.push(b'\n');
        if self.write_daemon(&line) {
            return Ok(());
        }
        self.reconnect(renderer)
    }

    /// Writes to the daemon; false means that it has gone.
    fn write_daemon(&mut self, lines: &[u8]) -> bool {
        let Some(stream) = &mut self.connection else { return false };
        let written = stream.write_all(lines).is_ok();
        if !written {
            // Its reader may still wait for what never comes; what it has read until now is lost with it.
            let _closed = stream.shutdown(Shutdown::Both);
        }
        written
    }

    fn send_client_line(&mut self, mut line: Vec<u8>) -> Result<(), Gone> {
        line.push(b'\n');
        self.send_client(&line)
    }

    fn send_client(&mut self, lines: &[u8]) -> Result<(), Gone> {
        // Nothing but the end of the editor makes this fail.
        self.output.write_all(lines).and_then(|()| self.output.flush()).map_err(|_| Gone)
    }
}

fn read_client(sender: &SyncSender<Event>) {
    let mut input = io::stdin().lock();
    let mut incoming = LineBuffer::new(FRAME_MAX_BYTES);
    loop {
        while let Some(line) = incoming.next_line() {
            let event = match line {
                Ok(line) => Event::Client(line.to_vec()),
                Err(error) => Event::ClientTooLong(error.to_string()),
            };
            if sender.send(event).is_err() {
                return;
            }
        }
        match input.read(incoming.spare_mut()) {
            Ok(0) => break,
            Ok(count) => incoming.advance(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A terminal or pipe that can't be read is one whose other end is gone.
            Err(_) => break,
        }
    }
    if let Some(Ok(line)) = incoming.finish()
        && sender.send(Event::Client(line.to_vec())).is_err()
    {
        return;
    }
    // The bridge is on its way out if nobody listens.
    let _gone = sender.send(Event::ClientEnded);
}

fn read_daemon(number: u64, mut stream: UnixStream, mut incoming: LineBuffer, sender: &SyncSender<Event>) {
    loop {
        while let Some(line) = incoming.next_line() {
            // A daemon that sends longer frames than it promised is no daemon of ours.
            let Ok(line) = line else {
                let _closed = stream.shutdown(Shutdown::Both);
                let _gone = sender.send(Event::DaemonEnded(number));
                return;
            };
            if sender.send(Event::Daemon(number, line.to_vec())).is_err() {
                return;
            }
        }
        match stream.read(incoming.spare_mut()) {
            Ok(0) => break,
            Ok(count) => incoming.advance(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // The bridge is on its way out if nobody listens.
    let _gone = sender.send(Event::DaemonEnded(number));
}

/// Makes SIGTERM, SIGINT and SIGHUP an ordinary end: for the daemon it is a detach like the end of standard input.
fn leave_quietly_on_signals() -> io::Result<()> {
    extern "C" fn leave(_number: libc::c_int) {
        // SAFETY: _exit(2) may be called in a signal handler and does not return.
        unsafe { libc::_exit(0) }
    }
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the handler does nothing but end the process.
        let before = unsafe { libc::signal(number, leave as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
