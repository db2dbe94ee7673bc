//! The Leases actor with the real wrapper, real processes and a real file.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_actors::leases::{
    CommandEnd, CommandPlan, InstanceSource, LaunchError, LaunchPlan, LeaseLauncher, LeasedAdapter, LeasesConfig,
    LeasesHandle, LeasesPlace, LeasesSurface, ProcessExit, Spawner, StoredEnd, Verdict,
};
use holdfast_actors::ports::Ports;
use holdfast_actors::process::{Cgroups, Check, Outcome, ProcTable, ProcessTable, StoredCommand, StoredProcess};
use holdfast_actors::shown::Shown;
use holdfast_actors::supervisor::{Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};
use holdfast_protocol::ids::InstanceId;
use holdfast_stores::config::{ConfigSource, Overrides, SectionDescriptor, SectionRegistry};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::kit::OpenContext;
use holdfast_stores::leases::{LeaseChange, LeaseRecord, LeaseRoot, LeaseState, LeasesStore, NewLease};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(20);

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

/// An install root that outlives the runs on it, and whose processes are ended whatever happens.
struct Home {
    directory: tempfile::TempDir,
    instance_id: InstanceId,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        Self { directory, instance_id: uuid.trim().parse().unwrap() }
    }

    fn root(&self) -> InstallRoot {
        InstallRoot::at(self.directory.path().join("root"))
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

impl Drop for Home {
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

/// One run of a daemon, as far as leases go.
struct Run {
    supervisor: Supervisor,
    leases: LeasesHandle,
    launcher: LeaseLauncher,
    directory: std::path::PathBuf,
}

impl Run {
    async fn start(home: &Home) -> Self {
        Self::start_with(home, None).await
    }

    async fn start_with(home: &Home, cgroups: Option<Cgroups>) -> Self {
        let root = home.root();
        root.prepare().unwrap();
        std::fs::write(root.config_file(), "[leases]\nkill_grace_ms = 300\n").unwrap();
        let registry = Arc::new(SectionRegistry::new([SectionDescriptor::of::<LeasesConfig>()]).unwrap());
        let source = ConfigSource::new(&root, registry, Overrides::default());
        let config = tokio::sync::watch::Sender::new(source.load_for_start().unwrap());
        let spawner = Spawner::start(Path::new(env!("CARGO_BIN_EXE_holdfast"))).unwrap();
        let ports = Ports::system();
        let place = LeasesPlace {
            install_root: home.directory.path().to_owned(),
            wrapper_path: spawner.wrapper_path().to_owned(),
            run_started_at_ms: ports.clock.now_ms(),
            spawner: Some(spawner.clone()),
            cgroups,
        };
        let instance_id = home.instance_id;
        let instance: InstanceSource = Arc::new(move || Box::pin(async move { Ok(instance_id) }));
        let (table, shown) = (Arc::new(ProcTable), Shown::default());
        let surface =
            LeasesSurface::new(root.data_dir(), place, instance, table, None, config.subscribe(), "1", shown.clone());
        let (one, address) = child("leases", Limits::default(), &ports, surface);
        let stages: Vec<Stage> = vec![vec![Box::new(one)]];
        let spec =
            SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, _) = Supervisor::start(spec, 1, None).await.unwrap();
        let leases = LeasesHandle::new(address, shown);
        let launcher = LeaseLauncher::new(leases.clone(), spawner);
        Self { supervisor, leases, launcher, directory: home.directory.path().to_owned() }
    }

    fn plan(&self, script: &str) -> LaunchPlan {
        LaunchPlan {
            agent: "test".to_owned(),
            session_id: None,
            argv: vec!["sh".into(), "-c".into(), script.into()],
            directory: Some(self.directory.clone()),
            environment: BTreeMap::new(),
            kill_grace: Duration::from_millis(300),
        }
    }

    async fn launch(&self, script: &str) -> LeasedAdapter {
        self.launcher.launch(self.plan(script)).await.unwrap()
    }

    async fn shown(&self, adapter: &LeasedAdapter) -> LeaseRecord {
        self.leases.show(adapter.lease_id).await.unwrap().unwrap()
    }

    async fn eventually_over(&self, adapter: &LeasedAdapter) -> LeaseRecord {
        let deadline = Instant::now() + LIMIT;
        loop {
            let record = self.shown(adapter).await;
            if record.state.is_over() {
                return record;
            }
            assert!(Instant::now() < deadline, "the lease is still {record:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Wrapper, adapter, child, and a grandchild in a session of its own; nothing heeds TERM.
const STUBBORN: &str = "trap '' TERM; echo $$ > adapter
    sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 1000; done' &
    (setsid env -i /bin/sh -c 'trap \"\" TERM; echo $$ > stray; while :; do /bin/sleep 1000; done' &)
    while :; do sleep 1000; done";

async fn stubborn_pids(home: &Home) -> [i32; 3] {
    [home.pid("adapter").await, home.pid("child").await, home.pid("stray").await]
}

#[tokio::test]
async fn closing_a_lease_ends_the_whole_tree_and_records_how() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let adapter = run.launch(STUBBORN).await;
    let pids = stubborn_pids(&home).await;
    let record = run.shown(&adapter).await;
    assert_eq!(record.state, LeaseState::Open);
    let root = record.root.unwrap();
    assert_eq!((root.pid, root.process_group_id), (i64::from(adapter.process.identity.pid), Some(root.pid)));
    let (one, two) = tokio::join!(run.leases.close(adapter.lease_id, None), run.leases.close(adapter.lease_id, None));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one, two, "both who asked are told");
    assert_eq!((one.state, one.exit.exit_signal), (LeaseState::Closed, Some(libc::SIGKILL)));
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    run.supervisor.stop().await;
}

#[tokio::test]
async fn an_adapter_that_ends_by_itself_closes_its_lease_also_across_a_reload() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let adapter = run.launch("read line; exit 7").await;
    run.supervisor.reload(2).await.unwrap();
    assert_eq!(run.shown(&adapter).await.state, LeaseState::Open, "a reload leaves adapters alone");
    let lease_id = adapter.lease_id;
    let mut exit = adapter.process.exit.clone();
    drop(adapter.process.stdin);
    exit.tree_ended().await;
    let deadline = Instant::now() + LIMIT;
    let record = loop {
        let record = run.leases.show(lease_id).await.unwrap().unwrap();
        if record.state.is_over() || Instant::now() > deadline {
            break record;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((record.state, record.exit.exit_code), (LeaseState::Closed, Some(7)));
    run.supervisor.stop().await;
}

#[tokio::test]
async fn an_adapter_that_can_not_be_started_closes_its_lease_with_the_reason() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let plan = LaunchPlan { argv: vec!["no-such-adapter-here".into()], ..run.plan("") };
    let error = run.launcher.launch(plan).await.unwrap_err();
    assert!(error.to_string().contains("no-such-adapter-here"), "{error}");
    let empty = LaunchPlan { argv: Vec::new(), ..run.plan("") };
    assert!(matches!(run.launcher.launch(empty).await, Err(LaunchError::NoCommand { .. })));
    let leases = run.leases.list(Default::default(), None, 10).await.unwrap().leases;
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0].state, LeaseState::Closed);
    assert!(leases[0].last_error.as_deref().unwrap().contains("no-such-adapter-here"));
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_launch_nobody_waits_for_any_more_leaves_neither_process_nor_lease() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let launcher = run.launcher.clone();
    let plan = run.plan("echo $$ > adapter; while :; do sleep 1000; done");
    let launch = tokio::spawn(async move { launcher.launch(plan).await.map(drop) });
    let adapter = home.pid("adapter").await;
    launch.abort();
    if launch.await.is_err() {
        eventually("the adapter was ended", || !is_alive(adapter)).await;
        let deadline = Instant::now() + LIMIT;
        while run.leases.status().await.unwrap().unfinished > 0 {
            assert!(Instant::now() < deadline, "the lease stays open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    run.leases.close_all().await.unwrap();
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_stop_closes_all_and_the_next_run_finds_nothing() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let adapters = [run.launch(STUBBORN).await, run.launch("while :; do sleep 1000; done").await];
    let pids = stubborn_pids(&home).await;
    assert_eq!(run.leases.close_all().await.unwrap(), 0);
    assert!(pids.iter().chain([&adapters[1].process.adapter_pid]).all(|pid| !is_alive(*pid)));
    run.supervisor.stop().await;

    let run = Run::start(&home).await;
    assert_eq!(run.leases.reap_startup_orphans().await.unwrap(), Default::default());
    for adapter in &adapters {
        assert_eq!(run.shown(adapter).await.state, LeaseState::Closed);
    }
    run.supervisor.stop().await;
}

#[tokio::test]
async fn the_next_run_ends_what_an_earlier_one_left_running() {
    let home = Home::new();
    let earlier = Run::start(&home).await;
    let adapter = earlier.launch(STUBBORN).await;
    let pids = stubborn_pids(&home).await;
    // The actor goes without closing anything; the wrapper stays, since its parent, this process, does.
    earlier.supervisor.stop().await;
    let run = Run::start(&home).await;
    run.leases.reap_startup_orphans().await.unwrap();
    let record = run.eventually_over(&adapter).await;
    assert_eq!(record.state, LeaseState::Closed, "{record:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_killed_wrapper_without_an_adopter_is_reported_with_what_it_left() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let adapter = run.launch("trap '' TERM; echo $$ > adapter; while :; do sleep 1000; done").await;
    let left = home.pid("adapter").await;
    ProcTable.open(adapter.process.identity.pid).unwrap().unwrap().signal(Signal::KILL).unwrap();
    let deadline = Instant::now() + LIMIT;
    while run.leases.status().await.unwrap().warnings.is_empty() {
        assert!(Instant::now() < deadline, "nothing is reported");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = run.leases.status().await.unwrap();
    assert!(status.warnings[0].1.contains(&left.to_string()), "{status:?}");
    assert!(is_alive(left), "an orphan without its wrapper is not verified, so not signalled");
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_stored_pid_that_belongs_to_a_stranger_is_never_signalled() {
    let home = Home::new();
    let directory = home.directory.path();
    // The stranger leads its own group and writes down every signal it gets.
    let script = "for name in TERM INT HUP QUIT; do trap \"echo $name >> log\" $name; done
        echo $$ > stranger; while :; do sleep 0.05; done";
    let mut stranger =
        std::process::Command::new("setsid").args(["sh", "-c", script]).current_dir(directory).spawn().unwrap();
    let pid = i64::from(home.pid("stranger").await);
    let stat = ProcTable.stat(i32::try_from(pid).unwrap()).unwrap().unwrap();
    let own = i64::from(ProcTable.own_pid());
    let as_stranger = LeaseRoot { pid, start_ticks: stat.start_ticks, pidfd_ino: None, process_group_id: Some(pid) };
    let roots = [
        // Everything but the wrapper itself is true of it.
        as_stranger,
        LeaseRoot { start_ticks: stat.start_ticks + 1, ..as_stranger },
        LeaseRoot { process_group_id: Some(pid), pid: own, ..as_stranger },
        LeaseRoot { pid: 1, ..as_stranger },
        LeaseRoot { pid: 0, process_group_id: Some(0), ..as_stranger },
        LeaseRoot { pid: -1, process_group_id: Some(-1), ..as_stranger },
        LeaseRoot { pid: -pid, process_group_id: Some(-pid), ..as_stranger },
        LeaseRoot { pid: i64::MAX, ..as_stranger },
    ];
    let root = home.root();
    root.prepare().unwrap();
    let context = OpenContext { app_version: "1", now_ms: 1_000 };
    let (mut store, _) = LeasesStore::open(&root.data_dir(), context).await.unwrap();
    let ids = Ports::system().ids;
    let mut leases = Vec::new();
    for root in roots {
        let lease_id = holdfast_protocol::ids::LeaseId(ids.uuid_v7());
        let new = NewLease {
            lease_id,
            instance_id: home.instance_id,
            session_id: None,
            agent: "test".to_owned(),
            wrapper_root: directory.to_owned(),
            wrapper_path: env!("CARGO_BIN_EXE_holdfast").into(),
            command_hash: [0; 32],
            boot_id: ProcTable.boot_id().unwrap(),
            cgroup_path: None,
        };
        let changes = [LeaseChange::Insert(new), LeaseChange::Open { lease_id, root, in_cgroup: false }];
        for answer in store.lease_change(&changes, 1_000).await.answers {
            answer.unwrap().unwrap();
        }
        leases.push(lease_id);
    }
    store.close().await.unwrap();

    let run = Run::start(&home).await;
    run.leases.reap_startup_orphans().await.unwrap();
    for (lease_id, root) in leases.into_iter().zip(roots) {
        let record = run.leases.show(lease_id).await.unwrap().unwrap();
        assert_eq!(record.state, LeaseState::Lost, "{root:?}");
    }
    assert!(is_alive(i32::try_from(pid).unwrap()));
    assert!(!directory.join("log").exists(), "the stranger was signalled");
    run.supervisor.stop().await;
    let handle = ProcTable.open(i32::try_from(pid).unwrap()).unwrap().unwrap();
    handle.signal(Signal::KILL).unwrap();
    stranger.wait().unwrap();
}

/// Returns where trees get cgroups of their own, or says why this machine has no such place.
fn cgroups() -> Option<Cgroups> {
    Cgroups::find().inspect_err(|error| println!("skipped, as trees get no cgroup of their own here: {error}")).ok()
}

#[tokio::test]
async fn a_cgroup_holds_the_whole_tree_and_goes_with_it() {
    let Some(cgroups) = cgroups() else { return };
    let home = Home::new();
    let run = Run::start_with(&home, Some(cgroups.clone())).await;
    let adapter = run.launch(STUBBORN).await;
    let pids = stubborn_pids(&home).await;
    let record = run.shown(&adapter).await;
    let leaf = cgroups.leaf(adapter.lease_id);
    assert_eq!(record.cgroup_path.as_ref(), Some(&leaf));
    let members = ProcTable.cgroup_members(&leaf).unwrap().unwrap();
    assert!(pids.iter().all(|pid| members.contains(pid)), "{members:?} lacks one of {pids:?}");
    let (_, inspection) = run.leases.verify(adapter.lease_id).await.unwrap();
    assert_eq!(inspection.verdict, Verdict::Owned);
    let cgroup = inspection.findings.iter().find(|finding| finding.check == Check::Cgroup).unwrap();
    assert_eq!(cgroup.outcome, Outcome::Passed { found: leaf.display().to_string() });
    assert_eq!(run.leases.close(adapter.lease_id, None).await.unwrap().state, LeaseState::Closed);
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    eventually("the cgroup was removed", || !leaf.exists()).await;
    run.supervisor.stop().await;
    cgroups.tidy();
}

#[tokio::test]
async fn what_a_killed_wrapper_left_in_its_cgroup_is_ended_without_any_adopter() {
    let Some(cgroups) = cgroups() else { return };
    let home = Home::new();
    let run = Run::start_with(&home, Some(cgroups.clone())).await;
    let adapter = run.launch(STUBBORN).await;
    let pids = stubborn_pids(&home).await;
    ProcTable.open(adapter.process.identity.pid).unwrap().unwrap().signal(Signal::KILL).unwrap();
    let record = run.eventually_over(&adapter).await;
    assert_eq!(record.state, LeaseState::Closed, "{record:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    eventually("the cgroup was removed", || !cgroups.leaf(adapter.lease_id).exists()).await;
    run.supervisor.stop().await;
    cgroups.tidy();
}

#[tokio::test]
async fn a_start_ends_what_daemon_and_wrapper_left_in_a_cgroup_and_removes_dead_ones() {
    let Some(cgroups) = cgroups() else { return };
    let home = Home::new();
    let earlier = Run::start_with(&home, Some(cgroups.clone())).await;
    let adapter = earlier.launch(STUBBORN).await;
    let over = earlier.launch("exit 0").await;
    earlier.eventually_over(&over).await;
    let pids = stubborn_pids(&home).await;
    // The actor is gone, so nobody sees the wrapper die.
    earlier.supervisor.stop().await;
    ProcTable.open(adapter.process.identity.pid).unwrap().unwrap().signal(Signal::KILL).unwrap();
    eventually("the wrapper is gone", || !is_alive(adapter.process.identity.pid)).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    // An empty one that was left, one of a lease we do not know, and one that is no lease's.
    let dead = cgroups.leaf(over.lease_id);
    eventually("the first was removed", || !dead.exists()).await;
    std::fs::create_dir(&dead).unwrap();
    let strange = dead.with_file_name(Ports::system().ids.uuid_v7().to_string());
    std::fs::create_dir(&strange).unwrap();
    let run = Run::start_with(&home, Some(cgroups.clone())).await;
    run.leases.reap_startup_orphans().await.unwrap();
    let record = run.eventually_over(&adapter).await;
    assert_eq!(record.state, LeaseState::Closed, "{record:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    eventually("dead cgroups are removed", || !dead.exists() && !cgroups.leaf(adapter.lease_id).exists()).await;
    assert!(strange.exists(), "another install's was touched");
    std::fs::remove_dir(&strange).unwrap();
    run.supervisor.stop().await;
    cgroups.tidy();
}

impl Run {
    fn command(&self, script: &str) -> CommandPlan {
        CommandPlan { launch: self.plan(script), input: Vec::new(), output_max_bytes: 1_000, time_limit: LIMIT }
    }
}

#[tokio::test]
async fn a_command_is_run_to_its_end_and_tells_what_it_said() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let plan = CommandPlan { input: b"hello".to_vec(), ..run.command("cat; echo oh >&2; exit 3") };
    let outcome = run.launcher.run(plan, std::future::pending()).await.unwrap();
    assert_eq!(outcome.end, CommandEnd::Exited(ProcessExit { exit_code: Some(3), exit_signal: None }));
    assert_eq!((outcome.stdout.to_text().as_str(), outcome.stderr.to_text().as_str()), ("hello", "oh\n"));
    // More output than is kept, input that nobody reads, and a grandchild that holds the pipe.
    let script = "head -c 300000 /dev/zero | tr '\\0' x; echo END; sleep 1000 & exit 0";
    let plan = CommandPlan { input: vec![b'i'; 300_000], ..run.command(script) };
    let outcome = run.launcher.run(plan, std::future::pending()).await.unwrap();
    assert_eq!(outcome.stdout.total_bytes, 300_004);
    assert_eq!((outcome.stdout.head.len(), outcome.stdout.tail.len()), (500, 500));
    assert!(outcome.stdout.to_text().ends_with("xEND\n"));
    let refused = run
        .launcher
        .run(
            CommandPlan { launch: LaunchPlan { argv: vec!["/no/such".into()], ..run.plan("") }, ..run.command("") },
            std::future::pending(),
        )
        .await;
    assert!(matches!(refused, Err(LaunchError::Spawn(_))));
    let deadline = Instant::now() + LIMIT;
    while run.leases.status().await.unwrap().unfinished > 0 {
        assert!(Instant::now() < deadline, "a lease stays open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_or_is_cancelled_or_forgotten_is_ended_whole() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let plan =
        CommandPlan { time_limit: Duration::from_millis(300), ..run.command(&format!("echo begun; {STUBBORN}")) };
    let outcome = run.launcher.run(plan, std::future::pending()).await.unwrap();
    assert_eq!(outcome.end, CommandEnd::TimedOut);
    assert_eq!(outcome.stdout.to_text(), "begun\n");
    let ended = run.leases.show(outcome.lease_id).await.unwrap().unwrap();
    assert_eq!(ended.state, LeaseState::Closed);

    let (cancel, cancelled) = tokio::sync::oneshot::channel::<()>();
    let running = home.directory.path().join("running");
    let script = "echo $$ > running; while :; do sleep 1000; done";
    let launcher = run.launcher.clone();
    let plan = run.command(script);
    let task = tokio::spawn(async move { launcher.run(plan, async { drop(cancelled.await) }).await });
    let pid = home.pid("running").await;
    cancel.send(()).unwrap();
    assert_eq!(task.await.unwrap().unwrap().end, CommandEnd::Cancelled);
    assert!(!is_alive(pid));

    std::fs::remove_file(&running).unwrap();
    let (launcher, plan) = (run.launcher.clone(), run.command(script));
    let task = tokio::spawn(async move { launcher.run(plan, std::future::pending()).await });
    let pid = home.pid("running").await;
    task.abort();
    eventually("the forgotten command was ended", || !is_alive(pid)).await;
    run.leases.close_all().await.unwrap();
    run.supervisor.stop().await;
}

#[tokio::test]
async fn a_row_without_a_lease_earns_a_signal_only_by_its_exact_command() {
    let home = Home::new();
    let run = Run::start(&home).await;
    let script = home.directory.path().join("an agent.sh");
    std::fs::write(&script, "echo $$ > agent; sh -c 'echo $$ > child; exec sleep 1000' & while :; do sleep 1000; done")
        .unwrap();
    // It belongs to nobody's lease: an earlier program started it and is gone.
    let mut agent =
        std::process::Command::new("sh").arg(&script).arg("--acp").current_dir(home.directory.path()).spawn().unwrap();
    let (pid, child) = (home.pid("agent").await, home.pid("child").await);
    let line = |argument: &str| Some(StoredCommand::Line(format!("sh '{}' {argument}", script.display())));
    let row = StoredProcess { pid: i64::from(pid), process_group_id: None, command: line("--acp"), wrapper_root: None };
    let elsewhere = Some(std::path::PathBuf::from("/opt/elsewhere"));
    let unproven = [
        StoredProcess { command: None, ..row.clone() },
        StoredProcess { command: line("--other"), ..row.clone() },
        StoredProcess { wrapper_root: elsewhere, ..row.clone() },
        StoredProcess { pid: i64::from(child), ..row.clone() },
    ];
    for row in unproven {
        let end = run.leases.end_stored(row.clone()).await.unwrap();
        assert!(matches!(end, StoredEnd::LeftAlone { .. }), "{row:?}: {end:?}");
        assert!(is_alive(pid) && is_alive(child), "{row:?}");
    }
    let row = StoredProcess { wrapper_root: Some(home.directory.path().to_owned()), ..row };
    let reaper = std::thread::spawn(move || agent.wait());
    let end = run.leases.end_stored(row.clone()).await.unwrap();
    assert!(matches!(end, StoredEnd::Ended { .. }), "{end:?}");
    reaper.join().unwrap().unwrap();
    assert!(!is_alive(pid) && !is_alive(child));
    assert_eq!(run.leases.end_stored(row).await.unwrap(), StoredEnd::Gone);
    run.supervisor.stop().await;
}
