//! What writes: new sessions, and changes of many sessions in few statements.

use std::sync::Arc;

use serde_json::json;
use sqlx::SqliteConnection;

use super::ROLE;
use super::ownership::ownership_set;
use super::read::session_get;
use super::row::{
    AcpSessionRow, AcpSessionRowId, NewAcpSession, RowChange, SessionChange, TurnBegin, TurnEnd, TurnState,
};
use crate::kit::error::InStore;
use crate::kit::row_insert::{RowInsert, rows_insert};
use crate::kit::{BatchWork, StoreError};
use crate::row_insert;

row_insert! {
    /// An update as it goes into its table. One that is there already is left as it is.
    pub(super) struct UpdateInsert<'a> {
        session: i64,
        seq: i64,
        turn_number: Option<i64>,
        kind: &'a str,
        method: Option<&'a str>,
        params_json: &'a str,
        created_at_ms: i64,
    }
    store: ROLE,
    action: "append updates",
    sql: "INSERT INTO acp_update (session, seq, turn_number, kind, method, params_json, created_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session, seq) DO NOTHING",
}

/// Changes of sessions.
pub(super) struct ChangeWork;

impl BatchWork for ChangeWork {
    type Request = Arc<SessionChange>;
    type Answer = ();

    fn is_single_statement(&self, _requests: &[Arc<SessionChange>]) -> bool {
        false
    }

    async fn run_all<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        requests: &'a [Arc<SessionChange>],
    ) -> Result<Vec<()>, StoreError> {
        for change in requests {
            if let Some(begin) = &change.begin {
                turn_begin(writer, change.row_id, begin, change.at_ms).await?;
            }
        }
        let rows: Vec<UpdateInsert<'_>> = requests.iter().flat_map(|change| updates_of(change)).collect();
        match rows.as_slice() {
            [] => {}
            [row] => _ = row.insert_one(writer).await?,
            rows => _ = rows_insert(writer, rows).await?,
        }
        for change in requests {
            if let Some(end) = &change.end {
                turn_end(writer, change.row_id, end, change.at_ms).await?;
            }
            if !change.row.is_empty() {
                row_change(writer, change.row_id, &change.row, change.at_ms).await?;
            }
        }
        counters_advance(writer, requests).await?;
        Ok(vec![(); requests.len()])
    }

    async fn run_one<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        request: &'a Arc<SessionChange>,
    ) -> Result<(), StoreError> {
        self.run_all(writer, std::slice::from_ref(request)).await.map(drop)
    }
}

fn updates_of(change: &SessionChange) -> impl Iterator<Item = UpdateInsert<'_>> {
    change.updates.iter().map(|update| UpdateInsert {
        session: change.row_id.0,
        seq: update.seq,
        turn_number: update.turn_number,
        kind: &update.kind,
        method: update.method.as_deref(),
        params_json: &update.params,
        created_at_ms: update.created_at_ms,
    })
}

/// One statement for all sessions of the batch, whatever their number.
async fn counters_advance(writer: &mut SqliteConnection, changes: &[Arc<SessionChange>]) -> Result<(), StoreError> {
    let last = |change: &Arc<SessionChange>| change.updates.last().map_or(0, |update| update.seq);
    let list: Vec<_> = changes
        .iter()
        .map(|change| json!({ "session": change.row_id.0, "seq": last(change), "at_ms": change.at_ms }))
        .collect();
    let list = serde_json::Value::Array(list).to_string();
    sqlx::query!(
        "UPDATE acp_session SET update_count = max(update_count, change.seq), updated_at_ms = max(updated_at_ms, change.at_ms)
         FROM (SELECT value ->> 'session' AS session, max(value ->> 'seq') AS seq, max(value ->> 'at_ms') AS at_ms
               FROM json_each(?1) GROUP BY 1) AS change
         WHERE acp_session.id = change.session",
        list
    )
    .execute(writer)
    .await
    .in_store(ROLE, "count updates")
    .map(drop)
}

