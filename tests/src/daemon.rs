//! A real daemon in a process of its own.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use holdfast_protocol::client::{Client, ClientError};
use holdfast_protocol::methods::rpc::{InitializeResult, PeerInfo};
use holdfast_stores::install_root::InstallRoot;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;

use crate::eventually::{PATIENCE, eventually};
use crate::processes;

/// In the environment of every daemon of a test, and of all it starts: proves whose a process is.
const MARK_VARIABLE: &str = "HOLDFAST_TEST_MARK";

/// Grace of the wrappers plus some: how long processes may outlive a killed daemon.
const ORPHANS_LIMIT: Duration = Duration::from_secs(15);

/// A conversation with a daemon.
pub type TestClient = Client<UnixStream>;

/// What a daemon says once it serves.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// Its process.
    pub pid: u32,
    /// Its listeners.
    pub listeners: Vec<ReadyListener>,
    /// The surfaces that could not start.
    pub down: Vec<String>,
}

/// A listener of a daemon that serves.
#[derive(Debug, Clone, Deserialize)]
pub struct ReadyListener {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: Option<String>,
    /// Why it is not.
    pub failed: Option<String>,
}

/// Makes a temporary directory whose path leaves room for a socket's 107 bytes.
pub fn short_directory() -> TempDir {
    tempfile::Builder::new().prefix("hf").rand_bytes(6).tempdir_in("/tmp").unwrap()
}

/// Returns the program under test: `HOLDFAST_TEST_EXECUTABLE`, else the one beside this test's own executable.
///
/// # Panics
/// When it is not built.
pub fn executable() -> PathBuf {
    if let Some(path) = std::env::var_os("HOLDFAST_TEST_EXECUTABLE") {
        return PathBuf::from(path);
    }
    let own = std::env::current_exe().unwrap();
    // target/<profile>/holdfast, from target/<profile>/deps/it-<hash> or target/<profile>/bench.
    let beside = own.parent().unwrap();
    let profile = if beside.ends_with("deps") { beside.parent().unwrap() } else { beside };
    let path = profile.join("holdfast");
    assert!(path.is_file(), "{} is not built: cargo build -p holdfast", path.display());
    path
}

/// How a daemon is started.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// The umask of its process.
    pub umask: Option<u32>,
    /// More environment.
    pub environment: Vec<(String, String)>,
    /// How long it may take to serve.
    pub ready_limit: Duration,
}

impl Default for DaemonOptions {
    fn default() -> Self {
        Self { umask: None, environment: Vec::new(), ready_limit: PATIENCE }
    }
}

/// An install root in a temporary directory, and the daemon that runs in it, if one does.
pub struct TestDaemon {
    /// The install root.
    pub root: InstallRoot,
    options: DaemonOptions,
    mark: String,
    running: Option<Running>,
    /// How many daemons were started here, for the names of their stderr files.
    starts: u32,
    directory: TempDir,
}

struct Running {
    child: Child,
    ready: Ready,
}

impl TestDaemon {
    /// Makes a place for a daemon and starts none.
    pub fn prepare(options: DaemonOptions) -> Self {
        let directory = short_directory();
        let root = InstallRoot::at(directory.path().join("r"));
        let mark = uuid::Uuid::new_v4().to_string();
        Self { root, options, mark, running: None, starts: 0, directory }
    }

