//! The kit against itself: order, ends, crashes, reloads under load, addresses over restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_protocol::error::ErrorKind;
use tokio::sync::mpsc;

use super::*;
use crate::address::{Address, CallError};
use crate::ports::Ports;
use crate::reply::Reply;
use crate::surface::{Context, Surface};

const LIMIT: Duration = Duration::from_secs(10);

/// An actor that keeps a number, tells a journal what happens to it, and can be made to misbehave.
struct Probe {
    name: &'static str,
    journal: mpsc::UnboundedSender<String>,
    /// Stands in for the store: what was added is here, also after a crash.
    total: Arc<AtomicU64>,
    down_at_start: bool,
}

enum ProbeMessage {
    Add {
        amount: u64,
        reply: Reply<u64>,
    },
    Panic,
    Fail {
        reply: Reply<()>,
    },
    GoDown,
    /// Answers when told to.
    Wait {
        until: tokio::sync::oneshot::Receiver<()>,
        reply: Reply<()>,
    },
}

impl Surface for Probe {
    type Message = ProbeMessage;
    type State = ();

    async fn start(&self, context: &Context<ProbeMessage>) -> Result<(), Down> {
        self.journal.send(format!("start {} {}", self.name, context.generation)).unwrap();
        if self.down_at_start {
            return Err(Down {
                kind: ErrorKind::Damaged,
                reason: "the file is damaged".to_owned(),
                remedy: "restore a backup".to_owned(),
            });
        }
        Ok(())
    }

    async fn handle(&self, _: &Context<ProbeMessage>, message: ProbeMessage, (): &mut ()) -> Result<(), Fault> {
        match message {
            ProbeMessage::Add { amount, reply } => {
                let before = self.total.fetch_add(amount, Ordering::SeqCst);
                tokio::task::yield_now().await;
                reply.send(before + amount);
            }
            ProbeMessage::Panic => panic!("as asked"),
            ProbeMessage::Fail { reply } => {
                let _held = reply;
                return Err(Fault::Restart("asked to fail".to_owned()));
            }
            ProbeMessage::GoDown => {
                return Err(Fault::Down(Down {
                    kind: ErrorKind::Damaged,
                    reason: "page 7 is damaged".to_owned(),
                    remedy: "restore a backup".to_owned(),
                }));
            }
            ProbeMessage::Wait { until, reply } => {
                until.await.unwrap();
                reply.send(());
            }
        }
        Ok(())
    }

    async fn stop(&self, _: &Context<ProbeMessage>, (): ()) {
        self.journal.send(format!("stop {}", self.name)).unwrap();
    }
}

struct Rig {
    supervisor: Supervisor,
    outcomes: Vec<ChildOutcome>,
    addresses: Vec<Address<ProbeMessage>>,
    total: Arc<AtomicU64>,
    journal: mpsc::UnboundedReceiver<String>,
}

impl Rig {
    async fn start(strategy: Strategy, names: &[&'static str], limits: Limits, down: Option<&str>) -> Self {
        let (sender, journal) = mpsc::unbounded_channel();
        let total = Arc::new(AtomicU64::new(0));
        let mut stages: Vec<Stage> = Vec::new();
        let mut addresses = Vec::new();
        for name in names {
            let probe =
                Probe { name, journal: sender.clone(), total: Arc::clone(&total), down_at_start: down == Some(*name) };
            let (one, address) = child(name, limits, &Ports::system(), probe);
            stages.push(vec![Box::new(one)]);
            addresses.push(address);
        }
        let intensity = Intensity { restarts_max: 3, backoff: Duration::from_millis(1), ..Intensity::default() };
        let spec = SupervisorSpec { name: "test", strategy, intensity, stages };
        let (supervisor, outcomes) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, outcomes, addresses, total, journal }
    }

    fn journal(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.journal.try_recv().ok()).collect()
    }

    async fn add(&self, index: usize, amount: u64) -> Result<u64, CallError> {
        self.addresses[index].call(LIMIT, |reply| ProbeMessage::Add { amount, reply }).await
    }
}

#[tokio::test]
async fn children_start_in_order_and_end_in_reverse() {
    let mut rig = Rig::start(Strategy::OneForOne, &["a", "b", "c"], Limits::default(), None).await;
    assert_eq!(rig.journal(), ["start a 1", "start b 1", "start c 1"]);
    assert!(rig.outcomes.iter().all(|outcome| outcome.down.is_none()));
    rig.supervisor.stop().await;
    assert_eq!(rig.journal(), ["stop c", "stop b", "stop a"]);
    assert_eq!(rig.add(0, 1).await, Err(CallError::Stopped));
}

/// Starts and ends once all of its stage do: alone it would wait for ever.
struct Together {
    meeting: Arc<tokio::sync::Barrier>,
    journal: mpsc::UnboundedSender<&'static str>,
}

impl Surface for Together {
    type Message = ();
    type State = ();

