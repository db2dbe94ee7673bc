//! Process ids that pass to somebody else, and a process list that can't be had: forced, in namespaces of their own.
//!
//! Each test runs itself again in new namespaces; where the system does not allow that it says so and passes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_actors::leases::{Ender, SpawnRequest, Spawner, TreeEnd, Verdict};
use holdfast_actors::process::{Check, ProcTable, ProcessTable};
use holdfast_protocol::ids::{InstanceId, LeaseId};
use holdfast_stores::leases::{LeaseExit, LeaseRecord, LeaseRoot, LeaseState};
use rustix::process::Signal;

const WRAPPER: &str = env!("CARGO_BIN_EXE_holdfast");
const LIMIT: Duration = Duration::from_secs(20);
/// Set in the environment of a test that runs in its own namespaces.
const INSIDE: &str = "HOLDFAST_TEST_INSIDE";
/// The last process id that was given out in this PID namespace. Source: ns_last_pid in proc_sys_kernel(5).
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Returns whether this is the run in namespaces of its own; otherwise starts that run and waits for it, or says why there
/// can be none.
fn is_inside(test: &str, probe: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut namespaces = vec!["--pid", "--mount", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        namespaces.extend(["--user", "--map-root-user"]);
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(&namespaces).arg("--");
        command
    };
    let allowed = unshare().args(["sh", "-c", probe]).stdin(Stdio::null()).output();
    match allowed {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            println!("skipped, not allowed here: {}", String::from_utf8_lossy(&output.stderr).trim());
            return false;
        }
        Err(error) => {
            println!("skipped, there is no `unshare` here: {error}");
            return false;
        }
    }
    let own = std::env::current_exe().unwrap();
    let output = unshare().arg(own).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "the test did not run inside: {}", text(&output.stdout));
    false
}

fn unique_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

fn is_alive(pid: i32) -> bool {
    ProcTable.stat(pid).unwrap().is_some_and(|stat| !stat.is_dead())
}

fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A lease whose wrapper ran and has gone.
struct Ran {
    record: LeaseRecord,
    pid: i32,
}

fn identity() -> (LeaseId, InstanceId) {
    (unique_id().parse().unwrap(), unique_id().parse().unwrap())
}

fn request(lease_id: LeaseId, instance_id: InstanceId, script: &str) -> SpawnRequest {
    SpawnRequest {
        lease_id,
        instance_id,
        session_id: None,
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        directory: None,
        environment: Vec::new(),
        kill_grace: Duration::from_millis(200),
        cgroup_path: None,
    }
}

async fn launched(spawner: &Spawner, script: &str) -> (LeaseRecord, holdfast_actors::leases::LeasedProcess) {
    let (lease_id, instance_id) = identity();
    let process = spawner.spawn(request(lease_id, instance_id, script)).await.unwrap();
    let root = process.identity;
    let record = LeaseRecord {
        lease_id,
        instance_id,
        session_id: None,
        agent: "test".to_owned(),
        wrapper_root: "/".into(),
        wrapper_path: spawner.wrapper_path().to_owned(),
        root: Some(LeaseRoot {
            pid: i64::from(root.pid),
            start_ticks: root.start_ticks,
            pidfd_ino: root.pidfd_inode,
            process_group_id: Some(i64::from(root.process_group_id)),
        }),
        cgroup_path: None,
        command_hash: [0; 32],
        boot_id: ProcTable.boot_id().unwrap(),
        started_at_ms: 0,
        state: LeaseState::Open,
        state_changed_at_ms: 0,
        exit: LeaseExit::default(),
        last_error: None,
    };
    (record, process)
}

async fn ran(spawner: &Spawner) -> Ran {
    let (record, mut process) = launched(spawner, "exit 0").await;
    process.exit.tree_ended().await;
    let pid = process.identity.pid;
    assert_eq!(ProcTable.stat(pid).unwrap(), None, "reaped, so the number is free");
    Ran { record, pid }
}

