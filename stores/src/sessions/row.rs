//! Rows as the database holds them, and their way to the types outside.

use holdfast_protocol::ids::{AgentAlias, EventId, SessionId, TurnId};
use uuid::Uuid;

use super::ROLE;
use super::types::{SessionRecord, StoredEvent, kind_named, role_named, scope_named, status_named, turn_state_named};
use crate::kit::StoreError;
use crate::row_insert;

row_insert! {
    /// A row of `transcript_events`.
    pub(super) struct EventRow<'a> {
        session: i64,
        seq: i64,
        event_id: &'a [u8],
        parent_event_id: Option<&'a [u8]>,
        kind: &'a str,
        role: Option<&'a str>,
        idempotency_key: Option<&'a str>,
        body_hash: Option<Vec<u8>>,
        request_key: Option<&'a str>,
        request_hash: Option<Vec<u8>>,
        created_at_ms: i64,
        body_json: &'a str,
    }
    store: ROLE,
    action: "append events",
    sql: "INSERT INTO transcript_events (session, seq, event_id, parent_event_id, kind, role, idempotency_key, \
          body_hash, request_key, request_hash, created_at_ms, body_json) \
          VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
}

/// Returns the error for a value that this program never writes.
pub(super) fn bad_row(action: &'static str, column: &str, value: impl std::fmt::Debug) -> StoreError {
    StoreError::Row { store: ROLE, action, problem: format!("{column} is {value:?}") }
}

/// Reads a 16-byte id.
pub(super) fn uuid(action: &'static str, column: &str, bytes: &[u8]) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| bad_row(action, column, bytes))
}

/// Reads a number that is never negative.
pub(super) fn count(action: &'static str, column: &str, value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| bad_row(action, column, value))
}

/// A row of `sessions`, as far as it is shown.
pub(super) struct SessionColumns {
    pub(super) id: i64,
    pub(super) session_id: Vec<u8>,
    pub(super) agent_id: String,
    pub(super) session_key: Option<String>,
    pub(super) scope: String,
    pub(super) status: String,
    pub(super) display_name: Option<String>,
    pub(super) model: Option<String>,
    pub(super) turn_state: String,
    pub(super) turn_id: Option<Vec<u8>>,
    pub(super) turn_count: i64,
    pub(super) message_count: i64,
    pub(super) last_seq: i64,
    pub(super) created_at_ms: i64,
    pub(super) updated_at_ms: i64,
}

impl SessionColumns {
    pub(super) fn into_record(self, action: &'static str) -> Result<SessionRecord, StoreError> {
        let agent_id = self.agent_id.parse::<AgentAlias>().map_err(|_| bad_row(action, "agent_id", &self.agent_id))?;
        Ok(SessionRecord {
            session_id: SessionId(uuid(action, "session_id", &self.session_id)?),
            agent_id,
            session_key: self.session_key,
            scope: scope_named(&self.scope).ok_or_else(|| bad_row(action, "scope", &self.scope))?,
            status: status_named(&self.status).ok_or_else(|| bad_row(action, "status", &self.status))?,
            display_name: self.display_name,
            model: self.model,
            turn_state: turn_state_named(&self.turn_state)
                .ok_or_else(|| bad_row(action, "turn_state", &self.turn_state))?,
            turn_id: match self.turn_id {
                Some(bytes) => Some(TurnId(uuid(action, "turn_id", &bytes)?)),
                None => None,
            },
            turn_count: count(action, "turn_count", self.turn_count)?,
            message_count: count(action, "message_count", self.message_count)?,
            last_seq: count(action, "last_seq", self.last_seq)?,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
        })
    }
}

/// A row of `transcript_events`, as far as it is shown.
pub(super) struct EventColumns {
    pub(super) seq: i64,
    pub(super) event_id: Vec<u8>,
    pub(super) parent_event_id: Option<Vec<u8>>,
    pub(super) kind: String,
    pub(super) role: Option<String>,
    pub(super) created_at_ms: i64,
    pub(super) body_json: String,
}

impl EventColumns {
    pub(super) fn into_event(self, action: &'static str) -> Result<StoredEvent, StoreError> {
        Ok(StoredEvent {
            seq: count(action, "seq", self.seq)?,
            event_id: EventId(uuid(action, "event_id", &self.event_id)?),
            parent_event_id: match self.parent_event_id {
                Some(bytes) => Some(EventId(uuid(action, "parent_event_id", &bytes)?)),
                None => None,
            },
            kind: kind_named(&self.kind).ok_or_else(|| bad_row(action, "kind", &self.kind))?,
            role: match self.role {
                Some(name) => Some(role_named(&name).ok_or_else(|| bad_row(action, "role", &name))?),
                None => None,
            },
            created_at_ms: self.created_at_ms,
            body_json: self.body_json,
        })
    }
}
