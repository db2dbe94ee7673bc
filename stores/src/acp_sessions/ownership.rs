//! Whose session a session is: what decides who sees it. Written once, when it is made.

use std::collections::HashMap;

use holdfast_protocol::ids::{AgentAlias, SessionId};
use serde_json::json;
use sqlx::SqliteConnection;

use super::ROLE;
use super::row::AcpSessionRowId;
use crate::kit::StoreError;
use crate::kit::error::InStore;

/// Whose session a session is. Keys are session ids as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The session itself.
    pub session_key: String,
    /// Its agent.
    pub agent_id: AgentAlias,
    /// The session that owns it; itself when the owner of the install asked for it.
    pub owner_session_key: Option<String>,
    /// The session that asked for it.
    pub spawned_by: Option<String>,
    /// The session it is a child of.
    pub parent_session_key: Option<String>,
    /// All sessions above it, the outermost first.
    pub ancestor_session_keys: Vec<String>,
}

/// A row as SQLite has it.
struct RawOwnership {
    id: i64,
    session_id: String,
    agent_id: String,
    owner_session_key: Option<String>,
    spawned_by: Option<String>,
    parent_session_key: Option<String>,
    ancestor_session_keys: String,
}

impl RawOwnership {
    fn into_ownership(self, action: &'static str) -> Result<Ownership, StoreError> {
        let bad = |problem: String| StoreError::Row { store: ROLE, action, problem };
        Ok(Ownership {
            agent_id: self.agent_id.parse().map_err(|error| bad(format!("agent_id: {error}")))?,
            ancestor_session_keys: serde_json::from_str(&self.ancestor_session_keys)
                .map_err(|error| bad(format!("ancestor_session_keys: {error}")))?,
            session_key: self.session_id,
            owner_session_key: self.owner_session_key,
            spawned_by: self.spawned_by,
            parent_session_key: self.parent_session_key,
        })
    }
}

/// Says whose a new session is, in the transaction that makes it: `owner` is the session that asked for it, whose own
/// ancestors are read from its row. One that the owner of the install asked for is its own.
pub(super) async fn ownership_set(
    writer: &mut SqliteConnection,
    session_id: SessionId,
    owner: Option<&str>,
) -> Result<(), StoreError> {
    let session_id = session_id.to_string();
    // An owner of which no row is left counts as one without ancestors.
    sqlx::query!(
        "UPDATE acp_session SET owner_session_key = coalesce(?2, session_id), spawned_by = ?2, parent_session_key = ?2,
            ancestor_session_keys = CASE WHEN ?2 IS NULL THEN '[]' ELSE json_insert(
                coalesce((SELECT parent.ancestor_session_keys FROM acp_session AS parent WHERE parent.session_id = ?2), '[]'),
                '$[#]', ?2) END
         WHERE session_id = ?1",
        session_id,
        owner
    )
    .execute(writer)
    .await
    .in_store(ROLE, "say whose a session is")
    .map(drop)
}

/// Returns whose these sessions are; those that are not there are left out.
///
/// # Errors
/// When the store can't be read.
pub async fn ownership_list(
    connection: &mut SqliteConnection,
    sessions: &[AcpSessionRowId],
) -> Result<HashMap<AcpSessionRowId, Ownership>, StoreError> {
    const ACTION: &str = "read whose sessions are";
    let list = json!(sessions.iter().map(|session| session.0).collect::<Vec<_>>()).to_string();
    let rows = sqlx::query_as!(
        RawOwnership,
        r#"SELECT id AS "id!", session_id, agent_id, owner_session_key, spawned_by, parent_session_key, ancestor_session_keys
           FROM acp_session WHERE id IN (SELECT value FROM json_each(?1))"#,
        list
    )
    .fetch_all(connection)
    .await
    .in_store(ROLE, ACTION)?;
    rows.into_iter().map(|row| Ok((AcpSessionRowId(row.id), row.into_ownership(ACTION)?))).collect()
}