async fn turn_begin(
    writer: &mut SqliteConnection,
    session: AcpSessionRowId,
    begin: &TurnBegin,
    at_ms: i64,
) -> Result<(), StoreError> {
    let turn_id = begin.turn_id.to_string();
    sqlx::query!(
        "INSERT INTO acp_turn (session, number, turn_id, state, prompt_json, boot_id, first_seq, started_at_ms)
         VALUES (?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        session.0,
        begin.number,
        turn_id,
        begin.prompt,
        begin.boot_id,
        begin.first_seq,
        at_ms
    )
    .execute(&mut *writer)
    .await
    .in_store(ROLE, "begin a turn")?;
    sqlx::query!(
        "UPDATE acp_session SET turn_state = 'running', turn_count = max(turn_count, ?2) WHERE id = ?1",
        session.0,
        begin.number
    )
    .execute(writer)
    .await
    .in_store(ROLE, "begin a turn")
    .map(drop)
}

async fn turn_end(
    writer: &mut SqliteConnection,
    session: AcpSessionRowId,
    end: &TurnEnd,
    at_ms: i64,
) -> Result<(), StoreError> {
    let state = end.outcome.name();
    let ended = sqlx::query!(
        "UPDATE acp_turn SET state = ?3, stop_reason = ?4, result_json = ?5, error = ?6, ended_at_ms = ?7
         WHERE session = ?1 AND number = ?2 AND state = 'running'",
        session.0,
        end.number,
        state,
        end.stop_reason,
        end.result,
        end.error,
        at_ms
    )
    .execute(&mut *writer)
    .await
    .in_store(ROLE, "end a turn")?;
    if ended.rows_affected() == 0 {
        // Sent again, or a turn whose beginning was refused: the session's state is that of its turns already.
        return Ok(());
    }
    turn_state_set(writer, session, end.outcome.turn_state()).await
}

async fn turn_state_set(
    writer: &mut SqliteConnection,
    session: AcpSessionRowId,
    state: TurnState,
) -> Result<(), StoreError> {
    let state = state.name();
    sqlx::query!("UPDATE acp_session SET turn_state = ?2 WHERE id = ?1", session.0, state)
        .execute(writer)
        .await
        .in_store(ROLE, "set the turn state")
        .map(drop)
}

async fn row_change(
    writer: &mut SqliteConnection,
    session: AcpSessionRowId,
    change: &RowChange,
    at_ms: i64,
) -> Result<(), StoreError> {
    let status = change.status.map(|status| status.name());
    sqlx::query!(
        "UPDATE acp_session SET
            agent_session_id = coalesce(?2, agent_session_id),
            setup_json = coalesce(?3, setup_json),
            title = coalesce(?4, title),
            status = coalesce(?5, status),
            closed_at_ms = CASE ?5 WHEN 'closed' THEN ?6 WHEN 'active' THEN NULL ELSE closed_at_ms END
         WHERE id = ?1",
        session.0,
        change.agent_session_id,
        change.setup,
        change.title,
        status,
        at_ms
    )
    .execute(writer)
    .await
    .in_store(ROLE, "change a session")
    .map(drop)
}

/// New sessions.
pub(super) struct CreateWork;

impl BatchWork for CreateWork {
    type Request = NewAcpSession;
    type Answer = Option<AcpSessionRow>;

    fn is_single_statement(&self, _requests: &[NewAcpSession]) -> bool {
        false
    }

    async fn run_all<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        requests: &'a [NewAcpSession],
    ) -> Result<Vec<Option<AcpSessionRow>>, StoreError> {
        let mut rows = Vec::with_capacity(requests.len());
        for session in requests {
            rows.push(self.run_one(writer, session).await?);
        }
        Ok(rows)
    }

    async fn run_one<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        session: &'a NewAcpSession,
    ) -> Result<Option<AcpSessionRow>, StoreError> {
        let session_id = session.session_id.to_string();
        let agent_id = session.agent_id.as_str();
        let instance_id = session.instance_id.to_string();
        let made = sqlx::query!(
            "INSERT INTO acp_session (session_id, agent_id, session_key, cwd, new_params_json, status, turn_state,
                backend, instance_id, boot_id, created_at_ms, updated_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, 'starting', 'idle', 'acp', ?6, ?7, ?8, ?8)
             ON CONFLICT (agent_id, session_key) WHERE session_key IS NOT NULL DO NOTHING",
            session_id,
            agent_id,
            session.session_key,
            session.cwd,
            session.new_params,
            instance_id,
            session.boot_id,
            session.created_at_ms
        )
        .execute(&mut *writer)
        .await
        .in_store(ROLE, "make a session")?;
        if made.rows_affected() == 0 {
            return Ok(None);
        }
        ownership_set(writer, session.session_id, session.owner_session_key.as_deref()).await?;
        session_get(writer, session.session_id).await
    }
}
