//! Leases in a supervisor, with a real file and a simulated process table.

use holdfast_protocol::error::ErrorKind;
use std::sync::Arc;

use holdfast_protocol::ids::LeaseId;
use holdfast_stores::config::{ConfigSource, Overrides, SectionDescriptor, SectionRegistry};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::leases::{LeaseChange, LeaseFilter, LeaseRecord, LeaseRoot, LeaseState, NewLease};
use uuid::Uuid;

use super::*;
use crate::ports::Ports;
use crate::process::ProcessStat;
use crate::process::tests::simulated::{Process, Question, SimulatedTable, World};
use crate::supervisor::{Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};

const WRAPPER: &str = "/opt/holdfast/bin/holdfast";
const DAEMON: i32 = 400;
/// 2020: whatever this run makes is younger, and what a test puts before it is older.
const RUN_STARTED_MS: i64 = 1_577_836_800_000;

fn instance() -> InstanceId {
    InstanceId(Uuid::from_u128(0xb))
}

fn lease(number: u128) -> LeaseId {
    LeaseId(Uuid::from_u128(number))
}

fn process(pid: i32, parent_pid: i32, group: i32, inode: u64) -> Process {
    let start_ticks = u64::from(pid.unsigned_abs()) + 1_000;
    Process {
        stat: ProcessStat { pid, state: 'S', parent_pid, process_group_id: group, session_id: group, start_ticks },
        environment: Vec::new(),
        executable: "/usr/bin/node".into(),
        command_line: vec!["node".into(), "/opt/agents/adapter.js".into()],
        inode,
        ignores: Vec::new(),
    }
}

/// A wrapper whose daemon has died, with one adapter that heeds TERM.
fn tree(world: &mut World, lease_id: LeaseId, pid: i32) {
    let mut wrapper = process(pid, 1, pid, 9_000 + u64::from(pid.unsigned_abs()));
    wrapper.environment = format!("HOLDFAST_LEASE_ID={lease_id}\0HOLDFAST_INSTANCE_ID={}\0", instance()).into_bytes();
    wrapper.executable = WRAPPER.into();
    world.processes.push(wrapper);
    world.processes.push(process(pid + 1, pid, pid, 9_001 + u64::from(pid.unsigned_abs())));
}

fn root_of(pid: i64) -> LeaseRoot {
    LeaseRoot {
        pid,
        start_ticks: pid.unsigned_abs() + 1_000,
        pidfd_ino: Some(9_000 + pid.unsigned_abs()),
        process_group_id: Some(pid),
    }
}

fn world() -> World {
    World {
        boot_id: "this-boot".to_owned(),
        own_pid: DAEMON,
        processes: vec![process(1, 0, 1, 1), process(DAEMON, 1, DAEMON, 2), process(450, 1, 450, 3)],
        inodes: true,
        ..World::default()
    }
}

/// A file with leases that an earlier run left open: id, what it recorded, and when.
async fn left_open(home: &tempfile::TempDir, leases: &[(LeaseId, Option<LeaseRoot>, InstanceId)]) {
    let now_ms = RUN_STARTED_MS - 60_000;
    let context = OpenContext { app_version: "1", now_ms };
    let data_dir = InstallRoot::at(home.path().join("root")).data_dir();
    let (mut store, _) = LeasesStore::open(&data_dir, context).await.unwrap();
    for (lease_id, root, instance_id) in leases {
        let new = NewLease {
            lease_id: *lease_id,
            instance_id: *instance_id,
            session_id: None,
            agent: "claude".to_owned(),
            wrapper_root: home.path().to_owned(),
            wrapper_path: WRAPPER.into(),
            command_hash: [1; 32],
            boot_id: "this-boot".to_owned(),
            cgroup_path: None,
        };
        let mut changes = vec![LeaseChange::Insert(new)];
        changes.extend(root.map(|root| LeaseChange::Open { lease_id: *lease_id, root, in_cgroup: true }));
        for answer in store.lease_change(&changes, now_ms).await.answers {
            answer.unwrap().unwrap();
        }
    }
    store.close().await.unwrap();
}

struct Rig {
    supervisor: Supervisor,
    leases: LeasesHandle,
    table: SimulatedTable,
    // Last, so that the files go after the actor.
    _home: tempfile::TempDir,
}

