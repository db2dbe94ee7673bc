//! What reads. Every page is bounded and found by key, never by offset.

use holdfast_protocol::ids::{AgentAlias, SessionId, TurnId};
use sqlx::SqliteConnection;

use super::row::{AcpSessionRow, AcpSessionRowId, AcpSessionStatus, AcpUpdate, TurnRow, TurnState};
use super::{ROLE, unchecked};
use crate::kit::StoreError;
use crate::kit::error::InStore;

/// The most rows of one page.
pub const PAGE_MAX: i64 = 1_000;

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Only this agent's.
    pub agent_id: Option<AgentAlias>,
    /// Only those in one of these states; empty means all but those that never came to be.
    pub statuses: Vec<AcpSessionStatus>,
    /// Only the one with this name.
    pub session_key: Option<String>,
    /// Only those whose id begins with this (hexadecimal digits; hyphens do not count).
    pub id_prefix: Option<String>,
    /// Only those working in this directory.
    pub cwd: Option<String>,
    /// Only those after this position, in the order of the list.
    pub after: Option<SessionPosition>,
    /// At most this many, up to [`PAGE_MAX`].
    pub limit: i64,
}

/// A position in a listing: newest change first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SessionPosition {
    /// When the session changed last, UTC milliseconds.
    pub updated_at_ms: i64,
    /// Its key inside the store.
    pub row_id: i64,
}

/// A session's row as SQLite has it.
pub(super) struct RawSession {
    pub(super) id: i64,
    pub(super) session_id: String,
    pub(super) agent_id: String,
    pub(super) agent_session_id: Option<String>,
    pub(super) session_key: Option<String>,
    pub(super) cwd: String,
    pub(super) new_params_json: String,
    pub(super) setup_json: Option<String>,
    pub(super) title: Option<String>,
    pub(super) status: String,
    pub(super) turn_state: String,
    pub(super) turn_count: i64,
    pub(super) update_count: i64,
    pub(super) owner_session_key: Option<String>,
    pub(super) created_at_ms: i64,
    pub(super) updated_at_ms: i64,
}

impl RawSession {
    pub(super) fn into_row(self, action: &'static str) -> Result<AcpSessionRow, StoreError> {
        let bad = |problem: String| StoreError::Row { store: ROLE, action, problem };
        Ok(AcpSessionRow {
            row_id: AcpSessionRowId(self.id),
            session_id: self.session_id.parse().map_err(|error| bad(format!("session_id: {error}")))?,
            agent_id: self.agent_id.parse().map_err(|error| bad(format!("agent_id: {error}")))?,
            agent_session_id: self.agent_session_id,
            session_key: self.session_key,
            cwd: self.cwd,
            new_params: self.new_params_json,
            setup: self.setup_json,
            title: self.title,
            status: AcpSessionStatus::from_name(&self.status)
                .ok_or_else(|| bad(format!("status: `{}`", self.status)))?,
            turn_state: TurnState::from_name(&self.turn_state)
                .ok_or_else(|| bad(format!("turn_state: `{}`", self.turn_state)))?,
            turn_count: self.turn_count,
            update_count: self.update_count,
            owner_session_key: self.owner_session_key,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
        })
    }
}

/// Returns a session, if there is one with that id.
///
/// # Errors
/// When the store can't be read.
pub async fn session_get(
    connection: &mut SqliteConnection,
    session_id: SessionId,
) -> Result<Option<AcpSessionRow>, StoreError> {
    const ACTION: &str = "read a session";
    let session_id = session_id.to_string();
    sqlx::query_as!(
        RawSession,
        "SELECT id, session_id, agent_id, agent_session_id, session_key, cwd, new_params_json, setup_json, title, status,
            turn_state, turn_count, update_count, owner_session_key, created_at_ms, updated_at_ms
         FROM acp_session WHERE session_id = ?1",
        session_id
    )
    .fetch_optional(connection)
    .await
    .in_store(ROLE, ACTION)?
    .map(|raw| raw.into_row(ACTION))
    .transpose()
}

