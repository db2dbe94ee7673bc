//! Doing steps, each turn in a thread of its own.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use holdfast_protocol::acp::permission::selected_option;
use holdfast_protocol::acp::{method, prompt};
use holdfast_protocol::jsonrpc;
use serde_json::value::RawValue;

use super::script::{Outcome, Permission, Spawn, Step, chunk, monotonic_ns, raw};

/// What the main loop is told.
pub(super) enum Event {
    /// A line of the client.
    Line(Vec<u8>),
    /// stdin ended.
    EndOfInput,
    /// A turn wants an answer to a request; it comes as [`Signal::Answer`].
    Ask { method: String, params: Box<RawValue>, turn: Sender<Signal> },
    /// An update went out and belongs to the session's history.
    Sent { session_id: String, update: Box<RawValue> },
    /// A child was started.
    Spawned { child: process::Child },
    /// The process is to end.
    Die(Death),
    /// A turn's thread is through; the prompt with this id, if it was one, is answered or never will be.
    Ended { turn_number: usize },
}

/// How a process ends.
pub(super) enum Death {
    Exit(u8),
    Abort,
    Kill,
}

/// What a turn is told.
pub(super) enum Signal {
    Cancel,
    /// The raw result, or `None` for an error.
    Answer(Option<Box<RawValue>>),
}

/// Why a list of steps is not done to its end.
enum Stop {
    Cancelled,
    Outcome(Outcome),
    Hang,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// One turn, or the steps of another occasion, which have no prompt to answer.
pub(super) struct Turn {
    pub(super) number: usize,
    pub(super) session_id: String,
    pub(super) events: Sender<Event>,
    pub(super) signals: Receiver<Signal>,
    /// The sending end of `signals`, to be handed out with questions.
    pub(super) own_signals: Sender<Signal>,
    pub(super) ignores_cancel: bool,
}

impl Turn {
    /// Does the steps and returns how the turn ends; `None`: it never does.
    pub(super) fn perform(mut self, steps: &[Step]) -> Option<Outcome> {
        let done = self.do_steps(steps);
        // The main loop outlives all turns, unless the process is about to end.
        let _ = self.events.send(Event::Ended { turn_number: self.number });
        match done {
            Ok(()) => Some(Outcome::StopReason("end_turn".to_owned())),
            Err(Stop::Cancelled) => Some(Outcome::StopReason("cancelled".to_owned())),
            Err(Stop::Outcome(outcome)) => Some(outcome),
            Err(Stop::Hang) => None,
            Err(Stop::Failed(error)) => {
                eprintln!("fake agent: failed to do a step: {error}");
                process::exit(70);
            }
        }
    }

    fn do_steps(&mut self, steps: &[Step]) -> Result<(), Stop> {
        steps.iter().try_for_each(|step| self.do_step(step))
    }

