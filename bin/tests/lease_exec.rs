//! The wrapper against real processes.
//!
//! Every test tells its processes apart by a unique lease id in their environment, or by pids they wrote into its own
//! temporary directory, and kills what it started even when it fails.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use holdfast_actors::leases::wrapper::StatusLine;
use holdfast_actors::process::{ProcTable, ProcessTable};

const WRAPPER: &str = env!("CARGO_BIN_EXE_holdfast");
const LIMIT: Duration = Duration::from_secs(20);

/// Waits for a state, bounded; panics with the description when it does not come.
fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_alive(pid: i32) -> bool {
    ProcTable.stat(pid).unwrap().is_some_and(|stat| !stat.is_dead())
}

/// A directory with a script, and the pids the script wrote to `pids/<name>` in it.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pids")).unwrap();
        std::fs::write(directory.path().join("adapter.sh"), script).unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn pid(&self, name: &str) -> i32 {
        let path = self.path().join("pids").join(name);
        let mut pid = None;
        eventually(&format!("{} holds a pid", path.display()), || {
            pid = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    }

    fn written_pids(&self) -> Vec<i32> {
        let entries: Vec<PathBuf> =
            std::fs::read_dir(self.path().join("pids")).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).collect()
    }

    /// Starts the script in a wrapper whose parent is this test.
    fn start(&self, kill_grace_ms: u32) -> Wrapped {
        let mut command = self.command(kill_grace_ms, std::process::id());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Wrapped::spawn(command, &["sh".to_owned(), "adapter.sh".to_owned()])
    }

    fn command(&self, kill_grace_ms: u32, parent_pid: u32) -> Command {
        let mut command = Command::new(WRAPPER);
        command.arg("lease-exec").args(["--parent-pid", &parent_pid.to_string()]);
        command.args(["--kill-grace-ms", &kill_grace_ms.to_string()]).current_dir(self.path());
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Only on failure is anything left. A pid may have passed to a stranger since: ours still stand in our directory.
        for pid in self.written_pids() {
            if let Ok(Some(handle)) = ProcTable.open(pid)
                && std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory == self.path())
            {
                let _ = handle.signal(rustix::process::Signal::KILL);
            }
        }
    }
}

/// A running wrapper with its status pipe.
struct Wrapped {
    child: Child,
    status: BufReader<File>,
}