    async fn start(&self, _: &Context<()>) -> Result<(), Down> {
        self.meeting.wait().await;
        self.journal.send("start").unwrap();
        Ok(())
    }

    async fn handle(&self, _: &Context<()>, (): (), (): &mut ()) -> Result<(), Fault> {
        Ok(())
    }

    async fn stop(&self, _: &Context<()>, (): ()) {
        self.meeting.wait().await;
        self.journal.send("stop").unwrap();
    }
}

#[tokio::test]
async fn children_of_a_stage_start_and_end_at_once() {
    let (sender, mut journal) = mpsc::unbounded_channel();
    let stage = |size: usize| -> Stage {
        let meeting = Arc::new(tokio::sync::Barrier::new(size));
        let together = || Together { meeting: Arc::clone(&meeting), journal: sender.clone() };
        (0..size).map(|_| Box::new(child("one", Limits::default(), &Ports::system(), together()).0) as _).collect()
    };
    let stages = vec![stage(1), stage(3)];
    let spec = SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
    let (supervisor, outcomes) = Supervisor::start(spec, 1, None).await.unwrap();
    assert_eq!(outcomes.len(), 4);
    let outcomes = supervisor.reload(2).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.down.is_none() && outcome.generation == 2));
    supervisor.stop().await;
    let said: Vec<&str> = std::iter::from_fn(|| journal.try_recv().ok()).collect();
    let times = |what| said.iter().filter(|said| **said == what).count();
    assert_eq!((times("start"), times("stop")), (8, 8));
}