/// Returns the session an agent has under a name, if any.
///
/// # Errors
/// When the store can't be read.
pub async fn session_find_by_key(
    connection: &mut SqliteConnection,
    agent: &AgentAlias,
    session_key: &str,
) -> Result<Option<AcpSessionRow>, StoreError> {
    const ACTION: &str = "find a session by its name";
    let agent = agent.as_str();
    sqlx::query_as!(
        RawSession,
        "SELECT id, session_id, agent_id, agent_session_id, session_key, cwd, new_params_json, setup_json, title, status,
            turn_state, turn_count, update_count, owner_session_key, created_at_ms, updated_at_ms
         FROM acp_session WHERE agent_id = ?1 AND session_key = ?2",
        agent,
        session_key
    )
    .fetch_optional(connection)
    .await
    .in_store(ROLE, ACTION)?
    .map(|raw| raw.into_row(ACTION))
    .transpose()
}

/// Returns sessions, newest change first.
///
/// # Errors
/// When the store can't be read.
pub async fn session_list(
    connection: &mut SqliteConnection,
    filter: &SessionFilter,
) -> Result<Vec<AcpSessionRow>, StoreError> {
    const ACTION: &str = "list sessions";
    let rows = unchecked::session_list(connection, filter).await.in_store(ROLE, ACTION)?;
    rows.into_iter().map(|raw| raw.into_row(ACTION)).collect()
}

/// Returns updates after a position, in order, `limit` at most.
///
/// # Errors
/// When the store can't be read.
pub async fn update_page(
    connection: &mut SqliteConnection,
    session: AcpSessionRowId,
    after_seq: i64,
    limit: i64,
) -> Result<Vec<AcpUpdate>, StoreError> {
    let limit = limit.clamp(1, PAGE_MAX);
    sqlx::query_as!(
        AcpUpdate,
        "SELECT seq, turn_number, kind, method, params_json AS params, created_at_ms FROM acp_update
         WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        session.0,
        after_seq,
        limit
    )
    .fetch_all(connection)
    .await
    .in_store(ROLE, "read updates")
}

/// Returns all turns of a session, in order.
///
/// # Errors
/// When the store can't be read.
pub async fn turn_list(
    connection: &mut SqliteConnection,
    session: AcpSessionRowId,
) -> Result<Vec<TurnRow>, StoreError> {
    const ACTION: &str = "read turns";
    let rows = sqlx::query!(
        "SELECT number, turn_id, state, stop_reason, result_json, error, first_seq, started_at_ms, ended_at_ms
         FROM acp_turn WHERE session = ?1 ORDER BY number",
        session.0
    )
    .fetch_all(connection)
    .await
    .in_store(ROLE, ACTION)?;
    rows.into_iter()
        .map(|row| {
            let bad = |error| StoreError::Row { store: ROLE, action: ACTION, problem: format!("turn_id: {error}") };
            Ok(TurnRow {
                number: row.number,
                turn_id: row.turn_id.parse::<TurnId>().map_err(bad)?,
                state: row.state,
                stop_reason: row.stop_reason,
                result: row.result_json,
                error: row.error,
                first_seq: row.first_seq,
                started_at_ms: row.started_at_ms,
                ended_at_ms: row.ended_at_ms,
            })
        })
        .collect()
}

/// Returns how many sessions of each agent have a turn that runs; agents without one are left out.
///
/// # Errors
/// When the store can't be read.
pub async fn running_by_agent(connection: &mut SqliteConnection) -> Result<Vec<(String, i64)>, StoreError> {
    let rows = sqlx::query!(
        "SELECT agent_id, count(*) AS turns FROM acp_session WHERE turn_state = 'running' GROUP BY agent_id"
    )
    .fetch_all(connection)
    .await
    .in_store(ROLE, "count running turns")?;
    Ok(rows.into_iter().map(|row| (row.agent_id, row.turns)).collect())
}