    fn do_step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Update(update) => self.update(update)?,
            Step::Noise(line) => write_output(format!("{line}\n").as_bytes())?,
            Step::Text(text) => write_output(text.as_bytes())?,
            Step::Complain(line) => eprintln!("{line}"),
            Step::ComplainOften(lines, bytes) => complain_often(*lines, *bytes)?,
            Step::NoiseBytes(count) => write_output(&vec![b'a'; *count])?,
            Step::HugeUpdateBytes(count) => self.update(&chunk(&"x".repeat(*count)))?,
            Step::StampedUpdate => self.update(&chunk(&monotonic_ns().to_string()))?,
            Step::DelayMs(delay_ms) => self.wait_until(Duration::from_millis(*delay_ms), || false)?,
            Step::WaitForFile(path) => {
                self.wait_until(Duration::from_secs(60), || path.exists())?;
                if !path.exists() {
                    return Err(Stop::Failed(io::Error::other(format!("`{}` never came", path.display()))));
                }
            }
            Step::Touch(path) => std::fs::write(path, b"")?,
            Step::WaitForCancel => self.wait_for_cancel()?,
            Step::IgnoreCancel => self.ignores_cancel = true,
            Step::Permission(permission) => self.ask_permission(permission)?,
            Step::Request(method, params) => {
                self.ask(method, params.clone())?;
            }
            Step::Notification(method, params) => {
                let mut frame = Vec::new();
                jsonrpc::write_raw_notification(&mut frame, method, Some(params));
                write_output(&frame)?;
            }
            Step::Spawn(spawn) => {
                let child = start(spawn)?;
                let _ = self.events.send(Event::Spawned { child });
            }
            Step::Repeat(count, steps) => {
                for _ in 0..*count {
                    self.do_steps(steps)?;
                }
            }
            Step::End(outcome) => return Err(Stop::Outcome(outcome.clone())),
            Step::Hang => return Err(Stop::Hang),
            Step::Exit(code) => self.die(Death::Exit(*code)),
            Step::Abort => self.die(Death::Abort),
            Step::KillSelf => self.die(Death::Kill),
            Step::CloseOutput => close_output(),
        }
        Ok(())
    }

    /// Leaves the end to the main loop, which first records what this turn has sent.
    fn die(&self, death: Death) {
        let _ = self.events.send(Event::Die(death));
        loop {
            std::thread::park();
        }
    }

    fn update(&self, update: &RawValue) -> io::Result<()> {
        let _ = self.events.send(Event::Sent { session_id: self.session_id.clone(), update: update.to_owned() });
        write_output(&update_frame(&self.session_id, update)?)
    }

    fn ask_permission(&mut self, permission: &Permission) -> Result<(), Stop> {
        let params = RawValue::from_string(format!(
            "{{\"sessionId\":{},\"toolCall\":{},\"options\":{}}}",
            holdfast_protocol::raw::quote(&self.session_id),
            permission.tool_call,
            permission.options
        ))
        .map_err(io::Error::from)?;
        let answer = self.ask(method::SESSION_REQUEST_PERMISSION, params)?;
        let choice = match &answer {
            None => "error".to_owned(),
            Some(result) => {
                selected_option(result).map_or_else(|| "cancelled".to_owned(), std::borrow::Cow::into_owned)
            }
        };
        match permission.then.get(&choice) {
            Some(steps) => self.do_steps(steps),
            None => Ok(()),
        }
    }

    fn ask(&mut self, method: &str, params: Box<RawValue>) -> Result<Option<Box<RawValue>>, Stop> {
        let turn = self.own_signals.clone();
        let _ = self.events.send(Event::Ask { method: method.to_owned(), params, turn });
        loop {
            match self.signals.recv() {
                Ok(Signal::Answer(answer)) => return Ok(answer),
                Ok(Signal::Cancel) if self.ignores_cancel => {}
                Ok(Signal::Cancel) | Err(_) => return Err(Stop::Cancelled),
            }
        }
    }

    fn wait_for_cancel(&mut self) -> Result<(), Stop> {
        loop {
            match self.signals.recv() {
                Ok(Signal::Cancel) if self.ignores_cancel => return Ok(()),
                Ok(Signal::Cancel) | Err(_) => return Err(Stop::Cancelled),
                Ok(Signal::Answer(_)) => {}
            }
        }
    }

    /// Waits for a time or a state, whatever is first; a cancel ends the turn.
    fn wait_until(&mut self, limit: Duration, is_there: impl Fn() -> bool) -> Result<(), Stop> {
        const POLL: Duration = Duration::from_millis(10);
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || is_there() {
                return Ok(());
            }
            match self.signals.recv_timeout(left.min(POLL)) {
                Ok(Signal::Cancel) if !self.ignores_cancel => return Err(Stop::Cancelled),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Cancelled),
            }
        }
    }
}

/// Returns the frame of a `session/update`.
pub(super) fn update_frame(session_id: &str, update: &RawValue) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    let params = prompt::update_params(session_id, update.get())?;
    jsonrpc::write_raw_notification(&mut frame, method::SESSION_UPDATE, Some(&params));
    Ok(frame)
}

/// Writes to stdout in one piece; the standard library's own lock keeps frames of several turns apart. A client that
/// went away is no reason to stop: agents are told of that by the end of stdin.
pub(super) fn write_output(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes lines whose words are made of their number, in letters: a log that takes digits for the same must not fold
/// them.
fn complain_often(lines: usize, bytes: usize) -> io::Result<()> {
    let mut stderr = io::BufWriter::new(io::stderr().lock());
    for number in 0..lines {
        let word: String = number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'g')).collect();
        let mut line = format!("grumble {word} ");
        while line.len() < bytes {
            line.push_str("and so on ");
        }
        writeln!(stderr, "{line}")?;
    }
    stderr.flush()
}

/// Returns the frame that answers a prompt.
pub(super) fn outcome_frame(id: &jsonrpc::OwnedId, outcome: &Outcome) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    match outcome {
        Outcome::StopReason(reason) => {
            jsonrpc::write_raw_result(&mut frame, id, &raw(&serde_json::json!({ "stopReason": reason })));
        }
        Outcome::Result(result) => jsonrpc::write_raw_result(&mut frame, id, result),
        Outcome::Error(error) => {
            jsonrpc::write_error_object(&mut frame, id, &serde_json::from_str(error.get())?);
        }
    }
    Ok(frame)
}

fn start(spawn: &Spawn) -> io::Result<process::Child> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(&spawn.command).stdin(Stdio::null()).stderr(Stdio::null());
    if !spawn.hold_output {
        command.stdout(Stdio::null());
    }
    if spawn.clear_environment {
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    if spawn.setsid {
        // SAFETY: setsid is safe to call between fork and exec, and nothing else is done there.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from)) };
    }
    command.spawn()
}

fn close_output() {
    // SAFETY: nothing owns file descriptor 1 but the standard library's stdout, whose later writes fail with an error.
    // /dev/null takes its place, so that no file opened later becomes stdout.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        libc::dup2(null, 1);
        libc::close(null);
    }
}