impl Rig {
    async fn start(home: tempfile::TempDir, world: World) -> Self {
        let root = InstallRoot::at(home.path().join("root"));
        root.prepare().unwrap();
        std::fs::write(root.config_file(), "[leases]\nkill_grace_ms = 20\nmax_processes = 3\n").unwrap();
        let registry = Arc::new(SectionRegistry::new([SectionDescriptor::of::<LeasesConfig>()]).unwrap());
        let source = ConfigSource::new(&root, registry, Overrides::default());
        let config = watch::Sender::new(source.load_for_start().unwrap());
        let table = SimulatedTable::new(world);
        let place = LeasesPlace {
            install_root: home.path().to_owned(),
            wrapper_path: WRAPPER.into(),
            run_started_at_ms: RUN_STARTED_MS,
            spawner: None,
            cgroups: None,
        };
        let known: InstanceSource = Arc::new(|| Box::pin(async { Ok(instance()) }));
        let (seen, shown) = (Arc::new(table.clone()), Shown::default());
        let (data_dir, config) = (root.data_dir(), config.subscribe());
        let surface = LeasesSurface::new(data_dir, place, known, seen, None, config, "1", shown.clone());
        let (one, address) = child("leases", Limits::default(), &Ports::system(), surface);
        let stages: Vec<Stage> = vec![vec![Box::new(one)]];
        let spec =
            SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, _) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, leases: LeasesHandle::new(address, shown), table, _home: home }
    }

    async fn shown(&self, lease_id: LeaseId) -> LeaseRecord {
        self.leases.show(lease_id).await.unwrap().unwrap()
    }

    fn open_lease() -> OpenLease {
        OpenLease { session_id: None, agent: "claude".to_owned(), command_hash: [2; 32] }
    }
}

#[tokio::test]
async fn a_start_looks_after_what_earlier_runs_left_open_and_signals_only_what_is_verified() {
    let home = tempfile::tempdir().unwrap();
    let mut world = world();
    // 1: alive and ours. 2: pid passed to a stranger. 3 to 6: damaged numbers. 7: never spawned. 8: gone. 9: another
    // install's. 10: the group of someone else.
    tree(&mut world, lease(1), 500);
    world.processes.push(process(600, 1, 600, 77));
    tree(&mut world, lease(9), 900);
    tree(&mut world, lease(10), 1_000);
    let stranger_group = LeaseRoot { process_group_id: Some(450), ..root_of(1_000) };
    let others = InstanceId(Uuid::from_u128(0xc));
    let leases = [
        (lease(1), Some(root_of(500)), instance()),
        (lease(2), Some(root_of(600)), instance()),
        (lease(3), Some(root_of(1)), instance()),
        (lease(4), Some(root_of(0)), instance()),
        (lease(5), Some(root_of(-1)), instance()),
        (lease(6), Some(root_of(i64::from(DAEMON))), instance()),
        (lease(7), None, instance()),
        (lease(8), Some(root_of(800)), instance()),
        (lease(9), Some(root_of(900)), others),
        (lease(10), Some(stranger_group), instance()),
    ];
    left_open(&home, &leases).await;
    let rig = Rig::start(home, world).await;
    rig.leases.reap_startup_orphans().await.unwrap();
    let expected = [
        (1, LeaseState::Closed, ""),
        (2, LeaseState::Lost, "another process"),
        (3, LeaseState::Lost, "damaged"),
        (4, LeaseState::Lost, "damaged"),
        (5, LeaseState::Lost, "damaged"),
        (6, LeaseState::Lost, "damaged"),
        (7, LeaseState::Lost, "gone already"),
        (8, LeaseState::Lost, "gone already"),
        (9, LeaseState::Open, ""),
        (10, LeaseState::Lost, "damaged"),
    ];
    for (number, state, note) in expected {
        let record = rig.shown(lease(number)).await;
        assert_eq!(record.state, state, "lease {number}: {record:?}");
        assert!(record.last_error.unwrap_or_default().contains(note), "lease {number}");
    }
    let world = rig.table.world();
    assert!(world.sent.iter().all(|(inode, _)| [9_500, 9_501].contains(inode)), "{:?}", world.sent);
    assert!(!world.sent.is_empty());
    let left: Vec<i32> = world.processes.iter().map(|process| process.stat.pid).collect();
    assert_eq!(left, [1, DAEMON, 450, 600, 900, 901, 1_000, 1_001]);
}

