//! Kill -9 at random moments while clients work, and a check that nothing acknowledged is lost, doubled or out of order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{Append, AppendParams, Events, EventsParams, New, NewEvent, NewParams};

use serde_json::Value;

use crate::acp_socket::AcpSocket;
use crate::daemon::{TestClient, TestDaemon, connect};
use crate::eventually::PATIENCE;
use crate::fake_agent::{Step, chunk};
use crate::random::Random;

/// The longest time between the first acknowledgement of a round and the kill. An agent is up and streams by then.
const LONGEST_PAUSE_MS: u64 = 1_500;

/// How many rounds a soak makes.
const SOAK_ROUNDS: u32 = 200;

/// One client that works until the daemon dies under it, and knows what it was promised.
pub trait Worker: Send {
    /// Works until the daemon is killed. What an earlier round left open is repeated first.
    ///
    /// # Panics
    /// When the daemon says something that is no consequence of its death.
    fn work(&mut self, round: &Round);

    /// Compares what is stored with what was acknowledged.
    ///
    /// # Panics
    /// When something acknowledged is missing, doubled or out of order.
    fn check(&mut self, daemon: &TestDaemon, extent: Extent);

    /// Returns how many acknowledgements it got.
    fn acknowledged(&self) -> u64;
}

/// What workers share between two kills.
#[derive(Debug, Clone)]
pub struct Round {
    /// Where the daemon listens.
    pub socket: PathBuf,
    over: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
}

impl Round {
    /// Says whether the daemon was killed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Tells that something was acknowledged.
    pub fn count(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }
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
        let pause = Duration::from_millis(random.between(5, LONGEST_PAUSE_MS));
        let before: u64 = workers.iter().map(|worker| worker.acknowledged()).sum();
        workers = work_until_killed(daemon, workers, pause);
        let began = Instant::now();
        daemon.boot();
        report.slowest_start = report.slowest_start.max(began.elapsed());
        for worker in &mut workers {
            worker.check(daemon, Extent::New);
        }
        let after: u64 = workers.iter().map(|worker| worker.acknowledged()).sum();
        println!("round {round}: killed after {pause:?}, {} acknowledged", after - before);
    }
    for worker in &mut workers {
        worker.check(daemon, Extent::Whole);
    }
    report.acknowledged = workers.iter().map(|worker| worker.acknowledged()).sum();
    report
}

