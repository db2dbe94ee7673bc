//! A root with surfaces that only keep a journal: order, reload, refusals, ends, failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::instance_lock::{InstanceLock, LockError};
use ractor::{ActorCell, ActorId};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::address::{Address, Down};
use crate::reply::Reply;
use crate::supervisor::{Child, Limits, child};
use crate::surface::{Context, Fault, Surface};

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct TestConfig {
    revision: u64,
    port: u16,
}

/// What a test may change while its root runs.
struct World {
    journal: mpsc::UnboundedSender<String>,
    file: watch::Sender<Result<TestConfig, WireError>>,
    _file_read: watch::Receiver<Result<TestConfig, WireError>>,
    loads: AtomicU64,
    /// A load takes a permit; a test that takes them all holds reloads back.
    gate: Semaphore,
    panic_in_load: std::sync::atomic::AtomicBool,
    supervisor: watch::Sender<Option<ActorCell>>,
}

struct Probe {
    name: &'static str,
    world: Arc<World>,
    config: watch::Receiver<TestConfig>,
}

enum ProbeMessage {
    Revision { reply: Reply<u64> },
    Hang,
}

impl Surface for Probe {
    type Message = ProbeMessage;
    type State = u64;

    async fn start(&self, _: &Context<ProbeMessage>) -> Result<u64, Down> {
        self.world.journal.send(format!("start {}", self.name)).unwrap();
        Ok(self.config.borrow().revision)
    }

    async fn handle(&self, _: &Context<ProbeMessage>, message: ProbeMessage, state: &mut u64) -> Result<(), Fault> {
        match message {
            ProbeMessage::Revision { reply } => reply.send(*state),
            ProbeMessage::Hang => std::future::pending().await,
        }
        Ok(())
    }

    async fn stop(&self, _: &Context<ProbeMessage>, _: u64) {
        self.world.journal.send(format!("stop {}", self.name)).unwrap();
    }
}

/// A child that tells who supervises it.
struct Spy {
    inner: Box<dyn Child>,
    world: Arc<World>,
}

impl Child for Spy {
    fn observed(&self) -> Observed {
        self.inner.observed()
    }
    fn incarnation(&self) -> Option<ActorId> {
        self.inner.incarnation()
    }
    fn start(&mut self, supervisor: ActorCell, generation: u64) -> BoxFuture<'_, Result<(), Down>> {
        self.world.supervisor.send_replace(Some(supervisor.clone()));
        self.inner.start(supervisor, generation)
    }
    fn end(&mut self, for_good: bool) -> BoxFuture<'_, ()> {
        self.inner.end(for_good)
    }
    fn died(&mut self) {
        self.inner.died();
    }
    fn mark_down(&mut self, down: Down) {
        self.inner.mark_down(down);
    }
}

struct TestBuilder(Arc<World>);

#[derive(Clone)]
struct TestHandles {
    first: Address<ProbeMessage>,
    live: Address<ProbeMessage>,
}

impl TreeBuilder for TestBuilder {
    type Config = TestConfig;
    type Handles = TestHandles;

    async fn load(&self, _: LoadPurpose) -> Result<TestConfig, WireError> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        let _permit = self.0.gate.acquire().await.unwrap();
        assert!(!self.0.panic_in_load.load(Ordering::SeqCst), "as asked");
        self.0.file.borrow().clone()
    }

    fn revision(&self, config: &TestConfig) -> String {
        format!("r{}", config.revision)
    }

    async fn configure_upper(&self, _: &TestHandles, config: &TestConfig) {
        self.0.journal.send(format!("configure {}", config.revision)).unwrap();
    }

    fn build(&self, context: &BuildContext<TestConfig>) -> Built<TestHandles> {
        let probe = |name| {
            let surface = Probe { name, world: Arc::clone(&self.0), config: context.config.clone() };
            child(name, Limits::default(), &context.ports, surface)
        };
        let (log, _) = probe("log");
        let (first, first_address) = probe("first");
        let (second, _) = probe("second");
        let (live, live_address) = probe("turns");
        let spy = Spy { inner: Box::new(second), world: Arc::clone(&self.0) };
        Built {
            log: vec![vec![Box::new(log)]],
            tree: vec![vec![Box::new(first)], vec![Box::new(spy)]],
            live: vec![vec![Box::new(live)]],
            handles: TestHandles { first: first_address, live: live_address },
        }
    }
}