impl Wrapped {
    fn spawn(mut command: Command, adapter: &[String]) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = OwnedFd::from(reader);
        let writer = OwnedFd::from(writer);
        let number = writer.as_raw_fd();
        command.args(["--status-fd", &number.to_string(), "--"]).args(adapter);
        // SAFETY: one async-signal-safe call; the descriptor loses its close-on-exec flag in the child only.
        unsafe {
            command.pre_exec(move || {
                if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn().unwrap();
        drop(writer);
        Self { child, status: BufReader::new(File::from(reader)) }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn next_status(&mut self) -> StatusLine {
        let mut line = String::new();
        self.status.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("status line {line:?}: {error}"))
    }

    /// Says whether the pipe ended, which means that nobody else inherited it.
    fn status_ended(&mut self) -> bool {
        self.status.read_line(&mut String::new()).unwrap() == 0
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the wrapper exits", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_line_says_who_runs_and_the_adapter_shares_the_wrappers_group() {
    let scene = Scene::new("echo $$ > pids/adapter; read line; exit 0");
    let mut wrapped = scene.start(5_000);
    let line = wrapped.next_status();
    let wrapper_stat = ProcTable.stat(wrapped.pid()).unwrap().unwrap();
    let adapter = scene.pid("adapter");
    let adapter_stat = ProcTable.stat(adapter).unwrap().unwrap();
    let expected = StatusLine::Started {
        root_pid: wrapped.pid(),
        root_start_ticks: Some(wrapper_stat.start_ticks),
        process_group_id: wrapped.pid(),
        adapter_pid: adapter,
        adapter_start_ticks: Some(adapter_stat.start_ticks),
    };
    assert_eq!(line, expected);
    for stat in [&wrapper_stat, &adapter_stat] {
        assert_eq!((stat.process_group_id, stat.session_id), (wrapped.pid(), wrapped.pid()));
    }
    drop(wrapped.child.stdin.take());
    assert_eq!(wrapped.wait().code(), Some(0));
    assert_eq!(wrapped.next_status(), StatusLine::AdapterExited { exit_code: Some(0), exit_signal: None });
    assert!(wrapped.status_ended());
}

#[test]
fn exit_code_and_ending_signal_are_passed_through() {
    let scene = Scene::new("exit 37");
    let mut wrapped = scene.start(5_000);
    assert_eq!(wrapped.wait().code(), Some(37));
    for (name, number) in
        [("KILL", libc::SIGKILL), ("TERM", libc::SIGTERM), ("SEGV", libc::SIGSEGV), ("USR1", libc::SIGUSR1)]
    {
        let scene = Scene::new(&format!("kill -{name} $$"));
        let mut wrapped = scene.start(5_000);
        assert_eq!(wrapped.wait().signal(), Some(number), "SIG{name}");
        wrapped.next_status();
        assert_eq!(wrapped.next_status(), StatusLine::AdapterExited { exit_code: None, exit_signal: Some(number) });
    }
}

#[test]
fn a_mebibyte_passes_both_ways_byte_for_byte() {
    let scene = Scene::new("echo problem >&2; exec cat");
    let mut wrapped = scene.start(5_000);
    let mut stdin = wrapped.child.stdin.take().unwrap();
    let mut stdout = wrapped.child.stdout.take().unwrap();
    let mut stderr = wrapped.child.stderr.take().unwrap();
    // Every byte value, no period of a buffer size: 1 MiB + 3.
    let sent: Vec<u8> = (0..1_048_579_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let mut received = Vec::new();
    stdout.read_to_end(&mut received).unwrap();
    writer.join().unwrap().unwrap();
    assert!(received == sent, "{} bytes came back of {}", received.len(), sent.len());
    let mut complaint = String::new();
    stderr.read_to_string(&mut complaint).unwrap();
    assert_eq!(complaint, "problem\n");
    assert_eq!(wrapped.wait().code(), Some(0));
}

#[test]
fn stdout_ends_with_the_adapter_though_the_wrapper_waits_for_a_grandchild() {
    let scene = Scene::new(
        "(trap '' TERM; echo $$ > /dev/null; exec >/dev/null 2>&1 </dev/null; sh -c 'echo $$ > pids/left; exec sleep 1000') & \
         while ! [ -s pids/left ]; do :; done; exit 3",
    );
    let mut wrapped = scene.start(1_500);
    let left = scene.pid("left");
    let mut text = String::new();
    wrapped.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(is_alive(left), "stdout ended only with the grandchild");
    assert!(wrapped.child.try_wait().unwrap().is_none(), "the wrapper left before the tree");
    assert_eq!(wrapped.wait().code(), Some(3));
    assert!(!is_alive(left));
}

#[test]
fn a_grandchild_left_in_the_group_is_ended_when_the_adapter_has_gone() {
    let scene =
        Scene::new("sh -c 'echo $$ > pids/left; exec sleep 1000' & while ! [ -s pids/left ]; do :; done; exit 5");
    let mut wrapped = scene.start(60_000);
    let left = scene.pid("left");
    // TERM is enough here: the long grace period is not waited for.
    assert_eq!(wrapped.wait().code(), Some(5));
    assert!(!is_alive(left));
}

/// What an adapter can do to get away: a new session, two forks, an empty environment, TERM ignored.
const STUBBORN: &str = "trap '' TERM INT HUP
    echo $$ > pids/adapter
    setsid sh -c 'trap \"\" TERM; echo $$ > pids/session; sleep 1000; sleep 1000' &
    (setsid env -i /bin/sh -c 'trap \"\" TERM; echo $$ > pids/stripped; while :; do /bin/sleep 1000; done' &)
    sh -c 'sh -c \"trap : TERM; echo \\$\\$ > pids/forked; while :; do sleep 1000; done\" & exit 0'
    while :; do sleep 1000; done";

#[test]
fn sigterm_is_passed_on_and_decides_nothing() {
    let scene = Scene::new(
        "trap 'echo TERM >> got' TERM; trap 'echo INT >> got' INT; trap 'echo HUP >> got; exit 9' HUP
         echo $$ > pids/adapter; while :; do sleep 0.05; done",
    );
    let mut wrapped = scene.start(60_000);
    scene.pid("adapter");
    let got = || std::fs::read_to_string(scene.path().join("got")).unwrap_or_default();
    wrapped.signal(rustix::process::Signal::TERM);
    eventually("the adapter got TERM", || got() == "TERM\n");
    wrapped.signal(rustix::process::Signal::INT);
    eventually("the adapter got INT, and TERM only once", || got() == "TERM\nINT\n");
    assert!(wrapped.child.try_wait().unwrap().is_none());
    wrapped.signal(rustix::process::Signal::HUP);
    assert_eq!(wrapped.wait().code(), Some(9));
    assert_eq!(got(), "TERM\nINT\nHUP\n");
}

#[test]
fn a_signal_the_adapter_sends_to_its_own_group_does_not_end_the_wrapper() {
    let scene = Scene::new("trap '' USR1 QUIT; kill -USR1 0; kill -QUIT 0; kill -PWR 0 2>/dev/null; exit 4");
    let mut wrapped = scene.start(5_000);
    let status = wrapped.wait();
    // SIGPWR is not trapped, so it may end the adapter; the wrapper saw it through either way.
    assert!(status.code() == Some(4) || status.signal() == Some(libc::SIGPWR), "{status:?}");
    wrapped.next_status();
    assert!(matches!(wrapped.next_status(), StatusLine::AdapterExited { .. }));
}

/// Starts the scene's script in a wrapper below a shell, so that a parent can be killed; returns that parent.
fn start_below_a_parent(scene: &Scene, kill_grace_ms: u32) -> Child {
    let script = format!(
        "\"$0\" lease-exec --parent-pid $$ --kill-grace-ms {kill_grace_ms} -- sh adapter.sh <&0 & \
         echo $! > pids/wrapper; echo $$ > pids/parent; wait"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, WRAPPER]).current_dir(scene.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn when_the_parent_is_killed_the_whole_stubborn_tree_goes() {
    let scene = Scene::new(STUBBORN);
    let mut parent = start_below_a_parent(&scene, 300);
    let pids: Vec<i32> =
        ["adapter", "session", "stripped", "forked", "wrapper"].into_iter().map(|name| scene.pid(name)).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    for pid in pids {
        eventually(&format!("process {pid} is gone"), || !is_alive(pid));
    }
}

#[test]
fn a_stubborn_tree_gets_its_grace_period_before_it_is_killed() {
    let scene = Scene::new(
        "trap 'sleep 0.3; echo saved > saved; exit 0' TERM; echo $$ > pids/adapter; while :; do sleep 0.05; done",
    );
    let mut parent = start_below_a_parent(&scene, 10_000);
    let wrapper = scene.pid("wrapper");
    scene.pid("adapter");
    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually("the wrapper is gone", || !is_alive(wrapper));
    assert_eq!(std::fs::read_to_string(scene.path().join("saved")).unwrap(), "saved\n");
}

#[test]
fn a_parent_that_died_before_the_wrapper_could_watch_it_is_noticed() {
    let scene = Scene::new("echo $$ > pids/adapter; exec sleep 1000");
    // A process that is certainly not our parent stands for the one that died.
    let mut command = scene.command(100, 1);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut wrapped = Wrapped::spawn(command, &["sh".to_owned(), "adapter.sh".to_owned()]);
    assert_eq!(wrapped.wait().code(), Some(125));
    assert!(
        matches!(wrapped.next_status(), StatusLine::ExecFailed { message, .. } if message.contains("not there any more"))
    );
    assert!(scene.written_pids().is_empty(), "the adapter was started for nobody");
}

#[test]
fn a_command_that_can_not_be_started_says_what_was_tried() {
    let scene = Scene::new("");
    std::fs::write(scene.path().join("plain"), "no program").unwrap();
    std::fs::write(scene.path().join("orphan"), "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scene.path().join("orphan"), mode).unwrap();
    let missing_directory = scene.path().join("nowhere").display().to_string();
    /// Command, wrapper arguments, exit code, errno, part of the message.
    type Case<'a> = (&'a [&'a str], &'a [&'a str], i32, i32, &'a str);
    let cases: [Case<'_>; 5] = [
        (&["no-such-adapter-here"], &[], 127, libc::ENOENT, "looked in PATH="),
        (&["./nothing"], &[], 127, libc::ENOENT, "/./nothing"),
        (&["./plain"], &[], 126, libc::EACCES, "plain"),
        (&["./orphan"], &[], 127, libc::ENOENT, "interpreter"),
        (&["sh"], &["--directory", &missing_directory], 127, libc::ENOENT, "working directory"),
    ];
    for (adapter, extra, code, number, part) in cases {
        let mut command = scene.command(100, std::process::id());
        command.args(extra).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let adapter: Vec<String> = adapter.iter().map(|word| (*word).to_owned()).collect();
        let mut wrapped = Wrapped::spawn(command, &adapter);
        assert_eq!(wrapped.wait().code(), Some(code), "{adapter:?}");
        let line = wrapped.next_status();
        let StatusLine::ExecFailed { program, errno, message } = line else { panic!("{adapter:?}: {line:?}") };
        assert_eq!((program.as_str(), errno), (adapter[0].as_str(), Some(number)));
        assert!(message.contains(part), "{adapter:?}: {message}");
        let mut output = String::new();
        wrapped.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        wrapped.child.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        assert_eq!(output, "", "stdio is the adapter's");
    }
}

#[test]
fn the_adapter_inherits_no_descriptor_but_stdio_and_no_blocked_signal() {
    // A shell blocks signals itself for a moment when it forks, so the process asked is one that it became.
    let scene = Scene::new("ls /proc/self/fd; exec grep SigBlk /proc/self/status");
    // Left open for exec on purpose, as a careless program would.
    let leaked = File::open("/dev/null").unwrap();
    let number = leaked.as_raw_fd();
    let mut command = scene.command(100, std::process::id());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: one async-signal-safe call in the child.
    unsafe {
        command.pre_exec(move || {
            libc::dup2(number, 77);
            Ok(())
        });
    }
    let mut wrapped = Wrapped::spawn(command, &["sh".to_owned(), "adapter.sh".to_owned()]);
    let mut output = String::new();
    wrapped.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    // 3 is the directory that ls itself reads.
    assert_eq!(output, "0\n1\n2\n3\nSigBlk:\t0000000000000000\n");
    assert_eq!(wrapped.wait().code(), Some(0));
}
