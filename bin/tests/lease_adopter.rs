//! The adopter makes its whole process a subreaper, so it has a test program, and one test, of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_actors::leases::{Adopter, LeasedProcess, Orphans, Ownership, SpawnRequest, Spawner};
use holdfast_actors::process::{EndOptions, ProcTable, ProcessTable};
use holdfast_protocol::ids::{InstanceId, LeaseId};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(20);

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

fn state(pid: i32) -> Option<char> {
    ProcTable.stat(pid).unwrap().map(|stat| stat.state)
}

struct Tree {
    directory: tempfile::TempDir,
    lease_id: LeaseId,
    instance_id: InstanceId,
    process: LeasedProcess,
}

impl Tree {
    async fn start(spawner: &Spawner) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (lease_id, instance_id) = (unique_id().parse().unwrap(), unique_id().parse().unwrap());
        let script = "trap '' TERM; echo $$ > adapter
            (setsid env -i /bin/sh -c 'trap \"\" TERM; echo $$ > stray; while :; do /bin/sleep 1000; done' &)
            sh -c 'echo $$ > child; exec sleep 1000' &
            while :; do sleep 1000; done";
        let request = SpawnRequest {
            lease_id,
            instance_id,
            session_id: None,
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            directory: Some(directory.path().to_owned()),
            environment: Vec::new(),
            kill_grace: Duration::from_millis(200),
            cgroup_path: None,
        };
        let process = spawner.spawn(request).await.unwrap();
        Self { directory, lease_id, instance_id, process }
    }

    async fn pid(&self, name: &str) -> i32 {
        let path = self.directory.path().join(name);
        let mut pid = None;
        eventually(name, || {
            pid = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        })
        .await;
        pid.unwrap()
    }

    async fn kill_wrapper(&mut self) {
        let handle = ProcTable.open(self.process.identity.pid).unwrap().unwrap();
        handle.signal(Signal::KILL).unwrap();
        assert_eq!(self.process.exit.tree_ended().await.exit_signal, Some(libc::SIGKILL));
        assert_eq!(self.process.exit.adapter_ended().await, None, "nobody can tell how the adapter ended");
    }

    fn orphans(&self) -> Orphans {
        Orphans {
            lease_id: self.lease_id,
            instance_id: self.instance_id,
            process_group_id: self.process.identity.process_group_id,
            recorded: Vec::new(),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for process in ProcTable.list().unwrap_or_default() {
            let directory = std::fs::read_link(format!("/proc/{}/cwd", process.pid));
            if directory.is_ok_and(|directory| directory == self.directory.path())
                && let Ok(Some(handle)) = ProcTable.open(process.pid)
            {
                let _ = handle.signal(Signal::KILL);
            }
        }
    }
}

#[tokio::test]
async fn orphans_of_a_killed_wrapper_are_ended_and_other_children_keep_their_exits() {
    let spawner = Spawner::start(Path::new(env!("CARGO_BIN_EXE_holdfast"))).unwrap();
    let options = EndOptions { grace: Duration::from_millis(200), kill_limit: Duration::from_secs(10) };
    let only = Adopter::install(spawner.clone(), Ownership::SpawnerOnly).unwrap();
    let shared = Adopter::install(spawner.clone(), Ownership::Shared).unwrap();

    // A child that has nothing to do with us and that someone waits for, and a tree that keeps its wrapper.
    let mut bystander = tokio::process::Command::new("sh").args(["-c", "sleep 0.1; exit 42"]).spawn().unwrap();
    let mut kept = Tree::start(&spawner).await;
    let kept_pids = [kept.pid("adapter").await, kept.pid("stray").await, kept.pid("child").await];

    // Shared: session and lease id say whose it was; the stripped one in a session of its own is not ours to end.
    let mut tree = Tree::start(&spawner).await;
    let pids = [tree.pid("adapter").await, tree.pid("child").await];
    let stray = tree.pid("stray").await;
    tree.kill_wrapper().await;
    let (adopter, orphans) = (shared.clone(), tree.orphans());
    let report = tokio::task::spawn_blocking(move || adopter.end_orphans(orphans, options)).await.unwrap();
    assert!(report.ended && report.killed, "{report:?}");
    assert!(pids.iter().all(|pid| state(*pid).is_none()), "ended and reaped");
    assert!(state(stray).is_some_and(|state| state != 'Z'), "not proven ours, so not signalled");

    // Shared, with a record of the stray one.
    let mut orphans = tree.orphans();
    orphans.recorded.push((stray, ProcTable.stat(stray).unwrap().unwrap().start_ticks));
    let adopter = shared.clone();
    let report = tokio::task::spawn_blocking(move || adopter.end_orphans(orphans, options)).await.unwrap();
    assert!(report.ended && state(stray).is_none(), "{report:?}");

    // The only owner of children: everything goes.
    let mut tree = Tree::start(&spawner).await;
    let pids = [tree.pid("adapter").await, tree.pid("child").await, tree.pid("stray").await];
    tree.kill_wrapper().await;
    let (adopter, orphans) = (only.clone(), tree.orphans());
    let report = tokio::task::spawn_blocking(move || adopter.end_orphans(orphans, options)).await.unwrap();
    assert!(report.ended, "{report:?}");
    assert!(pids.iter().all(|pid| state(*pid).is_none()), "ended and reaped");

    // Dead orphans are reaped though nobody asked for their tree.
    let reaping = tokio::spawn({
        let adopter = shared.clone();
        async move { adopter.reap_the_dead().await }
    });
    let mut tree = Tree::start(&spawner).await;
    let pids = [tree.pid("adapter").await, tree.pid("child").await, tree.pid("stray").await];
    tree.kill_wrapper().await;
    eventually("the stray one was adopted", || {
        ProcTable.stat(pids[2]).unwrap().is_some_and(|stat| stat.parent_pid == ProcTable.own_pid())
    })
    .await;
    drop(tree);
    for pid in pids {
        eventually("dead orphans are reaped", || state(pid).is_none()).await;
    }
    reaping.abort();

    assert_eq!(bystander.wait().await.unwrap().code(), Some(42), "its exit was not stolen");
    assert!(
        kept_pids.iter().all(|pid| state(*pid).is_some_and(|state| state != 'Z')),
        "a tree with a wrapper was touched"
    );
    let handle = ProcTable.open(kept.process.identity.pid).unwrap().unwrap();
    handle.signal(Signal::TERM).unwrap();
    let evidence = holdfast_actors::process::LeaseEvidence {
        lease_id: kept.lease_id,
        instance_id: kept.instance_id,
        boot_id: ProcTable.boot_id().unwrap(),
        root_pid: kept.process.identity.pid,
        root_start_ticks: kept.process.identity.start_ticks,
        root_pidfd_inode: kept.process.identity.pidfd_inode,
        process_group_id: kept.process.identity.process_group_id,
        wrapper_path: spawner.wrapper_path().to_owned(),
        cgroup: None,
    };
    let holdfast_actors::process::Verification::Owned(tree) =
        holdfast_actors::process::verify_owned_tree(&evidence, &ProcTable)
    else {
        panic!("not owned")
    };
    let report = tokio::task::spawn_blocking(move || holdfast_actors::process::end_tree(tree, options, &ProcTable));
    assert!(report.await.unwrap().ended);
    kept.process.exit.tree_ended().await;
}
