//! Spawner, verification and end of a tree, with the real wrapper and real processes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_actors::leases::{LeasedProcess, SpawnError, SpawnRequest, Spawner};
use holdfast_actors::process::{
    Check, EndOptions, LeaseEvidence, ProcTable, ProcessTable, Verification, end_tree, verify_owned_tree,
};
use holdfast_protocol::ids::{InstanceId, LeaseId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const WRAPPER: &str = env!("CARGO_BIN_EXE_holdfast");
const LIMIT: Duration = Duration::from_secs(20);

/// A unique v4-shaped id a test; tests run beside each other and look into each other's environments.
fn unique_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

async fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_alive(pid: i32) -> bool {
    ProcTable.stat(pid).unwrap().is_some_and(|stat| !stat.is_dead())
}

struct Scene {
    directory: tempfile::TempDir,
    spawner: Spawner,
    lease_id: LeaseId,
    instance_id: InstanceId,
}

impl Scene {
    fn new() -> Self {
        Self::with_wrapper(Path::new(WRAPPER))
    }

    fn with_wrapper(wrapper: &Path) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            spawner: Spawner::start(wrapper).unwrap(),
            lease_id: unique_id().parse().unwrap(),
            instance_id: unique_id().parse().unwrap(),
        }
    }

    fn request(&self, script: &str) -> SpawnRequest {
        SpawnRequest {
            lease_id: self.lease_id,
            instance_id: self.instance_id,
            session_id: None,
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            directory: Some(self.directory.path().to_owned()),
            environment: vec![("COLOUR".into(), "green".into())],
            kill_grace: Duration::from_millis(200),
            cgroup_path: None,
        }
    }

    async fn spawn(&self, script: &str) -> LeasedProcess {
        self.spawner.spawn(self.request(script)).await.unwrap()
    }

    fn evidence(&self, process: &LeasedProcess) -> LeaseEvidence {
        LeaseEvidence {
            lease_id: self.lease_id,
            instance_id: self.instance_id,
            boot_id: ProcTable.boot_id().unwrap(),
            root_pid: process.identity.pid,
            root_start_ticks: process.identity.start_ticks,
            root_pidfd_inode: process.identity.pidfd_inode,
            process_group_id: process.identity.process_group_id,
            wrapper_path: self.spawner.wrapper_path().to_owned(),
            cgroup: None,
        }
    }

    async fn pid(&self, name: &str) -> i32 {
        let path = self.directory.path().join(name);
        let mut pid = None;
        eventually(&format!("{name} holds a pid"), || {
            pid = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        })
        .await;
        pid.unwrap()
    }
}

impl Drop for Scene {
    /// Only a failed test leaves something; what runs in our directory is ours.
    fn drop(&mut self) {
        for process in ProcTable.list().unwrap_or_default() {
            let directory = std::fs::read_link(format!("/proc/{}/cwd", process.pid));
            if directory.is_ok_and(|directory| directory == self.directory.path())
                && let Ok(Some(handle)) = ProcTable.open(process.pid)
            {
                let _ = handle.signal(rustix::process::Signal::KILL);
            }
        }
    }
}

const OPTIONS: EndOptions = EndOptions { grace: Duration::from_millis(300), kill_limit: Duration::from_secs(10) };

#[tokio::test]
async fn an_adapter_talks_over_its_pipes_and_both_ends_of_it_are_seen() {
    let scene = Scene::new();
    let mut process = scene.spawn("echo $HOLDFAST_LEASE_ID $COLOUR; pwd; cat; echo bad >&2; exit 6").await;
    assert!(is_alive(process.adapter_pid));
    assert_eq!(scene.spawner.children().await.unwrap(), [process.identity.pid].into());
    process.stdin.write_all(b"hello\n").await.unwrap();
    drop(process.stdin);
    let (mut output, mut complaint) = (String::new(), String::new());
    process.stdout.read_to_string(&mut output).await.unwrap();
    process.stderr.read_to_string(&mut complaint).await.unwrap();
    let directory = scene.directory.path().canonicalize().unwrap();
    assert_eq!(output, format!("{} green\n{}\nhello\n", scene.lease_id, directory.display()));
    assert_eq!(complaint, "bad\n");
    let tree = process.exit.tree_ended().await;
    assert_eq!((tree.exit_code, tree.exit_signal), (Some(6), None));
    assert_eq!(process.exit.adapter_ended().await, Some(tree));
    assert!(scene.spawner.children().await.unwrap().is_empty());
    assert_eq!(ProcTable.stat(process.identity.pid).unwrap(), None, "the wrapper was reaped");
}

#[tokio::test]
async fn an_adapter_that_can_not_be_started_is_an_error_that_names_it() {
    let scene = Scene::new();
    let request = SpawnRequest { program: "no-such-adapter-here".into(), ..scene.request("") };
    let error = scene.spawner.spawn(request).await.unwrap_err();
    assert!(error.to_string().contains("no-such-adapter-here"), "{error}");
    assert!(matches!(error, SpawnError::Adapter { errno: Some(libc::ENOENT), .. }), "{error:?}");
    assert!(scene.spawner.children().await.unwrap().is_empty(), "the wrapper has ended and was reaped");
    let missing = Spawner::start(Path::new("/no/such/wrapper")).map(drop).unwrap_err();
    assert!(missing.to_string().contains("/no/such/wrapper"), "{missing}");
}