/// Starts `command` with exactly this process id.
fn with_pid(pid: i32, mut command: Command) -> Child {
    for _ in 0..200 {
        fs::write(LAST_PID, (pid - 1).to_string()).unwrap();
        let mut child = command.spawn().unwrap();
        if child.id() == pid.unsigned_abs() {
            return child;
        }
        // A thread of ours took the number; it will be free again.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    panic!("process id {pid} could not be had");
}

/// A process that writes down every signal it gets, and lives on.
fn victim(log: &Path, own_session: bool, environment: &[(&str, String)]) -> Command {
    let script = "for name in TERM INT HUP QUIT USR1 PWR; do trap \"echo $name >> $LOG\" $name; done
        echo ready > $LOG.ready; while :; do sleep 0.05; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("LOG", log).envs(environment.iter().map(|(name, value)| (*name, value.clone())));
    if own_session {
        // SAFETY: one async-signal-safe system call.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
    }
    command
}

/// Another install's wrapper, with an adapter.
fn foreign_wrapper(log: &Path) -> Command {
    let (lease_id, instance_id) = identity();
    let mut command = Command::new(WRAPPER);
    command.args(["lease-exec", "--parent-pid", &std::process::id().to_string(), "--", "sh", "-c"]);
    command.arg("trap 'echo TERM >> $LOG' TERM; echo ready > $LOG.ready; while :; do sleep 0.05; done");
    command.env("LOG", log).env("HOLDFAST_LEASE_ID", lease_id.to_string());
    command.env("HOLDFAST_INSTANCE_ID", instance_id.to_string());
    command
}

fn ender() -> Ender {
    Ender { table: Arc::new(ProcTable), adopter: None, grace: Duration::from_millis(100) }
}

/// Whoever has the pid now, and what is recorded of it.
type Case = (&'static str, fn(&Path, &LeaseRecord) -> Command, fn(&mut LeaseRoot, i32), Check);

fn unchanged(_: &mut LeaseRoot, _: i32) {}

/// As a kernel before 6.9 would have recorded it, of a process that began in an earlier clock tick.
fn without_inode(root: &mut LeaseRoot, pid: i32) {
    root.pidfd_ino = None;
    root.start_ticks = ProcTable.stat(pid).unwrap().unwrap().start_ticks - 1;
}

/// As if the number had passed on within one clock tick, on a kernel without inodes.
fn within_a_tick(root: &mut LeaseRoot, pid: i32) {
    root.pidfd_ino = None;
    root.start_ticks = ProcTable.stat(pid).unwrap().unwrap().start_ticks;
}

/// Within one clock tick, where there are inodes.
fn within_a_tick_with_inode(root: &mut LeaseRoot, pid: i32) {
    root.start_ticks = ProcTable.stat(pid).unwrap().unwrap().start_ticks;
}

const CASES: &[Case] = &[
    ("an unrelated process", |log, _| victim(log, true, &[]), unchanged, Check::PidfdInode),
    ("an unrelated process, no inodes", |log, _| victim(log, true, &[]), without_inode, Check::StartTicks),
    ("an unrelated process, same tick", |log, _| victim(log, true, &[]), within_a_tick_with_inode, Check::PidfdInode),
    (
        "a member of a group, same tick, no inodes",
        |log, _| victim(log, false, &[]),
        within_a_tick,
        Check::GroupAndSession,
    ),
    ("a leader of a group, same tick, no inodes", |log, _| victim(log, true, &[]), within_a_tick, Check::Environment),
    (
        "an agent that inherited the lease, same tick, no inodes",
        |log, record| {
            let ours = [
                ("HOLDFAST_LEASE_ID", record.lease_id.to_string()),
                ("HOLDFAST_INSTANCE_ID", record.instance_id.to_string()),
            ];
            victim(log, true, &ours)
        },
        within_a_tick,
        Check::Executable,
    ),
    ("another install's wrapper", |log, _| foreign_wrapper(log), unchanged, Check::PidfdInode),
    ("another install's wrapper, no inodes", |log, _| foreign_wrapper(log), without_inode, Check::StartTicks),
    (
        "another install's wrapper, same tick, no inodes",
        |log, _| foreign_wrapper(log),
        within_a_tick,
        Check::Environment,
    ),
];

#[test]
fn a_process_id_that_passed_to_another_process_earns_it_no_signal() {
    let name = "a_process_id_that_passed_to_another_process_earns_it_no_signal";
    if !is_inside(name, &format!("echo 100 > {LAST_PID}")) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let spawner = Spawner::start(Path::new(WRAPPER)).unwrap();
    for (index, (name, who, change, expected)) in CASES.iter().enumerate() {
        let Ran { mut record, pid } = runtime.block_on(ran(&spawner));
        let log: PathBuf = directory.path().join(index.to_string());
        let mut child = with_pid(pid, who(&log, &record));
        eventually(name, || log.with_extension("ready").exists());
        let mut root = record.root.unwrap();
        if root.pidfd_ino.is_none() && *expected == Check::PidfdInode {
            println!("{name}: skipped, this kernel has no inodes for pidfds");
        } else {
            change(&mut root, pid);
            record.root = Some(root);
            assert_eq!(ender().look(&record).verdict, Verdict::Foreign(*expected), "{name}");
            assert_eq!(ender().end(&record), TreeEnd::Foreign(*expected), "{name}");
            assert!(is_alive(pid), "{name}: it was ended");
            assert!(!log.exists(), "{name}: it got {:?}", fs::read_to_string(&log));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    runtime.block_on(async {
        let left = spawner.children().await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn without_a_process_list_nothing_is_signalled_and_later_it_is() {
    let name = "without_a_process_list_nothing_is_signalled_and_later_it_is";
    if !is_inside(name, "mount -t tmpfs none /proc && umount /proc") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let spawner = Spawner::start(Path::new(WRAPPER)).unwrap();
        let (record, mut process) = launched(&spawner, "trap '' TERM; while :; do sleep 1000; done").await;
        let mount = |words: &[&str]| assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
        mount(&["mount", "-t", "tmpfs", "none", "/proc"]);
        let (looked, ended) = (ender().look(&record), ender().end(&record));
        let unspawned = ender().end(&LeaseRecord { root: None, ..record.clone() });
        mount(&["umount", "/proc"]);
        assert!(matches!(looked.verdict, Verdict::Unclear(_)), "{looked:?}");
        assert!(matches!(ended, TreeEnd::Unclear(_)), "{ended:?}");
        assert!(matches!(unspawned, TreeEnd::Unclear(_)), "{unspawned:?}");
        assert!(is_alive(process.adapter_pid) && is_alive(process.identity.pid));
        let ended = tokio::task::spawn_blocking(move || ender().end(&record)).await.unwrap();
        assert_eq!(ended, TreeEnd::Ended { killed: true });
        assert_eq!(process.exit.tree_ended().await.exit_signal, Some(Signal::KILL.as_raw()));
    });
}