/// Binds port 1 never, port 0 and others always.
struct TestListener {
    world: Arc<World>,
    bound: Option<u16>,
    prepared: Option<u16>,
}

impl TestListener {
    fn note(&self, what: &str) {
        self.world.journal.send(format!("listener {what}")).unwrap();
    }
}

impl Listener<TestConfig> for TestListener {
    fn name(&self) -> &'static str {
        "socket"
    }
    fn prepare<'a>(&'a mut self, config: &'a TestConfig) -> BoxFuture<'a, Result<(), WireError>> {
        Box::pin(async move {
            self.note("prepare");
            if config.port == 1 {
                return Err(WireError::new(ErrorKind::Denied, "port 1 is taken").with_remedy("choose another"));
            }
            self.prepared = Some(config.port);
            Ok(())
        })
    }
    fn commit(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.note("commit");
            self.bound = self.prepared.take();
        })
    }
    fn abort(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.note("abort");
            self.prepared = None;
        })
    }
    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.note("stop") })
    }
    fn status(&self) -> ListenerStatus {
        ListenerStatus { name: "socket", address: self.bound.map(|port| port.to_string()), failed: None }
    }
}

struct Rig {
    world: Arc<World>,
    journal: mpsc::UnboundedReceiver<String>,
    install_root: InstallRoot,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let install_root = InstallRoot::at(directory.path());
        install_root.prepare().unwrap();
        let (sender, journal) = mpsc::unbounded_channel();
        let (file, file_read) = watch::channel(Ok(TestConfig { revision: 1, port: 100 }));
        let world = Arc::new(World {
            journal: sender,
            file,
            _file_read: file_read,
            loads: AtomicU64::new(0),
            gate: Semaphore::new(1),
            panic_in_load: false.into(),
            supervisor: watch::Sender::new(None),
        });
        Self { world, journal, install_root, _directory: directory }
    }

    fn lock(&self) -> Result<InstanceLock, LockError> {
        InstanceLock::acquire(&self.install_root, 0, "test")
    }

    async fn start(&self) -> Result<RootHandle<TestBuilder>, RootError> {
        let world = Arc::clone(&self.world);
        Root::start(RootSpec {
            lock: self.lock().unwrap(),
            ports: Ports::system(),
            builder: TestBuilder(Arc::clone(&self.world)),
            listeners: Box::new(|_grown| vec![Box::new(TestListener { world, bound: None, prepared: None })]),
        })
        .await
    }

    fn write(&self, revision: u64, port: u16) {
        self.world.file.send(Ok(TestConfig { revision, port })).unwrap();
    }

    fn journal(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.journal.try_recv().ok()).collect()
    }
}

async fn revision_of(address: &Address<ProbeMessage>) -> u64 {
    address.call(LIMIT, |reply| ProbeMessage::Revision { reply }).await.unwrap()
}

const STARTED: [&str; 6] =
    ["start log", "start first", "start second", "start turns", "listener prepare", "listener commit"];
const STOPPED: [&str; 5] = ["listener stop", "stop turns", "stop second", "stop first", "stop log"];

