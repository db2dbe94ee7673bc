//! What a fake agent is told to do. All JSON in it is raw, so that odd numbers and key orders reach the wire unchanged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A fake agent's behaviour. The default is a well-behaved agent that can do all and answers each prompt with `ok`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// `agentCapabilities` of the answer to `initialize`; default: load, resume, list, close and fork.
    pub capabilities: Option<Box<RawValue>>,
    /// The whole result of `initialize` instead.
    pub initialize_result: Option<Box<RawValue>>,
    /// The error that `initialize` is answered with.
    pub initialize_error: Option<Box<RawValue>>,
    /// Where received frames are recorded; several processes append to one file.
    pub trace: Option<PathBuf>,
    /// Where sessions and their updates are kept over processes. Without it, sessions that this process did not make
    /// are taken for known, with an empty history.
    pub state: Option<PathBuf>,
    /// Ids that `session/new` gives out, in order; after them, and by default, `fake-PID-N`.
    pub session_ids: Vec<String>,
    /// The error for unknown sessions; default -32002. Needs `state`.
    pub unknown_session_error: Option<Box<RawValue>>,
    /// When `session/load` replays.
    pub replay: Replay,
    /// What is replayed instead of the recorded updates, as `update` objects.
    pub replay_updates: Option<Vec<Box<RawValue>>>,
    /// Replays on `session/resume` too, which no agent should.
    pub resume_replays: bool,
    /// Ignores SIGTERM. Children inherit that.
    pub ignore_sigterm: bool,
    /// Lives on after the end of stdin.
    pub ignore_end_of_input: bool,
    /// Done before the first frame is read.
    pub on_start: Vec<Step>,
    /// Done behind the answer to `session/new`.
    pub on_new_session: Vec<Step>,
    /// Done behind the answer to `session/load` and `session/resume`, after any replay.
    pub on_opened_session: Vec<Step>,
    /// What is done for the first, second, ... prompt of the process; the last one also for all that follow.
    pub prompts: Vec<Vec<Step>>,
    /// What is done for prompts whose text ends with the key; goes before `prompts`.
    pub prompts_by_text: BTreeMap<String, Vec<Step>>,
}

/// When a load replays the history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Before the answer, as the protocol says.
    #[default]
    Before,
    /// Right behind the answer, as one agent does.
    After,
    /// Not at all.
    Never,
}

/// One thing to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Sends a `session/update` with this `update` object, and records it.
    Update(Box<RawValue>),
    /// Sends this text as a line, whatever it is.
    Noise(String),
    /// Sends this text without a newline.
    Text(String),
    /// Writes a line to stderr.
    Complain(String),
    /// Writes that many lines of about that many bytes to stderr, no two in the same words.
    ComplainOften(usize, usize),
    /// Sends that many bytes that are no JSON, without a newline.
    NoiseBytes(usize),
    /// Sends an update whose text is that many bytes long.
    HugeUpdateBytes(usize),
    /// Sends an update whose text is the time it is sent: nanoseconds of the machine's monotonic clock.
    StampedUpdate,
    /// Waits; a cancel ends the turn.
    DelayMs(u64),
    /// Waits until the file exists, at most a minute; a cancel ends the turn.
    WaitForFile(PathBuf),
    /// Creates a file.
    Touch(PathBuf),
    /// Waits for `session/cancel`; then the turn ends, or goes on if cancels are ignored.
    WaitForCancel,
    /// From here on the turn goes on over cancels.
    IgnoreCancel,
    /// Asks for permission and goes on by the answer.
    Permission(Permission),
    /// Sends a request with these params, `sessionId` not added, and waits for the answer.
    Request(String, Box<RawValue>),
    /// Sends a notification with these params.
    Notification(String, Box<RawValue>),
    /// Starts a child process.
    Spawn(Spawn),
    /// Does the steps that often.
    Repeat(usize, Vec<Step>),
    /// Ends the turn with an outcome; a turn without ends with `end_turn`.
    End(Outcome),
    /// Never answers. The turn is over for the agent; the prompt hangs.
    Hang,
    /// Exits with this status.
    Exit(u8),
    /// Dies of SIGABRT.
    Abort,
    /// Dies of SIGKILL.
    KillSelf,
    /// Closes stdout and lives on.
    CloseOutput,
}

/// How a turn ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With this stop reason.
    StopReason(String),
    /// With this result.
    Result(Box<RawValue>),
    /// With this error object.
    Error(Box<RawValue>),
}

/// A permission question.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permission {
    /// `toolCall`.
    pub tool_call: Box<RawValue>,
    /// `options`.
    pub options: Box<RawValue>,
    /// Steps by the selected option id, `cancelled` or `error`; without an entry the turn just goes on.
    #[serde(default)]
    pub then: BTreeMap<String, Vec<Step>>,
}

/// A child process: `sh -c COMMAND`, its stdin empty and its output thrown away.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spawn {
    /// What the shell runs.
    pub command: String,
    /// In a session of its own.
    pub setsid: bool,
    /// Without any environment but PATH.
    pub clear_environment: bool,
    /// Holds the agent's stdout open.
    pub hold_output: bool,
}

impl Script {
    /// Writes the script to a file.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, serde_json::to_vec(self)?)
    }

    /// Reads a script from a file.
    ///
    /// # Errors
    /// If the file can't be read or is no script.
    pub fn read_from(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Returns the steps for a prompt: its text, and how many came before it in this process.
    pub fn steps_for(&self, text: &str, number: usize) -> Vec<Step> {
        let by_text = self.prompts_by_text.iter().find(|(end, _)| text.ends_with(end.as_str())).map(|(_, steps)| steps);
        match by_text.or_else(|| self.prompts.get(number)).or_else(|| self.prompts.last()) {
            Some(steps) => steps.clone(),
            None => vec![Step::Update(chunk("ok"))],
        }
    }
}

/// Turns a value into raw JSON.
///
/// # Panics
/// If the value can't be JSON: a fault of the test.
#[expect(clippy::expect_used, reason = "a fault of the test that calls it")]
pub fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("a test's value should be JSON")
}

/// Returns the `update` object that streams a piece of the agent's text.
pub fn chunk(text: &str) -> Box<RawValue> {
    raw(&serde_json::json!({
        "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": text },
    }))
}

/// Returns the machine's monotonic clock, which all processes share, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
