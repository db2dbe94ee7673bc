//! acpx with a home of its own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid};
use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::{TestDaemon, executable, output_within, read_lines, short_directory};
use crate::eventually::{PATIENCE, eventually};
use crate::interop::Packages;
use crate::processes;

/// In the command line of the process that acpx leaves behind to keep an agent running between prompts.
const QUEUE_OWNER: &str = "__queue-owner";

/// acpx gives itself two seconds to start a helper that looks at its queue owner; on a busy machine that is too little,
/// and it says, having done nothing, that the command can be tried again.
const OWNER_UNVERIFIED: &str = "QUEUE_OWNER_IDENTITY_UNVERIFIED";

/// acpx, in front of `holdfast acp <agent>`. Ends with all that acpx has left behind.
pub struct Acpx {
    packages: Packages,
    agent: String,
    mark: (String, String),
    directory: TempDir,
    // Ends the reaper when it is dropped.
    _in_use: Sender<()>,
}

/// What acpx said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code.
    pub code: i32,
    /// Every line of its standard output that is JSON: with `--format json`, what went over the wire, in both directions.
    pub frames: Vec<Value>,
    /// All it wrote, for messages.
    pub text: String,
}

/// acpx while it runs.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Acpx {
    /// Prepares acpx for an agent of a daemon.
    pub fn new(packages: &Packages, daemon: &TestDaemon, agent: &str) -> Self {
        let directory = short_directory();
        for name in ["home", "work"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let agent = format!("{} --root {} acp {agent}", executable().display(), daemon.root.path().display());
        let (in_use, dropped) = channel();
        let home = directory.path().join("home");
        std::thread::spawn(move || reap_queue_owners(&home, &dropped));
        Self { packages: packages.clone(), agent, mark: daemon.mark(), directory, _in_use: in_use }
    }

    /// Returns where its sessions work.
    pub fn working_directory(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Runs acpx to its end, with the wire on its standard output.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        self.run_in(&self.working_directory(), arguments)
    }

    /// As [`run`](Self::run), for sessions that work in another directory.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    #[track_caller]
    pub fn run_in<S: AsRef<OsStr>>(&self, directory: &Path, arguments: impl IntoIterator<Item = S>) -> Said {
        let arguments: Vec<S> = arguments.into_iter().collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut command = self.command(directory);
            let child = command.args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let output = output_within(child, PATIENCE);
            let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            let said = Said::of(output.status.code(), &lines, &String::from_utf8_lossy(&output.stderr));
            if !said.text.contains(OWNER_UNVERIFIED) || Instant::now() >= deadline {
                return said;
            }
        }
    }

    /// Starts acpx, with the wire on its standard output.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Running {
        let mut command = self.command(&self.working_directory());
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        Running { child, lines, seen: Vec::new() }
    }

    /// Returns the processes that acpx has left behind.
    pub fn queue_owners(&self) -> Vec<i32> {
        queue_owners(&self.home())
    }

    /// Ends what acpx has left behind, as a crash would, and waits until it is gone.
    pub fn end_queue_owners(&self) {
        for pid in self.queue_owners().into_iter().filter_map(Pid::from_raw) {
            // Gone already is what is wanted.
            let _gone = kill_process(pid, Signal::KILL);
        }
        self.wait_for_queue_owners_to_end();
    }

    /// Waits until acpx's processes have ended by themselves.
    ///
    /// # Panics
    /// When they have not within [`PATIENCE`].
    #[track_caller]
    pub fn wait_for_queue_owners_to_end(&self) {
        eventually(PATIENCE, || self.queue_owners(), Vec::is_empty);
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, working_directory: &Path) -> Command {
        let node = self.packages.node();
        let mut command = Command::new(&node);
        command.arg(self.packages.acpx()).args(["--agent", &self.agent, "--format", "json", "--cwd"]);
        command.arg(working_directory).env_clear().env(&self.mark.0, &self.mark.1).env("HOME", self.home());
        let node_directory = node.parent().map(Path::display).unwrap().to_string();
        command.env("PATH", format!("{node_directory}:/usr/bin:/bin")).env("NO_PROXY", "127.0.0.1,localhost");
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }
}

fn queue_owners(home: &Path) -> Vec<i32> {
    let mut found = processes::with_environment("HOME", &home.display().to_string());
    found.retain(|pid| processes::command_line(*pid).contains(QUEUE_OWNER));
    found
}

/// Waits for queue owners, which nobody may do otherwise: process 1 of a container is often no init, and acpx takes a
/// zombie for an owner that it can't identify, and refuses to go on.
fn reap_queue_owners(home: &Path, dropped: &Receiver<()>) {
    set_child_subreaper(Some(getpid())).unwrap();
    let mut seen = BTreeSet::new();
    while dropped.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
        seen.extend(queue_owners(home));
        // An error means that it is not our child, or not any more.
        seen.retain(|pid| {
            let pid = Pid::from_raw(*pid).unwrap();
            !matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_)))
        });
    }
}

impl Drop for Acpx {
    fn drop(&mut self) {
        // A process that is just being started is found in a later round.
        let deadline = Instant::now() + PATIENCE;
        while !self.queue_owners().is_empty() && Instant::now() < deadline {
            for pid in self.queue_owners().into_iter().filter_map(Pid::from_raw) {
                // Gone already is what is wanted.
                let _gone = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Running {
    /// Waits until a line of the wire contains `wanted`.
    ///
    /// # Panics
    /// When none comes within [`PATIENCE`].
    #[track_caller]
    pub fn wait_for(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.seen.iter().any(|line| line.contains(wanted)) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("`{wanted}` did not come ({error}): {:#?}", self.seen),
            }
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When that does not come within [`PATIENCE`].
    #[track_caller]
    pub fn end(self) -> Said {
        let Self { child, lines, mut seen } = self;
        let output = output_within(child, PATIENCE);
        seen.extend(lines);
        Said::of(output.status.code(), &seen, "")
    }
}

impl Said {
    fn of(code: Option<i32>, lines: &[String], errors: &str) -> Self {
        let frames = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Self { code: code.unwrap_or(-1), frames, text: lines.join("\n") + "\n" + errors }
    }

    /// Returns the methods of acpx's requests, in order.
    pub fn requests(&self) -> Vec<&str> {
        let theirs = |frame: &&Value| frame.get("id").is_some() && frame["method"] != "session/request_permission";
        self.frames.iter().filter(theirs).filter_map(|frame| frame["method"].as_str()).collect()
    }

    /// Returns the answer to acpx's first request of a method.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn answer(&self, method: &str) -> &Value {
        let asked = self.frames.iter().position(|frame| frame["method"] == method && frame.get("id").is_some());
        let asked = asked.unwrap_or_else(|| panic!("{method} was not asked: {}", self.text));
        let id = &self.frames[asked]["id"];
        // The last one: acpx's answers to our questions may have the same id, and come before.
        let answer = self.frames[asked..].iter().rfind(|frame| frame["id"] == *id && frame.get("method").is_none());
        answer.unwrap_or_else(|| panic!("{method} was not answered: {}", self.text))
    }

    /// Returns what an `{"action": …}` line says.
    ///
    /// # Panics
    /// When there is none of that action.
    #[track_caller]
    pub fn action(&self, action: &str) -> &Value {
        let found = self.frames.iter().find(|frame| frame["action"] == action);
        found.unwrap_or_else(|| panic!("no {action}: {}", self.text))
    }

    /// Returns the agent's text.
    pub fn agent_text(&self) -> String {
        let updates = self.frames.iter().map(|frame| &frame["params"]["update"]);
        let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }
}