#[tokio::test]
async fn parts_start_in_order_and_end_in_reverse_with_the_lock_last() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    assert_eq!(rig.journal(), STARTED);
    assert!(matches!(rig.lock(), Err(LockError::Held { .. })));
    let view = root.control().view();
    assert_eq!((view.phase, view.generation, view.config_revision.as_str()), (Phase::Running, 1, "r1"));
    assert_eq!(view.surfaces.iter().map(|one| one.name).collect::<Vec<_>>(), ["log", "first", "second", "turns"]);
    assert_eq!(view.listeners[0].address.as_deref(), Some("100"));
    root.shutdown();
    root.wait().await.unwrap();
    assert_eq!(rig.journal(), STOPPED);
    rig.lock().unwrap();
    assert_eq!(root.control().view().phase, Phase::Stopped);
    assert_eq!(root.reload().await, Err(ReloadError::Stopping));
}

#[tokio::test]
async fn a_reload_restarts_the_tree_alone_with_the_new_configuration() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    rig.journal();
    rig.write(2, 200);
    let report = root.reload().await.unwrap();
    assert_eq!((report.generation, report.config_revision.as_str()), (2, "r2"));
    let seen: Vec<_> = report.surfaces.iter().map(|one| (one.name, one.outcome.clone(), one.generation)).collect();
    assert_eq!(
        seen,
        [
            ("first", SurfaceOutcome::Restarted, 2),
            ("second", SurfaceOutcome::Restarted, 2),
            ("log", SurfaceOutcome::Unchanged, 1),
            ("turns", SurfaceOutcome::Unchanged, 1),
        ]
    );
    assert_eq!(
        rig.journal(),
        [
            "listener prepare",
            "configure 2",
            "stop second",
            "stop first",
            "start first",
            "start second",
            "listener commit"
        ]
    );
    assert_eq!(revision_of(&root.handles().first).await, 2);
    assert_eq!(revision_of(&root.handles().live).await, 1);
    assert_eq!(root.control().view().listeners[0].address.as_deref(), Some("200"));
    root.shutdown();
    root.wait().await.unwrap();
}

#[tokio::test]
async fn an_invalid_file_or_a_taken_address_leaves_all_as_it_was() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    rig.journal();
    let invalid = WireError::new(ErrorKind::ConfigInvalid, "config.toml line 31: `cron.tz`: no such zone");
    rig.world.file.send(Err(invalid.clone())).unwrap();
    assert_eq!(root.reload().await, Err(ReloadError::Config(invalid)));
    assert_eq!(rig.journal(), Vec::<String>::new());

    rig.write(2, 1);
    let refused = root.reload().await.unwrap_err();
    assert_eq!(refused.to_string(), "the socket listener can't move: port 1 is taken");
    assert_eq!(WireError::from(refused).remedy.as_deref(), Some("choose another"));
    assert_eq!(rig.journal(), ["listener prepare", "listener abort"]);

    assert_eq!(revision_of(&root.handles().first).await, 1);
    assert_eq!(root.config().revision, 1);
    let view = root.control().view();
    assert_eq!((view.generation, view.config_revision.as_str(), view.phase), (1, "r1", Phase::Running));
    root.shutdown();
    root.wait().await.unwrap();
}

#[tokio::test]
async fn reloads_asked_for_during_one_share_the_next() {
    let rig = Rig::new();
    let root = rig.start().await.unwrap();
    let gate = rig.world.gate.acquire().await.unwrap();
    let reload = || {
        let control = root.control().clone();
        tokio::spawn(async move { control.reload().await })
    };
    let first = reload();
    while root.control().view().phase != Phase::Reloading {
        tokio::task::yield_now().await;
    }
    let others: Vec<_> = (0..5).map(|_| reload()).collect();
    // On this one thread every yield lets each of them run, so all have asked by then.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    rig.write(7, 100);
    drop(gate);
    assert_eq!(first.await.unwrap().unwrap().generation, 2);
    for other in others {
        let report = other.await.unwrap().unwrap();
        assert_eq!((report.generation, report.config_revision.as_str()), (3, "r7"));
    }
    assert_eq!(rig.world.loads.load(Ordering::SeqCst), 3);
    root.shutdown();
    root.wait().await.unwrap();
}

