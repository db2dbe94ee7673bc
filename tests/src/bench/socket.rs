//! The socket of a real daemon: no-op requests against a blocking echo, appends against the raw loop.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_protocol::methods::session::{New, NewParams};
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Row as _};

use super::raw::{RawStore, body};
use super::report::Row;
use super::{Options, median, percentile};
use crate::daemon::TestDaemon;

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let daemon = TestDaemon::start();
    let socket = daemon.root.socket();
    let directory = crate::daemon::short_directory();
    let mut rows = ping_rows(options, &socket, directory.path());
    rows.extend(append_rows(options, &daemon, directory.path()));
    rows
}

/// A connection that sends prepared lines and counts answers.
pub(super) struct Lines {
    writer: UnixStream,
    reader: BufReader<UnixStream>,
    answer: String,
}

impl Lines {
    fn connect(path: &Path) -> Self {
        let writer = UnixStream::connect(path).unwrap();
        let reader = BufReader::with_capacity(1 << 16, writer.try_clone().unwrap());
        Self { writer, reader, answer: String::new() }
    }

    pub(super) fn introduced(path: &Path) -> Self {
        let mut lines = Self::connect(path);
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": { "protocol_version": 1, "client": { "name": "bench", "version": "0" } } });
        lines.exchange(format!("{hello}\n").as_bytes(), 1);
        lines
    }

    /// Sends bytes in one write and waits for that many lines.
    pub(super) fn exchange(&mut self, bytes: &[u8], answers: usize) {
        self.writer.write_all(bytes).unwrap();
        for _ in 0..answers {
            self.answer.clear();
            assert!(self.reader.read_line(&mut self.answer).unwrap() > 0, "the connection ended");
            assert!(!self.answer.contains("\"error\""), "{}", self.answer);
        }
    }

    /// Sends a line and returns how long its answer took, in microseconds.
    pub(super) fn timed_us(&mut self, line: &str) -> f64 {
        let began = Instant::now();
        self.exchange(line.as_bytes(), 1);
        began.elapsed().as_secs_f64() * 1e6
    }

    /// Repeats an exchange for a while; returns exchanges a second and their median time in microseconds.
    fn repeat(&mut self, bytes: &[u8], answers: usize, round: Duration) -> (f64, f64) {
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < round {
            let one = Instant::now();
            self.exchange(bytes, answers);
            times.push(one.elapsed().as_secs_f64() * 1e6);
        }
        let per_second = (times.len() * answers) as f64 / began.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        (per_second, percentile(&times, 0.5))
    }
}

fn ping_rows(options: &Options, socket: &Path, directory: &Path) -> Vec<Row> {
    let echo_path = directory.join("echo.sock");
    let listener = UnixListener::bind(&echo_path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || echo(stream));
        }
    });
    let round = Duration::from_millis(options.round_ms);
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon/ping\",\"params\":{\"value\":1234567890123456789}}\n";
    let burst = ping.repeat(64);
    let (mut ours, mut echo) = (Lines::introduced(socket), Lines::connect(&echo_path));
    let (mut p50, mut echo_p50, mut rate, mut echo_rate) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        p50.push(ours.repeat(ping.as_bytes(), 1, round).1);
        echo_p50.push(echo.repeat(ping.as_bytes(), 1, round).1);
        rate.push(ours.repeat(burst.as_bytes(), 64, round).0);
        echo_rate.push(echo.repeat(burst.as_bytes(), 64, round).0);
    }
    vec![
        Row::at_most("no-op request: p50", "µs", median(p50), median(echo_p50), 2.0),
        Row::at_least("no-op request: rate, 64 pipelined", "/s", median(rate), median(echo_rate), 0.5),
    ]
}

/// The raw limit: a thread that reads a line, parses it as JSON and answers in one write a read.
fn echo(stream: UnixStream) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    loop {
        let (answer, used) = {
            let Ok(buffer) = reader.fill_buf() else { return };
            let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { return };
            let mut answer = Vec::with_capacity(end + 1);
            for line in buffer[..=end].split_inclusive(|byte| *byte == b'\n') {
                let request: &serde_json::value::RawValue = serde_json::from_slice(line).unwrap();
                answer.extend_from_slice(request.get().as_bytes());
                answer.push(b'\n');
            }
            (answer, end + 1)
        };
        reader.consume(used);
        if writer.write_all(&answer).is_err() {
            return;
        }
    }
}

fn append_rows(options: &Options, daemon: &TestDaemon, directory: &Path) -> Vec<Row> {
    let round = Duration::from_millis(options.round_ms);
    let mut raw = RawStore::open(&directory.join("raw.db"));
    let body = body();
    let mut rows = Vec::new();
    for (clients, pipelined, least) in [(1, 1, None), (8, 16, Some(0.5)), (64, 16, Some(0.45))] {
        let (mut rate, mut p50, mut raw_rate, mut raw_p50) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for number in 0..=options.rounds {
            let ours = socket_appends(daemon, clients, pipelined, &body, round);
            let began = Instant::now();
            let mut times = Vec::new();
            while began.elapsed() < round {
                times.push(raw.append(clients * pipelined, &body) * 1e6);
            }
            let per_second = (times.len() * clients * pipelined) as f64 / began.elapsed().as_secs_f64();
            if number > 0 {
                rate.push(ours.0);
                p50.push(ours.1);
                raw_rate.push(per_second);
                raw_p50.push(median(times));
            }
        }
        rows.push(match least {
            None => Row::at_most("append over the socket, 1×1: p50", "µs", median(p50), median(raw_p50), 2.2),
            Some(least) => {
                let name = format!("append over the socket, {clients}×{pipelined}: rate");
                Row::at_least(name, "/s", median(rate), median(raw_rate), least)
            }
        });
    }
    rows.extend(last_events_rows(options, daemon, &raw, &directory.join("raw.db"), &body));
    rows
}