#[tokio::test]
async fn what_can_not_be_verified_is_kept_and_shown_and_ended_once_it_can() {
    let home = tempfile::tempdir().unwrap();
    let mut world = world();
    tree(&mut world, lease(1), 500);
    world.denied.insert(Question::List);
    left_open(&home, &[(lease(1), Some(root_of(500)), instance())]).await;
    let rig = Rig::start(home, world).await;
    rig.leases.reap_startup_orphans().await.unwrap();
    assert_eq!(rig.shown(lease(1)).await.state, LeaseState::Open);
    let status = rig.leases.status().await.unwrap();
    assert_eq!(status.warnings.len(), 1, "{status:?}");
    assert!(rig.table.world().sent.is_empty());

    let refused = rig.leases.close(lease(1), None).await.unwrap_err();
    assert!(matches!(refused, LeasesError::Unverifiable { .. }), "{refused:?}");
    assert_eq!(rig.shown(lease(1)).await.state, LeaseState::Closing);
    assert_eq!(rig.leases.close_all().await.unwrap(), 1, "one is not over");
    assert!(rig.table.world().sent.is_empty());

    rig.table.world().denied.clear();
    assert_eq!(rig.leases.close(lease(1), None).await.unwrap().state, LeaseState::Closed);
    assert_eq!(rig.leases.status().await.unwrap(), LeasesStatus::default());
    assert!(rig.table.world().find(500).is_none());
    // Closing again is no error and does nothing.
    let sent = rig.table.world().sent.len();
    assert_eq!(rig.leases.close(lease(1), None).await.unwrap().state, LeaseState::Closed);
    assert_eq!(rig.table.world().sent.len(), sent);
}

#[tokio::test]
async fn a_reload_leaves_the_leases_of_this_run_alone() {
    let rig = Rig::start(tempfile::tempdir().unwrap(), world()).await;
    let made = rig.leases.open(Rig::open_lease()).await.unwrap();
    assert_eq!((made.state, made.root), (LeaseState::Starting, None));
    assert_eq!((made.boot_id.as_str(), made.instance_id), ("this-boot", instance()));
    rig.supervisor.reload(2).await.unwrap();
    let report = rig.leases.reap_startup_orphans().await.unwrap();
    assert_eq!(report, ReapReport::default());
    assert_eq!(rig.shown(made.lease_id).await.state, LeaseState::Starting);
}

#[tokio::test]
async fn past_the_bound_on_processes_the_caller_is_told_and_an_ended_lease_makes_room() {
    let rig = Rig::start(tempfile::tempdir().unwrap(), world()).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(rig.leases.open(Rig::open_lease()).await.unwrap().lease_id);
    }
    let refused = rig.leases.open(Rig::open_lease()).await.unwrap_err();
    assert!(matches!(refused, LeasesError::TooMany { running: 3, limit: 3, bound: Bound::All }), "{refused:?}");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let failed = rig.leases.failed(made[0], "no such program".to_owned()).await.unwrap();
    assert_eq!((failed.state, failed.last_error.as_deref()), (LeaseState::Closed, Some("no such program")));
    rig.leases.open(Rig::open_lease()).await.unwrap();
    let lost = rig.leases.mark_lost(made[1], "given up".to_owned()).await.unwrap();
    assert_eq!(lost.state, LeaseState::Lost);
    let twice = rig.leases.mark_lost(made[1], "again".to_owned()).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Conflict);
    assert_eq!(rig.leases.close(lease(99), None).await.unwrap_err().kind(), ErrorKind::NotFound);
    let all = rig.leases.list(LeaseFilter::default(), None, 10).await.unwrap();
    assert_eq!(all.leases.len(), 4);
    assert_eq!(rig.leases.close_all().await.unwrap(), 0);
    let unfinished = LeaseFilter { unfinished: true, ..LeaseFilter::default() };
    assert!(rig.leases.list(unfinished, None, 10).await.unwrap().leases.is_empty());
}

#[tokio::test]
async fn old_leases_that_are_over_are_removed_at_start() {
    let home = tempfile::tempdir().unwrap();
    left_open(&home, &[(lease(1), None, instance())]).await;
    let data_dir = InstallRoot::at(home.path().join("root")).data_dir();
    let context = OpenContext { app_version: "1", now_ms: RUN_STARTED_MS };
    let (mut store, _) = LeasesStore::open(&data_dir, context).await.unwrap();
    let change = LeaseChange::Move { lease_id: lease(1), state: LeaseState::Closed, exit: None, error: None };
    store.lease_change(&[change], RUN_STARTED_MS).await.answers.remove(0).unwrap().unwrap();
    store.close().await.unwrap();

    let rig = Rig::start(home, world()).await;
    // The start's own reaping was first, and has removed it.
    rig.leases.reap_startup_orphans().await.unwrap();
    assert_eq!(rig.leases.show(lease(1)).await.unwrap(), None);
}
