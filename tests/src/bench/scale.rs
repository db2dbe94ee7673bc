//! A store with much in it: listing against the raw query, and how the hot operations grow from 10 k to 1 M events.

use std::path::Path;
use std::time::Instant;

use holdfast_protocol::methods::session::{List, ListParams};
use rusqlite::Connection;

use super::report::Row;
use super::socket::{Lines, append_line, events_line};
use super::{Options, median};
use crate::daemon::{DaemonOptions, TestDaemon};

/// Sessions of the large store.
const SESSIONS: usize = 1_000;

pub(super) fn rows(options: &Options) -> Vec<Row> {
    // A quick run has a tenth of the events; the number of sessions to list is the same.
    let each = if options.rounds < 5 { 100 } else { 1_000 };
    let (mut small, mut large) = (Filled::new(10_000 / each, each), Filled::new(SESSIONS, each));
    let mut rows = large.list_rows(options);
    for (what, measure) in [
        ("append", Filled::append_us as fn(&mut Filled) -> f64),
        ("last 100 events", Filled::tail_us),
        ("first page of the list", Filled::page_us),
    ] {
        let (mut of_small, mut of_large) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds * 40 {
            of_small.push(measure(&mut small));
            of_large.push(measure(&mut large));
        }
        let name = format!("{what} at {} k events against 10 k: p50", SESSIONS * each / 1_000);
        rows.push(Row::at_most(name, "µs", median(of_large), median(of_small), 1.3));
    }
    rows
}

/// A daemon whose store was filled before it started.
struct Filled {
    daemon: TestDaemon,
    lines: Lines,
    session_id: String,
    /// Events of each session.
    each: usize,
}

impl Filled {
    fn new(sessions: usize, each: usize) -> Self {
        let mut daemon = TestDaemon::prepare(DaemonOptions::default());
        daemon.boot();
        daemon.term();
        fill(&daemon.root.sessions_database(), sessions, each);
        daemon.boot();
        let lines = Lines::introduced(&daemon.root.socket());
        let first = daemon.client().call::<List>(&ListParams { limit: Some(1), ..ListParams::default() }).unwrap();
        let session_id = first.sessions[0].session_id.to_string();
        Self { daemon, lines, session_id, each }
    }

    fn list_rows(&mut self, options: &Options) -> Vec<Row> {
        let connection = Connection::open(self.daemon.root.sessions_database()).unwrap();
        let counters = "SELECT session_id, agent_id, scope, status, turn_state, message_count, last_seq, created_at_ms,
                        updated_at_ms FROM sessions ORDER BY updated_at_ms DESC, id DESC LIMIT 1000";
        let join =
            "SELECT s.session_id, count(*) FROM sessions s JOIN transcript_events e ON e.session = s.id GROUP BY s.id";
        let read = |sql: &str| {
            let began = Instant::now();
            let mut statement = connection.prepare_cached(sql).unwrap();
            let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
            assert_eq!(rows.map(Result::unwrap).count(), SESSIONS);
            began.elapsed().as_secs_f64() * 1e3
        };
        let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\",\"params\":{\"limit\":1000}}\n";
        let (mut ours, mut raws, mut joins) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds * 4 {
            ours.push(self.lines.timed_us(line) / 1e3);
            raws.push(read(counters));
            joins.push(read(join));
        }
        let name = format!("list {SESSIONS} sessions of {} k events", SESSIONS * self.each / 1_000);
        vec![
            Row::at_most(name.clone(), "ms", median(ours.clone()), median(raws), 5.0),
            Row::at_most(format!("{name} against counting"), "ms", median(ours), median(joins), 0.05),
        ]
    }

    fn append_us(&mut self) -> f64 {
        self.lines.timed_us(&append_line(&self.session_id, "{\"text\":\"one more\"}"))
    }

    fn tail_us(&mut self) -> f64 {
        self.lines.timed_us(&events_line(&self.session_id, self.each - 100))
    }

    fn page_us(&mut self) -> f64 {
        self.lines.timed_us("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\",\"params\":{\"limit\":10}}\n")
    }
}

fn fill(database: &Path, sessions: usize, each: usize) {
    let connection = Connection::open(database).unwrap();
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <";
    connection
        .execute_batch(&format!(
            "PRAGMA foreign_keys = ON; PRAGMA synchronous = OFF; BEGIN;
             INSERT INTO sessions (session_id, agent_id, scope, status, turn_state, created_at_ms, updated_at_ms)
             {numbers} {sessions}) SELECT randomblob(16), 'bench', 'main', 'active', 'idle', i, i FROM n;
             INSERT INTO transcript_events (session, seq, event_id, kind, role, created_at_ms, body_json)
             {numbers} {each}) SELECT s.id, n.i, randomblob(16), 'message', 'user', s.id, '{{\"text\":\"x\"}}'
             FROM sessions s CROSS JOIN n ORDER BY s.id, n.i;
             COMMIT; PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
}