#[tokio::test]
async fn a_surface_that_cannot_start_is_down_alone_and_says_why() {
    let rig = Rig::start(Strategy::OneForOne, &["a", "b"], Limits::default(), Some("a")).await;
    assert_eq!(rig.outcomes[0].down.as_ref().unwrap().reason, "the file is damaged");
    let Err(CallError::Down(down)) = rig.add(0, 1).await else { panic!("not down") };
    assert_eq!((down.kind, down.remedy.as_str()), (ErrorKind::Damaged, "restore a backup"));
    assert_eq!(rig.add(1, 1).await, Ok(1));
    let states: Vec<&str> = rig.supervisor.observed().iter().map(|one| one.now().0).collect();
    assert_eq!(states, ["down", "up"]);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_panic_restarts_the_actor_and_interrupts_only_what_it_held() {
    let mut rig = Rig::start(Strategy::OneForOne, &["a", "b"], Limits::default(), None).await;
    rig.journal();
    rig.addresses[0].tell(ProbeMessage::Panic).await.unwrap();
    let after = rig.add(0, 5).await;
    assert!(after == Ok(5) || after == Err(CallError::Interrupted), "{after:?}");
    assert_eq!(rig.addresses[0].call(LIMIT, |reply| ProbeMessage::Fail { reply }).await, Err(CallError::Interrupted));
    assert!(rig.add(0, 1).await.is_ok());
    assert_eq!(rig.journal(), ["start a 1", "start a 1"]);
    assert_eq!(rig.supervisor.observed()[0].stats.restarts(), 2);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn strategies_restart_who_they_say() {
    for (strategy, expected) in [
        (Strategy::OneForOne, vec!["start b 1"]),
        (Strategy::RestForOne, vec!["stop c", "start b 1", "start c 1"]),
        (Strategy::OneForAll, vec!["stop c", "stop a", "start a 1", "start b 1", "start c 1"]),
    ] {
        let mut rig = Rig::start(strategy, &["a", "b", "c"], Limits::default(), None).await;
        rig.journal();
        rig.addresses[1].tell(ProbeMessage::Panic).await.unwrap();
        while rig.add(1, 1).await.is_err() {}
        while rig.add(2, 1).await.is_err() {}
        assert_eq!(rig.journal(), expected, "{strategy:?}");
        rig.supervisor.stop().await;
    }
}

#[tokio::test]
async fn past_the_limit_the_surface_is_down_and_a_reload_brings_it_back() {
    let rig = Rig::start(Strategy::OneForOne, &["a", "b"], Limits::default(), None).await;
    for _ in 0..4 {
        rig.addresses[0].ready().await.unwrap();
        rig.addresses[0].tell(ProbeMessage::Panic).await.unwrap();
        // The panic is behind us once the restart counter or the state shows it.
        let _interrupted = rig.add(0, 0).await;
    }
    while rig.addresses[0].down().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(rig.add(0, 1).await, Err(CallError::Down(down)) if down.reason.contains("more than 3 times")));
    assert_eq!(rig.add(1, 0).await, Ok(0));
    let outcomes = rig.supervisor.reload(2).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.generation == 2 && outcome.down.is_none()));
    assert_eq!(rig.add(0, 1).await, Ok(1));
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn damage_found_while_running_downs_the_surface_without_a_restart() {
    let mut rig = Rig::start(Strategy::OneForOne, &["a"], Limits::default(), None).await;
    rig.addresses[0].tell(ProbeMessage::GoDown).await.unwrap();
    while rig.addresses[0].down().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(rig.add(0, 1).await, Err(CallError::Down(down)) if down.reason == "page 7 is damaged"));
    assert_eq!(rig.journal(), ["start a 1"]);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_full_address_is_busy_at_once_and_permits_come_back() {
    let limits = Limits { in_flight_max: 2, ..Limits::default() };
    let rig = Rig::start(Strategy::OneForOne, &["a"], limits, None).await;
    let (let_go, until) = tokio::sync::oneshot::channel();
    let address = rig.addresses[0].clone();
    let waiting = tokio::spawn(async move { address.call(LIMIT, |reply| ProbeMessage::Wait { until, reply }).await });
    while rig.addresses[0].permits_available() == 2 {
        tokio::task::yield_now().await;
    }
    let address = rig.addresses[0].clone();
    let queued = tokio::spawn(async move { address.call(LIMIT, |reply| ProbeMessage::Add { amount: 1, reply }).await });
    while rig.addresses[0].permits_available() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.add(0, 1).await, Err(CallError::Busy));
    let_go.send(()).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(queued.await.unwrap(), Ok(1));
    assert_eq!(rig.addresses[0].permits_available(), 2);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_caller_that_gives_up_gets_a_timeout() {
    let rig = Rig::start(Strategy::OneForOne, &["a"], Limits::default(), None).await;
    let (let_go, until) = tokio::sync::oneshot::channel();
    let short = Duration::from_millis(10);
    let answer = rig.addresses[0].call(short, |reply| ProbeMessage::Wait { until, reply }).await;
    assert_eq!(answer, Err(CallError::Timeout));
    let_go.send(()).unwrap();
    rig.supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_trees_reload_under_load_without_losing_or_doubling_a_call() {
    let first = Rig::start(Strategy::OneForOne, &["a", "b"], Limits::default(), None).await;
    let second = Rig::start(Strategy::OneForOne, &["a", "b"], Limits::default(), None).await;
    let mut callers = Vec::new();
    for rig in [&first, &second] {
        for index in 0..16 {
            let address = rig.addresses[index % 2].clone();
            callers.push(tokio::spawn(async move {
                for _ in 0..500 {
                    address.call(LIMIT, |reply| ProbeMessage::Add { amount: 1, reply }).await.unwrap();
                }
            }));
        }
    }
    for generation in 2..30 {
        first.supervisor.reload(generation).await.unwrap();
        second.supervisor.reload(generation).await.unwrap();
    }
    for caller in callers {
        caller.await.unwrap();
    }
    for rig in [&first, &second] {
        assert_eq!(rig.total.load(Ordering::SeqCst), 16 * 500);
        assert_eq!(rig.supervisor.observed()[0].stats.restarts(), 0);
        rig.supervisor.stop().await;
    }
}

#[tokio::test]
async fn a_posted_request_is_answered_whatever_happens() {
    let rig = Rig::start(Strategy::OneForOne, &["a"], Limits::default(), None).await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let post = |address: &Address<ProbeMessage>| {
        let sender = sender.clone();
        let reply = Reply::sink(move |answer| sender.send(answer).unwrap());
        address.post(reply, |reply| ProbeMessage::Add { amount: 1, reply });
    };
    post(&rig.addresses[0]);
    assert_eq!(answers.recv().await.unwrap(), Ok(1));
    rig.addresses[0].tell(ProbeMessage::Panic).await.unwrap();
    post(&rig.addresses[0]);
    let after = answers.recv().await.unwrap();
    assert!(after == Ok(2) || after == Err(CallError::Interrupted), "{after:?}");
    rig.supervisor.stop().await;
    post(&rig.addresses[0]);
    assert_eq!(answers.recv().await.unwrap(), Err(CallError::Stopped));
}

#[tokio::test]
async fn a_dynamic_child_that_crashes_is_gone_alone_and_its_owner_is_told() {
    let ports = Ports::system();
    let (journal, _events) = mpsc::unbounded_channel();
    let total = Arc::new(AtomicU64::new(0));
    let supervisor = DynamicSupervisor::start(&ports, 1, None).await.unwrap();
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut addresses = Vec::new();
    for name in ["a", "b"] {
        let probe = Probe { name, journal: journal.clone(), total: Arc::clone(&total), down_at_start: false };
        let ended = ended.clone();
        let on_end = move |how| ended.send((name, how)).unwrap();
        addresses.push(supervisor.spawn(name, Limits::default(), probe, on_end).await.unwrap());
    }
    addresses[0].tell(ProbeMessage::Panic).await.unwrap();
    let (name, how) = endings.recv().await.unwrap();
    assert!(name == "a" && matches!(how, Ended::Crashed(_)), "{name} {how:?}");
    addresses[0].stopped().await;
    assert_eq!(addresses[1].call(LIMIT, |reply| ProbeMessage::Add { amount: 2, reply }).await, Ok(2));
    supervisor.stop().await;
    assert_eq!(endings.recv().await.unwrap(), ("b", Ended::Normally));
}
