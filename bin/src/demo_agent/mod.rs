//! The demonstration agent: a real agent for the Agent Client Protocol on stdio, without a model behind it.
//!
//! It is there to try Holdfast before an agent is installed, and to test it with: prompts such as `hello`, `slow 3`,
//! `tool`, `permission`, `plan`, `crash` and `fail` make it do what real agents do. It starts in milliseconds, touches no
//! file but its transcripts and calls nobody.

mod engine;
mod script;
#[cfg(test)]
mod tests;
mod transcripts;

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_protocol::acp::FRAME_MAX_BYTES;
use holdfast_protocol::framing::LineBuffer;

use engine::{Engine, Now};
use transcripts::Transcripts;

/// The first argument that makes the program the demonstration agent.
pub const SUBCOMMAND: &str = "demo-agent";

/// Lines read ahead of the engine. A client that sends faster than this waits in its pipe.
const LINES_AHEAD: usize = 16;

/// Returns where the agent keeps its transcripts: `$HOLDFAST_DEMO_STATE`, else `$XDG_STATE_HOME/holdfast-demo`, else
/// nowhere, so that sessions end with the process.
pub fn state_dir() -> Option<PathBuf> {
    state_dir_from(env::var_os("HOLDFAST_DEMO_STATE"), env::var_os("XDG_STATE_HOME"))
}

fn state_dir_from(own: Option<OsString>, xdg_state_home: Option<OsString>) -> Option<PathBuf> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    set(own).or_else(|| set(xdg_state_home).map(|home| home.join("holdfast-demo")))
}

/// Serves one client on stdin and stdout until stdin ends, or until a prompt makes the agent crash.
///
/// Transcripts go to `state_dir`, or stay in memory. Problems go to stderr; stdout carries frames only.
pub fn run(state_dir: Option<PathBuf>) -> ExitCode {
    match serve(io::stdin(), io::stdout(), state_dir) {
        Ok(code) => ExitCode::from(code),
        // The client went away in the middle of a frame; there is nobody left to tell.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo agent: failed to write to the client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the reading thread hands over.
enum Input {
    Line(Vec<u8>),
    TooLong,
}

fn serve(input: impl Read + Send + 'static, mut output: impl Write, state_dir: Option<PathBuf>) -> io::Result<u8> {
    let (sender, lines) = sync_channel(LINES_AHEAD);
    thread::spawn(move || read_lines(input, &sender));
    let started = Instant::now();
    let mut engine = Engine::new(Transcripts::new(state_dir), Box::new(|| uuid::Uuid::now_v7().to_string()));
    loop {
        match next_input(&lines, engine.next_due_ms(), started) {
            Ok(Input::Line(line)) => engine.handle_line(&line, now(started)),
            Ok(Input::TooLong) => engine.refuse_long_line(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(0),
        }
        engine.advance(now(started));
        output.write_all(engine.output())?;
        output.flush()?;
        engine.clear_output();
        if let Some(code) = engine.exit_code() {
            return Ok(code);
        }
    }
}

fn next_input(lines: &Receiver<Input>, due_ms: Option<u64>, started: Instant) -> Result<Input, RecvTimeoutError> {
    match due_ms {
        Some(due_ms) => lines.recv_timeout(Duration::from_millis(due_ms).saturating_sub(started.elapsed())),
        None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Reads until the input ends or fails, or nobody takes lines any more. Dropping the sender is how the end is told.
fn read_lines(mut input: impl Read, sender: &SyncSender<Input>) {
    let mut buffer = LineBuffer::new(FRAME_MAX_BYTES);
    loop {
        let count = match input.read(buffer.spare_mut()) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                eprintln!("demo agent: failed to read from the client: {error}");
                break;
            }
        };
        buffer.advance(count);
        while let Some(line) = buffer.next_line() {
            let line = line.map_or(Input::TooLong, |line| Input::Line(line.to_vec()));
            if sender.send(line).is_err() {
                return;
            }
        }
    }
    if let Some(Ok(line)) = buffer.finish() {
        // Refused only when nobody takes lines any more.
        let _ = sender.send(Input::Line(line.to_vec()));
    }
}

fn now(started: Instant) -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        wall_ms: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX),
        elapsed_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}