#[tokio::test]
async fn a_stop_waits_for_the_reload_that_runs_and_refuses_the_next() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    let gate = Arc::clone(&rig.world);
    let held = gate.gate.acquire().await.unwrap();
    let control = root.control().clone();
    let running = tokio::spawn(async move { control.reload().await });
    while root.control().view().phase != Phase::Reloading {
        tokio::task::yield_now().await;
    }
    root.shutdown();
    assert_eq!(root.reload().await, Err(ReloadError::Stopping));
    rig.journal();
    drop(held);
    assert_eq!(running.await.unwrap().unwrap().generation, 2);
    root.wait().await.unwrap();
    assert_eq!(rig.journal()[7..], STOPPED);
}

#[tokio::test]
async fn a_second_wish_to_stop_no_longer_waits_for_what_is_in_flight() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    root.handles().live.tell(ProbeMessage::Hang).await.unwrap();
    rig.journal();
    root.shutdown();
    root.control().stopping().await;
    root.shutdown();
    tokio::time::timeout(Duration::from_secs(5), root.wait()).await.unwrap().unwrap();
    assert_eq!(rig.journal(), ["listener stop", "stop second", "stop first", "stop log"]);
    rig.lock().unwrap();
}

#[tokio::test]
async fn a_listener_that_is_needed_and_cannot_start_ends_what_had_started() {
    let mut rig = Rig::new();
    rig.write(1, 1);
    let error = rig.start().await.unwrap_err();
    assert_eq!(error.to_string(), "the socket listener can't start: port 1 is taken");
    assert_eq!(error.kind(), ErrorKind::Denied);
    let journal = rig.journal();
    assert_eq!(journal[..4], STARTED[..4]);
    assert_eq!(journal[journal.len() - 5..], STOPPED);
    rig.lock().unwrap();
}

#[tokio::test]
async fn an_unusable_configuration_starts_nothing() {
    let mut rig = Rig::new();
    rig.world.file.send(Err(WireError::new(ErrorKind::ConfigInvalid, "config.toml line 1: no"))).unwrap();
    let error = rig.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
    assert_eq!(rig.journal(), Vec::<String>::new());
    rig.lock().unwrap();
}

#[tokio::test]
async fn a_reload_that_panics_ends_the_root_and_is_seen() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    rig.world.panic_in_load.store(true, Ordering::SeqCst);
    rig.journal();
    assert_eq!(root.reload().await, Err(ReloadError::Failed("it panicked".to_owned())));
    let failed = root.wait().await.unwrap_err();
    assert_eq!(failed.reason, "a reload failed: it panicked");
    assert_eq!(rig.journal(), STOPPED[1..]);
    rig.lock().unwrap();
}

#[tokio::test]
async fn a_supervisor_that_dies_ends_the_root_and_is_seen() {
    let mut rig = Rig::new();
    let root = rig.start().await.unwrap();
    rig.journal();
    let supervisor = rig.world.supervisor.borrow().clone().unwrap();
    supervisor.kill();
    let failed = root.wait().await.unwrap_err();
    assert!(failed.reason.starts_with("a supervisor ended"), "{failed}");
    // The surfaces of the dead supervisor died with it; all others ended in order.
    assert_eq!(rig.journal(), ["listener stop", "stop turns", "stop log"]);
    rig.lock().unwrap();
}

#[tokio::test]
async fn two_roots_in_one_process_share_nothing() {
    let (rig, other_rig) = (Rig::new(), Rig::new());
    let (root, other) = (rig.start().await.unwrap(), other_rig.start().await.unwrap());
    rig.write(5, 100);
    assert_eq!(root.reload().await.unwrap().generation, 2);
    assert_eq!(other.control().generation(), 1);
    root.shutdown();
    root.wait().await.unwrap();
    assert_eq!(revision_of(&other.handles().first).await, 1);
    assert_eq!(other.reload().await.unwrap().generation, 2);
    other.shutdown();
    other.wait().await.unwrap();
}