pub(super) fn new_session(daemon: &TestDaemon) -> String {
    let params = NewParams {
        agent_id: "bench".parse().unwrap(),
        session_key: None,
        title: None,
        scope: None,
        idempotency_key: None,
    };
    daemon.client().call::<New>(&params).unwrap().session_id.to_string()
}

pub(super) fn append_line(session_id: &str, body: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/append\",\"params\":{{\"session_id\":\"{session_id}\",\"events\":[{{\"kind\":\"message\",\"role\":\"user\",\"body\":{body}}}]}}}}\n"
    )
}

/// Returns appends a second over all clients, and the median time of one client's exchange in microseconds.
fn socket_appends(daemon: &TestDaemon, clients: usize, pipelined: usize, body: &str, round: Duration) -> (f64, f64) {
    let socket = daemon.root.socket();
    let workers: Vec<_> = (0..clients)
        .map(|_| {
            let burst = append_line(&new_session(daemon), body).repeat(pipelined);
            let mut lines = Lines::introduced(&socket);
            thread::spawn(move || lines.repeat(burst.as_bytes(), pipelined, round))
        })
        .collect();
    let results: Vec<(f64, f64)> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    (results.iter().map(|result| result.0).sum(), median(results.iter().map(|result| result.1).collect()))
}

/// Reads 100 events behind a position.
pub(super) fn events_line(session_id: &str, after_seq: usize) -> String {
    let read = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/events",
        "params": { "session_id": session_id, "after_seq": after_seq, "limit": 100 } });
    format!("{read}\n")
}

fn last_events_rows(options: &Options, daemon: &TestDaemon, raw: &RawStore, raw_path: &Path, body: &str) -> Vec<Row> {
    let session_id = new_session(daemon);
    let mut lines = Lines::introduced(&daemon.root.socket());
    let burst = append_line(&session_id, body).repeat(100);
    for _ in 0..100 {
        lines.exchange(burst.as_bytes(), 100);
    }
    let read = events_line(&session_id, 9_900);
    let mut fetch_all = FetchAll::open(raw_path);
    let (mut ours, mut raws, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds * 50 {
        ours.push(lines.timed_us(&read));
        raws.push(raw.last_100() * 1e6);
        fetched.push(fetch_all.last_100(raw.last_seq()) * 1e6);
    }
    let over = AtomicBool::new(false);
    let mut busy = Vec::new();
    thread::scope(|scope| {
        let line = append_line(&new_session(daemon), body);
        let mut writer = Lines::introduced(&daemon.root.socket());
        let over = &over;
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                writer.exchange(line.as_bytes(), 1);
            }
        });
        for _ in 0..options.rounds * 50 {
            busy.push(lines.timed_us(&read));
        }
        over.store(true, Ordering::Relaxed);
    });
    let (ours, name) = (median(ours), "last 100 events over the socket: p50");
    vec![
        Row::at_most(name, "µs", ours, median(raws), 4.0),
        Row::at_most(format!("{name} against fetch_all"), "µs", ours, median(fetched), 0.9),
        Row::at_most(format!("{name} while a client appends"), "µs", median(busy), ours, 1.3),
    ]
}

/// The driver's obvious way: every row fetched and made into untyped JSON.
struct FetchAll {
    runtime: tokio::runtime::Runtime,
    connection: sqlx::SqliteConnection,
}

impl FetchAll {
    fn open(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let connection = runtime.block_on(SqliteConnectOptions::new().filename(path).connect()).unwrap();
        Self { runtime, connection }
    }

    /// Reads the last 100 events and writes them out; returns how long it took, in seconds.
    fn last_100(&mut self, last_seq: i64) -> f64 {
        let began = Instant::now();
        let query = sqlx::query(
            "SELECT seq, event_id, kind, role, created_at_ms, body_json FROM transcript_events
             WHERE session = 1 AND seq > ?1 ORDER BY seq LIMIT 100",
        );
        let rows = self.runtime.block_on(query.bind(last_seq - 100).fetch_all(&mut self.connection)).unwrap();
        let events: Vec<serde_json::Value> = rows
            .iter()
            .map(|row| {
                let body: serde_json::Value = serde_json::from_str(row.get("body_json")).unwrap();
                json!({ "seq": row.get::<i64, _>("seq"), "kind": row.get::<String, _>("kind"),
                    "role": row.get::<Option<String>, _>("role"), "body": body })
            })
            .collect();
        assert_eq!(events.len(), 100);
        assert!(serde_json::to_string(&events).unwrap().len() > 100);
        began.elapsed().as_secs_f64()
    }
}