    /// Starts a daemon in a fresh root and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    pub fn start() -> Self {
        let mut daemon = Self::prepare(DaemonOptions::default());
        daemon.boot();
        daemon
    }

    /// Starts a daemon in this root and waits until it serves.
    ///
    /// # Panics
    /// When it does not, with what it said.
    #[track_caller]
    pub fn boot(&mut self) -> &Ready {
        if let Err(refusal) = self.try_boot() {
            panic!("the daemon did not start: {} {}", refusal.status, String::from_utf8_lossy(&refusal.stderr));
        }
        &self.running.as_ref().unwrap().ready
    }

    /// Starts a daemon in this root and waits until it serves or has ended.
    ///
    /// # Errors
    /// How it ended, and what it said.
    ///
    /// # Panics
    /// When it does neither in time.
    pub fn try_boot(&mut self) -> Result<(), Output> {
        assert!(self.running.is_none(), "a daemon runs here already");
        self.starts += 1;
        let stderr_path = self.stderr_path();
        let stderr = fs::File::create(&stderr_path).unwrap();
        let mut child = self.command().stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        match lines.recv_timeout(self.options.ready_limit) {
            Ok(line) => {
                let ready: Ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                self.running = Some(Running { child, ready });
                Ok(())
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().unwrap();
                Err(Output { status, stdout: Vec::new(), stderr: fs::read(stderr_path).unwrap() })
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                let _ended = child.kill().and_then(|()| child.wait());
                panic!("not ready within {:?}: {}", self.options.ready_limit, fs::read_to_string(stderr_path).unwrap());
            }
        }
    }

    /// Returns the command that starts a daemon here, for tests that start it by themselves.
    pub fn command(&self) -> Command {
        let mut command = self.program();
        command.args(["daemon", "--json"]).stdin(Stdio::null());
        if let Some(mask) = self.options.umask {
            // SAFETY: umask(2) is async-signal-safe and cannot fail.
            unsafe {
                command.pre_exec(move || {
                    libc::umask(mask);
                    Ok(())
                });
            }
        }
        command
    }

    /// Returns a command of the program, aimed at this root.
    pub fn program(&self) -> Command {
        let mut command = Command::new(executable());
        command.arg("--root").arg(self.root.path()).env_remove("HOLDFAST_ROOT").env(MARK_VARIABLE, &self.mark);
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the variable, and its value, that mark what belongs to this test: what carries it has to end with it.
    pub fn mark(&self) -> (String, String) {
        (MARK_VARIABLE.to_owned(), self.mark.clone())
    }

    /// Returns the process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("a daemon runs").ready.pid
    }

    /// Returns what the daemon said when it was ready.
    pub fn ready(&self) -> &Ready {
        &self.running.as_ref().expect("a daemon runs").ready
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Ends the daemon as a power cut of the process would.
    pub fn kill9(&mut self) {
        let mut running = self.running.take().expect("a daemon runs");
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }

    /// Ends the daemon in order.
    ///
    /// # Panics
    /// When it has not ended within [`PATIENCE`].
    pub fn term(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the daemon's end.
    ///
    /// # Panics
    /// When it has not ended within [`PATIENCE`].
    pub fn wait(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("a daemon runs");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                let _ended = running.child.kill().and_then(|()| running.child.wait());
                panic!("the daemon did not end: {}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the daemon in order and starts it again.
    pub fn restart(&mut self) {
        let status = self.term();
        assert!(status.success(), "the daemon ended with {status}: {}", self.stderr());
        self.boot();
    }

    /// Says whether the daemon still runs.
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| running.child.try_wait().unwrap().is_none())
    }

    /// Returns what the last daemon said on stderr.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.stderr_path()).unwrap_or_default()
    }

    /// Connects and opens the conversation.
    ///
    /// # Errors
    /// When no daemon listens, or it turns us away.
    pub fn try_client(&self) -> Result<(TestClient, InitializeResult), ClientError> {
        connect(&self.root.socket())
    }

    /// Connects and opens the conversation.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn client(&self) -> TestClient {
        match self.try_client() {
            Ok((client, _)) => client,
            Err(error) => panic!("{error}: {}", self.stderr()),
        }
    }

    /// Returns the processes of this test's daemons and of all they started.
    pub fn processes(&self) -> Vec<i32> {
        processes::with_environment(MARK_VARIABLE, &self.mark)
    }

    /// A daemon that was killed leaves the empty cgroups of its leases to its next start, which a test has none of.
    fn remove_cgroups(&self) {
        let Ok(store) = rusqlite::Connection::open(self.root.leases_database()) else { return };
        let read =
            store.prepare("SELECT cgroup_path FROM process_leases WHERE cgroup_path IS NOT NULL").map(|mut found| {
                let paths = found.query_map([], |row| row.get::<_, Vec<u8>>(0));
                paths.map(|paths| paths.filter_map(Result::ok).collect::<Vec<_>>())
            });
        // A store that some test has damaged names none.
        let deadline = Instant::now() + ORPHANS_LIMIT;
        for path in read.and_then(|paths| paths).unwrap_or_default() {
            let leaf = PathBuf::from(OsString::from_vec(path));
            if std::thread::panicking() {
                // What has shed the mark is still in here.
                let _gone = fs::write(leaf.join("cgroup.kill"), "1");
            }
            // The last process of it may be on its way out.
            while fs::remove_dir(&leaf).is_err() && leaf.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn stderr_path(&self) -> PathBuf {
        self.directory.path().join(format!("stderr-{}", self.starts))
    }
}

impl Drop for TestDaemon {
    /// Ends the daemon and makes sure that nothing it started lives on.
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ended = running.child.kill().and_then(|()| running.child.wait());
        }
        if std::thread::panicking() {
            eprintln!("--- stderr of the daemon\n{}", self.stderr());
            end(&self.processes());
            self.remove_cgroups();
            return;
        }
        let deadline = Instant::now() + ORPHANS_LIMIT;
        let mut left = self.processes();
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            left = self.processes();
        }
        self.remove_cgroups();
        let shown: Vec<String> = left.iter().map(|pid| format!("{pid}: {}", processes::command_line(*pid))).collect();
        end(&left);
        assert!(left.is_empty(), "processes outlived their daemon: {shown:?}");
    }
}

/// Ends what a failed test left, so that it disturbs no other.
fn end(pids: &[i32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // Gone already is what is wanted.
        let _gone = kill_process(pid, Signal::KILL);
    }
}

/// Connects to a socket and opens the conversation; no answer takes longer than [`PATIENCE`].
///
/// # Errors
/// When nobody listens, or the daemon turns us away.
pub fn connect(socket: &Path) -> Result<(TestClient, InitializeResult), ClientError> {
    let failed = |source| ClientError::Io { action: "connect to", source };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut client = Client::new(stream);
    let server = client.initialize(PeerInfo { name: "test".to_owned(), version: "0".to_owned() })?;
    Ok((client, server))
}

/// Reads lines in a thread of its own, which ends with the pipe.
pub fn read_lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Waits until `child` has ended and returns how, with all it said.
///
/// # Panics
/// When it has not ended within `limit`; it is killed then.
#[track_caller]
pub fn output_within(mut child: Child, limit: Duration) -> Output {
    let out = child.stdout.take().map(read_lines);
    let err = child.stderr.take().map(read_lines);
    let deadline = Instant::now() + limit;
    let status = eventually(
        limit + Duration::from_secs(5),
        || match child.try_wait().unwrap() {
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("a program did not end within {limit:?}");
            }
            status => status,
        },
        Option::is_some,
    );
    let text = |lines: Option<Receiver<String>>| {
        lines.into_iter().flatten().fold(String::new(), |text, line| text + &line + "\n").into_bytes()
    };
    Output { status: status.unwrap(), stdout: text(out), stderr: text(err) }
}
