//! The raw baseline of stores: a prepared loop on the same schema, without actors, sockets or a driver in between.

use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, params};

/// About what a message of a conversation weighs.
pub(super) fn body() -> String {
    format!("{{\"text\":\"{}\"}}", "x".repeat(388))
}

/// A database with the real schema, one session in it, opened as the daemon opens its own.
pub(super) struct RawStore {
    connection: Connection,
    seq: i64,
}

impl RawStore {
    pub(super) fn open(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA wal_autocheckpoint=4000;",
            )
            .unwrap();
        connection
            .execute_batch(include_str!("../../../migrations/sessions/20261130000200_sessions_and_transcripts.sql"))
            .unwrap();
        connection
            .execute(
                "INSERT INTO sessions (session_id, agent_id, scope, status, turn_state, created_at_ms, updated_at_ms)
                 VALUES (?1, 'bench', 'main', 'active', 'idle', 0, 0)",
                params![[7u8; 16].as_slice()],
            )
            .unwrap();
        Self { connection, seq: 0 }
    }

    /// Appends `rows` events in one transaction; returns how long it took, in seconds.
    pub(super) fn append(&mut self, rows: usize, body: &str) -> f64 {
        let began = Instant::now();
        self.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        {
            let mut insert = self
                .connection
                .prepare_cached(
                    "INSERT INTO transcript_events (session, seq, event_id, kind, role, created_at_ms, body_json)
                     VALUES (1, ?1, ?2, 'message', 'user', 0, ?3)",
                )
                .unwrap();
            for _ in 0..rows {
                self.seq += 1;
                insert.execute(params![self.seq, [9u8; 16].as_slice(), body]).unwrap();
            }
        }
        self.connection.execute_batch("COMMIT").unwrap();
        began.elapsed().as_secs_f64()
    }

    /// Returns the position of the last event.
    pub(super) fn last_seq(&self) -> i64 {
        self.seq
    }

    /// Reads the last 100 events; returns how long it took, in seconds.
    pub(super) fn last_100(&self) -> f64 {
        let began = Instant::now();
        let mut select = self
            .connection
            .prepare_cached(
                "SELECT seq, event_id, kind, role, created_at_ms, body_json FROM transcript_events
                 WHERE session = 1 AND seq > ?1 ORDER BY seq LIMIT 100",
            )
            .unwrap();
        let rows = select.query_map([self.seq - 100], |row| row.get::<_, String>(5)).unwrap();
        assert_eq!(rows.map(|body| body.unwrap().len()).filter(|length| *length > 0).count(), 100);
        began.elapsed().as_secs_f64()
    }
}
