//! What the store remembers of the sessions it appends to, so that an append needs no read.
//!
//! Only this store writes the file, so what it remembers of committed appends stays true. After anything that did not
//! go as planned it forgets all and reads again.

use std::collections::{HashMap, HashSet};

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::SessionStatus;
use sqlx::SqliteConnection;

use super::ROLE;
use super::row::{bad_row, uuid};
use super::types::{Append, status_named};
use crate::kit::StoreError;
use crate::kit::error::InStore;

const ACTION: &str = "read the ends of sessions";
/// Sessions remembered at most: about 100 bytes each.
const HEADS_MAX: usize = 8192;

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The row in `sessions`.
    pub(super) row: i64,
    /// The position of the last event.
    pub(super) last_seq: i64,
    /// Whether it takes events.
    pub(super) open: bool,
}

/// The ends of the sessions in use.
#[derive(Debug, Default)]
pub(super) struct Heads {
    known: HashMap<SessionId, Head>,
}

impl Heads {
    /// Reads what is not known yet of the sessions that are appended to, with one statement.
    ///
    /// Sessions that do not exist stay unknown.
    pub(super) async fn load(
        &mut self,
        connection: &mut SqliteConnection,
        requests: &[Append],
    ) -> Result<(), StoreError> {
        let unknown: HashSet<SessionId> = requests
            .iter()
            .map(|request| request.session_id)
            .filter(|session_id| !self.known.contains_key(session_id))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        if self.known.len() + unknown.len() > HEADS_MAX {
            return self.reload(connection, requests.iter().map(|request| request.session_id).collect()).await;
        }
        self.read(connection, unknown).await
    }

    /// Forgets all, then reads these.
    async fn reload(
        &mut self,
        connection: &mut SqliteConnection,
        sessions: HashSet<SessionId>,
    ) -> Result<(), StoreError> {
        self.forget();
        self.read(connection, sessions).await
    }

    async fn read(
        &mut self,
        connection: &mut SqliteConnection,
        sessions: HashSet<SessionId>,
    ) -> Result<(), StoreError> {
        // A list of any length in one variable, so the text is always the same.
        let list: Vec<String> = sessions.iter().map(|session_id| session_id.0.simple().to_string()).collect();
        // Hexadecimal digits always serialise.
        let list = serde_json::to_string(&list).unwrap_or_default();
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", session_id, last_seq, status FROM sessions
               WHERE session_id IN (SELECT unhex(value) FROM json_each(?))"#,
            list
        )
        .fetch_all(connection)
        .await
        .in_store(ROLE, ACTION)?;
        for row in rows {
            let status = status_named(&row.status).ok_or_else(|| bad_row(ACTION, "status", &row.status))?;
            let head = Head { row: row.id, last_seq: row.last_seq, open: status != SessionStatus::Closed };
            self.known.insert(SessionId(uuid(ACTION, "session_id", &row.session_id)?), head);
        }
        Ok(())
    }

    /// Reads one session if it is not known.
    pub(super) async fn find(
        &mut self,
        connection: &mut SqliteConnection,
        session_id: SessionId,
    ) -> Result<Option<Head>, StoreError> {
        if !self.known.contains_key(&session_id) {
            self.read(connection, HashSet::from([session_id])).await?;
        }
        Ok(self.get(session_id))
    }

    /// Returns what is known of a session.
    pub(super) fn get(&self, session_id: SessionId) -> Option<Head> {
        self.known.get(&session_id).copied()
    }

    /// Notes the committed end of a session.
    pub(super) fn advance(&mut self, session_id: SessionId, last_seq: i64) {
        if let Some(head) = self.known.get_mut(&session_id) {
            head.last_seq = last_seq;
        }
    }

    /// Forgets all.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}