/// Lets all work, kills the daemon `pause` after the first acknowledgement, and returns the workers.
fn work_until_killed(daemon: &mut TestDaemon, workers: Vec<Box<dyn Worker>>, pause: Duration) -> Vec<Box<dyn Worker>> {
    let round = Round { socket: daemon.root.socket(), over: Arc::default(), steps: Arc::default() };
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let round = round.clone();
                scope.spawn(move || {
                    worker.work(&round);
                    worker
                })
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while round.steps.load(Ordering::SeqCst) == 0
            && Instant::now() < deadline
            && !threads.iter().any(|one| one.is_finished())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The one pause that is meant: the moment of the kill is random, and everything runs meanwhile.
        std::thread::sleep(pause);
        daemon.kill9();
        round.over.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
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

    /// Makes one request and remembers what was acknowledged. What an earlier connection left open is repeated first.
    ///
    /// # Errors
    /// What the client met. The connection is made anew then.
    pub fn step(&mut self, client: &mut TestClient) -> Result<(), ClientError> {
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

    /// Compares what is stored with what was acknowledged: everything, or what came since the last comparison.
    ///
    /// # Panics
    /// When something acknowledged is missing, doubled or out of order.
    pub fn verify(&mut self, client: &mut TestClient, extent: Extent) {
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
        let acknowledged = self.seqs.len() as u64;
        assert!(number >= acknowledged, "{}: {} of {acknowledged} events are lost", self.name, acknowledged - number);
        assert!(
            number <= acknowledged + u64::from(self.open),
            "{}: {number} events are stored, {acknowledged} were acknowledged",
            self.name
        );
        // What was not acknowledged yet is compared again: it may be repeated with its key.
        self.compared = acknowledged;
    }
}

impl Worker for AppendWorker {
    fn work(&mut self, round: &Round) {
        while !round.is_over() {
            let Ok((mut client, _)) = connect(&round.socket) else {
                std::thread::yield_now();
                continue;
            };
            while !round.is_over() {
                match self.step(&mut client) {
                    Ok(()) => round.count(),
                    Err(error) if is_passing(&error) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn check(&mut self, daemon: &TestDaemon, extent: Extent) {
        self.verify(&mut daemon.client(), extent);
    }

    fn acknowledged(&self) -> u64 {
        self.seqs.len() as u64
    }
}

/// Prompts one session of the agent `fake` again and again, and remembers which of its updates a client saw.
pub struct StreamWorker {
    session_id: String,
    /// The texts seen since the last comparison, in order.
    seen: Vec<String>,
    /// How many texts were stored at the last comparison.
    stored: usize,
    acknowledged: u64,
}

impl StreamWorker {
    /// Makes a worker for a session that exists.
    pub fn new(session_id: String) -> Self {
        Self { session_id, seen: Vec::new(), stored: 0, acknowledged: 0 }
    }

    /// Attaches, resumes and prompts until the connection is cut; the error is the cut, and what came before it counts.
    fn prompt(&mut self, round: &Round) -> Result<(), ClientError> {
        let cut = |source| ClientError::Io { action: "stream", source };
        let mut client = AcpSocket::attach(&round.socket, "fake")?;
        let (_, answer) = client.resume(&self.session_id).map_err(cut)?;
        if !answer["result"].is_object() {
            return Ok(());
        }
        while !round.is_over() {
            client.received.clear();
            let turned = client.turn(&self.session_id, "stream");
            // What came before a cut counts.
            for text in agent_texts(&client.updates()) {
                self.seen.push(text);
                self.acknowledged += 1;
                round.count();
            }
            turned.map_err(cut)?;
        }
        Ok(())
    }
}

impl Worker for StreamWorker {
    fn work(&mut self, round: &Round) {
        while !round.is_over() {
            match self.prompt(round) {
                Ok(()) => {}
                Err(error) if is_passing(&error) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn check(&mut self, daemon: &TestDaemon, extent: Extent) {
        let mut client = AcpSocket::attach(&daemon.root.socket(), "fake").unwrap();
        let (updates, answer) = client.load(&self.session_id).unwrap();
        assert!(answer["result"].is_object(), "{answer}");
        let texts = agent_texts(&updates);
        let new = &texts[self.stored..];
        assert!(
            new.len() >= self.seen.len() && new[..self.seen.len()] == self.seen,
            "{}: seen {:?}, stored {new:?}",
            self.session_id,
            self.seen
        );
        if extent == Extent::Whole {
            let mut expected = 0;
            for text in &texts {
                // A turn begins anew; within one, each chunk follows the one before.
                expected = if *text == stream_text(0) { 0 } else { expected };
                assert_eq!(*text, stream_text(expected), "{}: an update is doubled or missing", self.session_id);
                expected += 1;
            }
        }
        self.stored = texts.len();
        self.seen.clear();
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged
    }
}

/// Returns what the agent of [`StreamWorker`] says in a turn: `chunks` numbered texts, `pause_ms` apart.
pub fn stream(chunks: usize, pause_ms: u64) -> Vec<Step> {
    (0..chunks).flat_map(|number| [Step::Update(chunk(&stream_text(number))), Step::DelayMs(pause_ms)]).collect()
}

fn stream_text(number: usize) -> String {
    format!("c{number} ")
}

fn agent_texts(updates: &[Value]) -> Vec<String> {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.map(|update| update["content"]["text"].as_str().unwrap().to_owned()).collect()
}
