//! Kill -9 at random moments while clients work, and a check that nothing acknowledged is lost, doubled or out of order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{Append, AppendParams, Events, EventsParams, New, NewEvent, NewParams};

use crate::daemon::{TestClient, TestDaemon, connect};
use crate::eventually::PATIENCE;
use crate::random::Random;

/// How many rounds a soak makes.
const SOAK_ROUNDS: u32 = 200;

/// One client that works until the daemon dies under it, and knows what it was promised.
pub trait Worker: Send {
    /// Makes one request and remembers what was acknowledged. What an earlier connection left open is repeated first.
    ///
    /// # Errors
    /// What the client met. The connection is made anew then.
    fn step(&mut self, client: &mut TestClient) -> Result<(), ClientError>;

    /// Compares what is stored with what was acknowledged: everything, or what came since the last comparison.
    ///
    /// # Panics
    /// When something acknowledged is missing, doubled or out of order.
    fn verify(&mut self, client: &mut TestClient, extent: Extent);

    /// Returns how many acknowledgements it got.
    fn acknowledged(&self) -> u64;
}

/// How much a comparison looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything that was ever acknowledged.
    Whole,
    /// What was not compared before, so that a long run does not read everything after every kill.
    New,
}

/// What a crash run did.
#[derive(Debug)]
pub struct CrashReport {
    /// How often the daemon was killed.
    pub rounds: u32,
    /// How many acknowledgements were given in all.
    pub acknowledged: u64,
    /// The longest start after a kill.
    pub slowest_start: Duration,
}

/// Returns `rounds`, or 200 with `HOLDFAST_SOAK=1`.
pub fn rounds(rounds: u32) -> u32 {
    match std::env::var("HOLDFAST_SOAK").as_deref() {
        Ok("1") => SOAK_ROUNDS,
        _ => rounds,
    }
}

/// Lets `workers` work against `daemon`, kills it `rounds` times and checks after each start.
///
/// # Panics
/// When a promise is broken, or a start needs help.
pub fn crash_run(
    daemon: &mut TestDaemon,
    mut workers: Vec<Box<dyn Worker>>,
    rounds: u32,
    random: &mut Random,
) -> CrashReport {
    let mut report = CrashReport { rounds, acknowledged: 0, slowest_start: Duration::ZERO };
    for round in 0..rounds {
        let pause = Duration::from_millis(random.between(5, 400));
        let before: u64 = workers.iter().map(|worker| worker.acknowledged()).sum();
        workers = work_until_killed(daemon, workers, pause);
        let began = Instant::now();
        daemon.boot();
        report.slowest_start = report.slowest_start.max(began.elapsed());
        verify(daemon, &mut workers, Extent::New);
        let after: u64 = workers.iter().map(|worker| worker.acknowledged()).sum();
        println!("round {round}: killed after {pause:?}, {} acknowledged", after - before);
    }
    verify(daemon, &mut workers, Extent::Whole);
    report.acknowledged = workers.iter().map(|worker| worker.acknowledged()).sum();
    report
}

/// Lets all work, kills the daemon `pause` after the first acknowledgement, and returns the workers.
fn work_until_killed(daemon: &mut TestDaemon, workers: Vec<Box<dyn Worker>>, pause: Duration) -> Vec<Box<dyn Worker>> {
    let socket = daemon.root.socket();
    let over = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let (socket, over, steps) = (socket.clone(), Arc::clone(&over), Arc::clone(&steps));
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let Ok((mut client, _)) = connect(&socket) else {
                            std::thread::yield_now();
                            continue;
                        };
                        while !over.load(Ordering::SeqCst) {
                            match worker.step(&mut client) {
                                Ok(()) => steps.fetch_add(1, Ordering::SeqCst),
                                Err(error) if is_passing(&error) => break,
                                Err(error) => panic!("{error}"),
                            };
                        }
                    }
                    worker
                })
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while steps.load(Ordering::SeqCst) == 0
            && Instant::now() < deadline
            && !threads.iter().any(|one| one.is_finished())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The one pause that is meant: the moment of the kill is random, and everything runs meanwhile.
        std::thread::sleep(pause);
        daemon.kill9();
        over.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn verify(daemon: &TestDaemon, workers: &mut [Box<dyn Worker>], extent: Extent) {
    let mut client = daemon.client();
    for worker in workers {
        worker.verify(&mut client, extent);
    }
}

