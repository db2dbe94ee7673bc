//! A durable append through address, actor and store, against a raw loop whose transaction holds as many rows as there
//! are callers, and against the obvious way (naive): a task that takes one message after the other, makes untyped JSON of
//! it, and gives each a driver transaction and an answer of its own.

use std::time::{Duration, Instant};

use holdfast_actors::sessions::SessionsHandle;
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{AppendParams, NewEvent, NewParams};
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{mpsc, oneshot};

use super::raw::{RawStore, body};
use super::report::Row;
use super::{Options, cpu_us, median, percentile};
use crate::tree::TestTree;

const CALLERS: [usize; 4] = [1, 8, 64, 512];

/// What one round showed.
struct Round {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
}

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> Vec<Row> {
    let tree = TestTree::start(1).await;
    let sessions = tree.handles().sessions.clone();
    let directory = tempfile::tempdir().unwrap();
    let mut raw = RawStore::open(&directory.path().join("raw.db"));
    let naive = Naive::start(&directory.path().join("naive.db")).await;
    let round = Duration::from_millis(options.round_ms);
    let mut rows = Vec::new();
    for callers in CALLERS {
        let (mut ours, mut raws, mut naives) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up: the write-ahead log is allocated, statements are prepared.
        for number in 0..=options.rounds {
            let our = appends(&sessions, callers, round).await;
            let raw = raw_round(&mut raw, callers, round);
            let naive = naive.round(callers, round).await;
            if number > 0 {
                ours.push(our);
                raws.push(raw);
                naives.push(naive);
            }
        }
        let of = |rounds: &[Round], what: fn(&Round) -> f64| median(rounds.iter().map(what).collect());
        let rate = |rounds: &[Round]| of(rounds, |round| round.per_second);
        let name = |what: &str| format!("append, {callers} callers: {what}");
        match callers {
            1 => {
                let p50 = |rounds: &[Round]| of(rounds, |round| round.p50_ms);
                rows.push(Row::at_most(name("p50"), "ms", p50(&ours), p50(&raws), 1.8));
                rows.push(Row::at_most(name("p50 against naive"), "ms", p50(&ours), p50(&naives), 1.1));
            }
            64 => {
                rows.push(Row::at_least(name("rate"), "/s", rate(&ours), rate(&raws), 0.45));
                rows.push(Row::at_least(name("rate against naive"), "/s", rate(&ours), rate(&naives), 10.0));
                let p99 = |rounds: &[Round]| of(rounds, |round| round.p99_ms);
                rows.push(Row::at_most(name("p99"), "ms", p99(&ours), p99(&raws), 2.5));
                let cpu = |rounds: &[Round]| of(rounds, |round| round.cpu_us);
                rows.push(Row::at_most(name("CPU an append"), "µs", cpu(&ours), cpu(&raws), 2.5));
                rows.push(Row::at_most(name("CPU against naive"), "µs", cpu(&ours), cpu(&naives), 0.12));
            }
            512 => {
                rows.push(Row::at_least(name("rate"), "/s", rate(&ours), rate(&raws), 0.55));
                rows.push(Row::at_least(name("rate against naive"), "/s", rate(&ours), rate(&naives), 25.0));
            }
            _ => rows.push(Row::at_least(name("rate"), "/s", rate(&ours), rate(&raws), 0.4)),
        }
    }
    tree.stop().await;
    rows
}

/// Each caller appends to a session of its own, one event after the other.
async fn appends(sessions: &SessionsHandle, callers: usize, round: Duration) -> Round {
    let body = RawValue::from_string(body()).unwrap();
    let mut ids = Vec::with_capacity(callers);
    for _ in 0..callers {
        let params = NewParams {
            agent_id: "bench".parse().unwrap(),
            session_key: None,
            title: None,
            scope: None,
            idempotency_key: None,
        };
        ids.push(sessions.create(params).await.unwrap().session_id);
    }
    let (began, cpu_before) = (Instant::now(), cpu_us());
    let tasks: Vec<_> = ids
        .into_iter()
        .map(|session_id| tokio::spawn(append_until(sessions.clone(), session_id, body.clone(), began + round)))
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    finish(times, began.elapsed(), cpu_us() - cpu_before)
}

async fn append_until(sessions: SessionsHandle, session_id: SessionId, body: Box<RawValue>, end: Instant) -> Vec<f64> {
    let mut times = Vec::new();
    while Instant::now() < end {
        let event = NewEvent {
            kind: "message".to_owned(),
            role: Some("user".to_owned()),
            idempotency_key: None,
            body: body.clone(),
        };
        let params = AppendParams { session_id, events: vec![event], idempotency_key: None };
        let began = Instant::now();
        sessions.append(params).await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times
}

fn finish(mut times: Vec<f64>, took: Duration, cpu_us: f64) -> Round {
    times.sort_by(f64::total_cmp);
    Round {
        per_second: times.len() as f64 / took.as_secs_f64(),
        p50_ms: percentile(&times, 0.5),
        p99_ms: percentile(&times, 0.99),
        cpu_us: cpu_us / times.len() as f64,
    }
}

fn raw_round(raw: &mut RawStore, callers: usize, round: Duration) -> Round {
    let body = body();
    let (began, cpu_before) = (Instant::now(), cpu_us());
    let mut times = Vec::new();
    while began.elapsed() < round {
        let took_ms = raw.append(callers, &body) * 1e3;
        times.extend(std::iter::repeat_n(took_ms, callers));
    }
    finish(times, began.elapsed(), cpu_us() - cpu_before)
}

/// The obvious way.
struct Naive {
    messages: mpsc::Sender<(String, oneshot::Sender<String>)>,
}

impl Naive {
    async fn start(path: &std::path::Path) -> Self {
        drop(RawStore::open(path));
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = options.connect().await.unwrap();
        let (messages, mut received) = mpsc::channel::<(String, oneshot::Sender<String>)>(1_024);
        tokio::spawn(async move {
            let mut seq = 0_i64;
            while let Some((message, answer)) = received.recv().await {
                seq += 1;
                let message: Value = serde_json::from_str(&message).unwrap();
                let mut transaction = connection.begin().await.unwrap();
                sqlx::query(
                    "INSERT INTO transcript_events (session, seq, event_id, kind, role, created_at_ms, body_json)
                     VALUES (1, ?1, ?2, 'message', 'user', 0, ?3)",
                )
                .bind(seq)
                .bind([9u8; 16].as_slice())
                .bind(message.to_string())
                .execute(&mut *transaction)
                .await
                .unwrap();
                transaction.commit().await.unwrap();
                // A caller whose round is over no longer waits.
                let _unheard = answer.send(serde_json::json!({ "seq": seq }).to_string());
            }
        });
        Self { messages }
    }

    async fn round(&self, callers: usize, round: Duration) -> Round {
        let body = body();
        let (began, cpu_before) = (Instant::now(), cpu_us());
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (messages, body) = (self.messages.clone(), body.clone());
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    while began.elapsed() < round {
                        let one = Instant::now();
                        let (answer, answered) = oneshot::channel();
                        messages.send((body.clone(), answer)).await.unwrap();
                        answered.await.unwrap();
                        times.push(one.elapsed().as_secs_f64() * 1e3);
                    }
                    times
                })
            })
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.unwrap());
        }
        finish(times, began.elapsed(), cpu_us() - cpu_before)
    }
}