/// Wrapper, adapter, child, and a grandchild that left group, session and environment behind; nothing heeds TERM.
const STUBBORN: &str = "trap '' TERM
    sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 1000; done' &
    (setsid env -i /bin/sh -c 'trap \"\" TERM; echo $$ > stray; while :; do /bin/sleep 1000; done' &)
    while :; do sleep 1000; done";

#[tokio::test]
async fn a_verified_tree_is_ended_whole_and_then_it_is_gone() {
    let scene = Scene::new();
    let mut process = scene.spawn(STUBBORN).await;
    let pids = [process.adapter_pid, scene.pid("child").await, scene.pid("stray").await];
    let evidence = scene.evidence(&process);
    let Verification::Owned(tree) = verify_owned_tree(&evidence, &ProcTable) else { panic!("not owned") };
    let found: Vec<i32> = tree.members.iter().map(|member| member.stat.pid).collect();
    assert!(pids.iter().all(|pid| found.contains(pid)), "{found:?} lacks one of {pids:?}");
    let report = tokio::task::spawn_blocking(move || end_tree(tree, OPTIONS, &ProcTable)).await.unwrap();
    assert!(report.ended && report.killed && report.problems.is_empty(), "{report:?}");
    assert_eq!(process.exit.tree_ended().await.exit_signal, Some(libc::SIGKILL));
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert!(matches!(verify_owned_tree(&evidence, &ProcTable), Verification::Gone));
}

#[tokio::test]
async fn a_tree_that_heeds_term_is_not_killed() {
    let scene = Scene::new();
    let process = scene.spawn("trap 'exit 0' TERM; echo $$ > ready; while :; do sleep 0.05; done").await;
    scene.pid("ready").await;
    let Verification::Owned(tree) = verify_owned_tree(&scene.evidence(&process), &ProcTable) else {
        panic!("not owned")
    };
    let options = EndOptions { grace: LIMIT, ..OPTIONS };
    let report = tokio::task::spawn_blocking(move || end_tree(tree, options, &ProcTable)).await.unwrap();
    assert!(report.ended && !report.killed, "{report:?}");
}

#[tokio::test]
async fn a_wrapper_whose_file_was_replaced_is_still_ours_and_others_are_not() {
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("holdfast");
    std::fs::copy(WRAPPER, &copy).unwrap();
    let scene = Scene::with_wrapper(&copy);
    let mut process = scene.spawn("while :; do sleep 1000; done").await;
    let evidence = scene.evidence(&process);
    std::fs::remove_file(&copy).unwrap();
    let said = |evidence: &LeaseEvidence| match verify_owned_tree(evidence, &ProcTable) {
        Verification::Owned(_) => None,
        Verification::Foreign { failed } => Some(failed),
        Verification::Gone | Verification::CannotTell { .. } => panic!("neither owned nor foreign"),
    };
    assert_eq!(said(&evidence), None);
    let other = LeaseEvidence { wrapper_path: WRAPPER.into(), ..evidence.clone() };
    assert_eq!(said(&other), Some(Check::Executable));
    let other = LeaseEvidence { lease_id: unique_id().parse().unwrap(), ..evidence.clone() };
    assert_eq!(said(&other), Some(Check::Environment));
    let other = LeaseEvidence { root_start_ticks: evidence.root_start_ticks + 1, ..evidence.clone() };
    assert_eq!(said(&other), Some(Check::StartTicks));
    let other =
        LeaseEvidence { root_pidfd_inode: evidence.root_pidfd_inode.map(|inode| inode + 1), ..evidence.clone() };
    assert_eq!(said(&other), evidence.root_pidfd_inode.map(|_| Check::PidfdInode));
    let Verification::Owned(tree) = verify_owned_tree(&evidence, &ProcTable) else { panic!("not owned") };
    let report = tokio::task::spawn_blocking(move || end_tree(tree, OPTIONS, &ProcTable)).await.unwrap();
    assert!(report.ended, "{report:?}");
    process.exit.tree_ended().await;
}

#[tokio::test]
async fn a_spawn_nobody_waits_for_leaves_nothing_behind() {
    let scene = Scene::new();
    for _ in 0..5 {
        let request = scene.request("trap '' TERM; while :; do sleep 1000; done");
        let spawner = scene.spawner.clone();
        let spawn = tokio::spawn(async move { spawner.spawn(request).await.map(drop) });
        tokio::task::yield_now().await;
        spawn.abort();
        let cancelled = spawn.await.is_err();
        // Whichever came first: a process that was handed over stays until its lease is closed.
        assert!(cancelled, "the spawn finished before it could be cancelled");
    }
    assert!(scene.spawner.children().await.unwrap().is_empty(), "answered after all spawns");
    eventually("no process carries the lease", || {
        let found =
            holdfast_actors::process::verify::find_by_environment(scene.lease_id, scene.instance_id, &ProcTable);
        found.unwrap().is_empty()
    })
    .await;
}