/// Says whether an error comes from the daemon's death or from its being busy: both end a step, and neither is a fault.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Io { .. } | ClientError::Closed => true,
        ClientError::Refused(error) => matches!(
            error.kind,
            ErrorKind::Busy | ErrorKind::Interrupted | ErrorKind::Timeout | ErrorKind::Stopping | ErrorKind::Locked
        ),
        ClientError::Protocol { .. } | ClientError::Params { .. } | ClientError::Result { .. } => false,
    }
}

/// Appends numbered events to a session of its own, one a request, each with its key.
pub struct AppendWorker {
    name: String,
    session: Option<SessionId>,
    /// The number of the next event; those before it are acknowledged.
    next: u64,
    /// The position each acknowledged event was given.
    seqs: Vec<u64>,
    /// What was asked for and not answered: it may be stored or not.
    open: bool,
    /// How many events have been compared.
    compared: u64,
}

impl AppendWorker {
    /// Makes a worker with a name that no other has.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), session: None, next: 0, seqs: Vec::new(), open: false, compared: 0 }
    }

    /// Returns its session, once it has one.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    fn body(&self, number: u64) -> String {
        format!("{{\"worker\":\"{}\",\"number\":{number}}}", self.name)
    }
}

impl Worker for AppendWorker {
    fn step(&mut self, client: &mut TestClient) -> Result<(), ClientError> {
        let session_id = match self.session {
            Some(session) => session,
            None => {
                let params = NewParams {
                    agent_id: "demo".parse().unwrap(),
                    session_key: Some(self.name.clone()),
                    title: None,
                    scope: None,
                    idempotency_key: Some(format!("{}-new", self.name)),
                };
                let session = client.call::<New>(&params)?.session_id;
                self.session = Some(session);
                session
            }
        };
        let event = NewEvent {
            kind: "message".to_owned(),
            role: Some("user".to_owned()),
            idempotency_key: Some(format!("{}-{}", self.name, self.next)),
            body: serde_json::value::RawValue::from_string(self.body(self.next)).unwrap(),
        };
        self.open = true;
        let result = client.call::<Append>(&AppendParams { session_id, events: vec![event], idempotency_key: None })?;
        self.open = false;
        assert_eq!(result.seqs.len(), 1);
        self.seqs.push(result.seqs[0]);
        self.next += 1;
        Ok(())
    }

    fn verify(&mut self, client: &mut TestClient, extent: Extent) {
        let Some(session_id) = self.session else { return };
        let first = match extent {
            Extent::Whole => 0,
            Extent::New => self.compared,
        };
        // Positions are counted from 1 without gaps, so the event of number n is at n + 1.
        let mut number = first;
        loop {
            let page =
                client.call::<Events>(&EventsParams { session_id, after_seq: number, limit: Some(1_000) }).unwrap();
            for event in &page.events {
                assert_eq!(event.body.get(), self.body(number), "{}: out of order at {}", self.name, event.seq);
                assert_eq!(event.seq, number + 1, "{}: positions have a gap", self.name);
                let promised = self.seqs.get(usize::try_from(number).unwrap());
                assert!(promised.is_none_or(|seq| *seq == event.seq), "{}: another position than promised", self.name);
                number += 1;
            }
            if !page.more {
                break;
            }
        }
        let acknowledged = self.acknowledged();
        assert!(number >= acknowledged, "{}: {} of {acknowledged} events are lost", self.name, acknowledged - number);
        assert!(
            number <= acknowledged + u64::from(self.open),
            "{}: {number} events are stored, {acknowledged} were acknowledged",
            self.name
        );
        // What was not acknowledged yet is compared again: it may be repeated with its key.
        self.compared = acknowledged;
    }

    fn acknowledged(&self) -> u64 {
        self.seqs.len() as u64
    }
}
