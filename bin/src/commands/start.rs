//! A daemon for those who need one and find none: started beside the caller, which it outlives.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_actors::leases::wrapper::{INSTANCE_ID_VARIABLE, LEASE_ID_VARIABLE, SESSION_ID_VARIABLE};
use serde::Deserialize;

use super::{Connection, Place, connect};
use crate::render::{Exit, Failure, Renderer, duration};

/// How long a daemon may take until it serves. A start is a fraction of a second; a migration may take longer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long to wait for the daemon of somebody else who started one at the same moment, before starting another.
const RIVAL_LIMIT: Duration = Duration::from_secs(2);

/// The pause between two looks at a daemon that somebody else is starting.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Connects to the daemon of `place`; starts one, and makes the root, where there is none.
///
/// # Errors
/// Why none could be started, in its own words, or why the one that runs turns us away.
pub fn connect_or_start(place: &Place, renderer: &mut Renderer) -> Result<Connection, Failure> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match connect(place) {
            Err(failure) if is_unreachable(&failure) => {}
            outcome => return outcome,
        }
        match start(place, renderer, deadline)? {
            Started::Serves => return connect(place),
            // Somebody else won, or the one before is on its way out. Either is over in a moment.
            Started::OwnedByAnother(refusal) => {
                if let Some(connection) = wait_for_rival(place)? {
                    return Ok(connection);
                }
                if Instant::now() > deadline {
                    return Err(refusal);
                }
            }
        }
    }
}

fn is_unreachable(failure: &Failure) -> bool {
    matches!(failure, Failure::Fault(fault) if fault.exit == Exit::DaemonUnreachable)
}

enum Started {
    Serves,
    OwnedByAnother(Failure),
}

/// The first line of a daemon on standard output.
#[derive(Deserialize)]
#[serde(untagged)]
enum FirstLine {
    Serves { pid: u32 },
    Ended { exit_code: u8 },
}

fn start(place: &Place, renderer: &mut Renderer, deadline: Instant) -> Result<Started, Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("could not start a daemon: {error}"));
    let began = Instant::now();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("--root").arg(place.root.path()).args(["--json", "daemon", "--detached"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A daemon belongs to no session, even if an agent's command started it.
    command.env_remove(LEASE_ID_VARIABLE).env_remove(INSTANCE_ID_VARIABLE).env_remove(SESSION_ID_VARIABLE);
    leave_family(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let (first, said) = (first_line(child.stdout.take()), all_lines(child.stderr.take()));
    // Only the process in between: the daemon is not our child.
    child.wait().map_err(failed)?;
    let first = first.recv_timeout(deadline.saturating_duration_since(began));
    match first.map(|line| serde_json::from_str(&line)) {
        Ok(Ok(FirstLine::Serves { pid })) => {
            // What it made of the root, and what it warns of, until it lets go of its standard error.
            for line in said.recv().unwrap_or_default().lines() {
                match line.strip_prefix("✓ ") {
                    Some(done) => renderer.done(done),
                    None => renderer.note(line),
                }
            }
            renderer.done(&format!("daemon started (pid {pid}, {})", duration(began.elapsed())));
            Ok(Started::Serves)
        }
        Ok(Ok(FirstLine::Ended { exit_code })) => {
            let exit = Exit::ALL.iter().map(|(exit, _)| *exit).find(|exit| exit.code() == exit_code);
            let failure = ended(exit.unwrap_or(Exit::Failed), &said.recv().unwrap_or_default());
            if exit == Some(Exit::Conflict) {
                return Ok(Started::OwnedByAnother(failure));
            }
            Err(failure)
        }
        Ok(Err(error)) => Err(Failure::new(Exit::Failed, format!("could not read what the daemon said: {error}"))),
        Err(RecvTimeoutError::Disconnected) => Err(ended(Exit::Failed, &said.recv().unwrap_or_default())),
        Err(RecvTimeoutError::Timeout) => {
            let message = format!("the daemon does not serve after {} s", START_LIMIT.as_secs());
            Err(Failure::new(Exit::DaemonUnreachable, message).hint("it goes on starting: holdfast status"))
        }
    }
}

/// Makes the process a child of nobody here, in a session of its own: some editors and clients end an agent with every
/// process beneath it, whatever its session, and a bridge is their agent.
fn leave_family(command: &mut Command) {
    let step_aside = || {
        // SAFETY: setsid(2), fork(2) and _exit(2) may be called between fork and exec, and nothing else is.
        unsafe {
            libc::setsid();
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(step_aside) };
}

/// Says in the daemon's own words why it ended. Its last error stands first in what is told.
fn ended(exit: Exit, said: &str) -> Failure {
    let Some((_, error)) = said.rsplit_once("error: ") else {
        let failure = Failure::new(exit, "the daemon ended before it served");
        return if said.trim().is_empty() { failure } else { failure.detail(said.trim_end()) };
    };
    let mut lines = error.lines();
    let mut failure = Failure::new(exit, lines.next().unwrap_or_default());
    let mut detail: Vec<&str> = Vec::new();
    for line in lines {
        match line.strip_prefix("hint: ") {
            Some(hint) => failure = failure.hint(hint),
            None => detail.push(line.strip_prefix("  ").unwrap_or(line)),
        }
    }
    if detail.is_empty() { failure } else { failure.detail(detail.join("\n")) }
}

/// Waits a little for a daemon that somebody else is starting.
fn wait_for_rival(place: &Place) -> Result<Option<Connection>, Failure> {
    let deadline = Instant::now() + RIVAL_LIMIT;
    loop {
        match connect(place) {
            Ok(connection) => return Ok(Some(connection)),
            Err(failure) if !is_unreachable(&failure) => return Err(failure),
            Err(_) if Instant::now() > deadline => return Ok(None),
            Err(_) => thread::sleep(LOOK_PAUSE),
        }
    }
}

fn first_line(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = from.map(|from| BufReader::new(from).read_line(&mut line));
        if matches!(read, Some(Ok(length)) if length > 0) {
            // Nobody waits for it once the limit has passed.
            let _late = sender.send(line);
        }
    });
    receiver
}

fn all_lines(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What came before a failure is still worth telling.
            let _broken = from.read_to_end(&mut bytes);
        }
        // Nobody waits for it once the limit has passed.
        let _late = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_is_quoted_with_its_exit_code_and_hints() {
        let said = "✓ made /r (config.toml, key)\nerror: config.toml line 3: expected a value\n  3 | a = =\n    |     ^\nhint: holdfast status\n";
        let Failure::Fault(fault) = ended(Exit::DamagedStore, said) else { panic!("a fault") };
        assert_eq!(fault.exit, Exit::DamagedStore);
        assert_eq!(fault.message, "config.toml line 3: expected a value");
        assert_eq!(fault.detail.as_deref(), Some("3 | a = =\n  |     ^"));
        assert_eq!(fault.hints, ["holdfast status"]);
        let Failure::Fault(fault) = ended(Exit::Failed, "") else { panic!("a fault") };
        assert_eq!(fault.exit, Exit::Failed);
        assert_eq!(fault.message, "the daemon ended before it served");
    }
}
