//! Making and closing sessions.

use holdfast_protocol::ids::SessionId;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::ROLE;
use super::error::Refusal;
use super::row::{bad_row, uuid};
use super::types::{NewSession, SessionInserted, scope_name};
use crate::kit::error::InStore;
use crate::kit::idempotency::{IdempotencyTable, KeyedRequest, Seen};
use crate::kit::{BatchWork, StoreError};

/// Sessions to be made in one transaction.
pub(super) struct InsertWork<'a> {
    pub(super) idempotency: &'a IdempotencyTable,
    pub(super) now_ms: i64,
}

impl BatchWork for InsertWork<'_> {
    type Request = NewSession;
    type Answer = Result<SessionInserted, Refusal>;

    fn is_single_statement(&self, _: &[NewSession]) -> bool {
        false
    }

    async fn run_all(
        &mut self,
        writer: &mut SqliteConnection,
        requests: &[NewSession],
    ) -> Result<Vec<Self::Answer>, StoreError> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.run_one(writer, request).await?);
        }
        Ok(answers)
    }

    async fn run_one(
        &mut self,
        writer: &mut SqliteConnection,
        request: &NewSession,
    ) -> Result<Self::Answer, StoreError> {
        const ACTION: &str = "make a session";
        let keyed =
            request.request.as_ref().map(|(key, body_hash)| KeyedRequest { key, method: "session/new", body_hash });
        if let Some(keyed) = keyed {
            match self.idempotency.look_up(writer, keyed, self.now_ms).await? {
                Seen::Never => {}
                Seen::Conflict => return Ok(Err(Refusal::KeyReused { key: keyed.key.to_owned() })),
                Seen::Answered { result_json } => {
                    let id: Uuid =
                        serde_json::from_str(&result_json).map_err(|_| bad_row(ACTION, "result_json", &result_json))?;
                    return Ok(Ok(SessionInserted { session_id: SessionId(id), created: true }));
                }
            }
        }
        if let Some(key) = &request.session_key
            && let Some(session_id) = current_session(writer, request.agent_id.as_str(), key).await?
        {
            return Ok(Ok(SessionInserted { session_id, created: false }));
        }
        session_row_insert(writer, request, self.now_ms).await?;
        if let Some(keyed) = keyed {
            // An id always serialises.
            let result = serde_json::to_string(&request.session_id).unwrap_or_default();
            self.idempotency.record(writer, keyed, &result, self.now_ms).await?;
        }
        Ok(Ok(SessionInserted { session_id: request.session_id, created: true }))
    }
}

/// Returns the session that a route leads to, unless it is closed.
async fn current_session(
    writer: &mut SqliteConnection,
    agent_id: &str,
    session_key: &str,
) -> Result<Option<SessionId>, StoreError> {
    const ACTION: &str = "follow a session key";
    let row = sqlx::query!(
        "SELECT sessions.session_id FROM session_routes JOIN sessions ON sessions.id = session_routes.session
         WHERE session_routes.agent_id = ? AND session_routes.session_key = ? AND sessions.status <> 'closed'",
        agent_id,
        session_key
    )
    .fetch_optional(writer)
    .await
    .in_store(ROLE, ACTION)?;
    row.map(|row| uuid(ACTION, "session_id", &row.session_id).map(SessionId)).transpose()
}

async fn session_row_insert(
    writer: &mut SqliteConnection,
    request: &NewSession,
    now_ms: i64,
) -> Result<(), StoreError> {
    let session_id = request.session_id.0.as_bytes().as_slice();
    let agent_id = request.agent_id.as_str();
    let scope = scope_name(request.scope);
    let done = sqlx::query!(
        "INSERT INTO sessions (session_id, agent_id, session_key, scope, status, display_name, turn_state,
                               created_at_ms, updated_at_ms)
         VALUES (?, ?, ?, ?, 'active', ?, 'idle', ?, ?)",
        session_id,
        agent_id,
        request.session_key,
        scope,
        request.display_name,
        now_ms,
        now_ms
    )
    .execute(&mut *writer)
    .await
    .in_store(ROLE, "make a session")?;
    let Some(session_key) = &request.session_key else { return Ok(()) };
    let row = done.last_insert_rowid();
    sqlx::query!(
        "INSERT INTO session_routes (agent_id, session_key, session, updated_at_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT (agent_id, session_key)
         DO UPDATE SET session = excluded.session, updated_at_ms = excluded.updated_at_ms",
        agent_id,
        session_key,
        row,
        now_ms
    )
    .execute(writer)
    .await
    .in_store(ROLE, "lead a session key to its session")
    .map(|_| ())
}

/// Sessions to be closed in one transaction.
pub(super) struct CloseWork {
    pub(super) now_ms: i64,
}

impl BatchWork for CloseWork {
    type Request = SessionId;
    type Answer = Result<bool, Refusal>;

    fn is_single_statement(&self, _: &[SessionId]) -> bool {
        false
    }

    async fn run_all(
        &mut self,
        writer: &mut SqliteConnection,
        requests: &[SessionId],
    ) -> Result<Vec<Self::Answer>, StoreError> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.run_one(writer, request).await?);
        }
        Ok(answers)
    }

    async fn run_one(
        &mut self,
        writer: &mut SqliteConnection,
        request: &SessionId,
    ) -> Result<Self::Answer, StoreError> {
        const ACTION: &str = "close a session";
        let session_id = request.0.as_bytes().as_slice();
        let done = sqlx::query!(
            "UPDATE sessions SET status = 'closed', ended_at_ms = ?, updated_at_ms = max(updated_at_ms, ?)
             WHERE session_id = ? AND status <> 'closed'",
            self.now_ms,
            self.now_ms,
            session_id
        )
        .execute(&mut *writer)
        .await
        .in_store(ROLE, ACTION)?;
        if done.rows_affected() > 0 {
            return Ok(Ok(true));
        }
        let found = sqlx::query!("SELECT id AS \"id!\" FROM sessions WHERE session_id = ?", session_id)
            .fetch_optional(writer)
            .await
            .in_store(ROLE, ACTION)?;
        Ok(match found {
            Some(_) => Ok(false),
            None => Err(Refusal::NotFound { session_id: *request }),
        })
    }
}
