//! The SQL of this store that is not checked at compile time, with the reason for each.

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};

use super::read::{PAGE_MAX, RawSession, SessionFilter};

/// Lists sessions. Unchecked because its filters are optional: as parameters that may be null they would keep SQLite
/// from using the index.
pub(super) async fn session_list(
    connection: &mut SqliteConnection,
    filter: &SessionFilter,
) -> Result<Vec<RawSession>, sqlx::Error> {
    let mut query: QueryBuilder<Sqlite> = QueryBuilder::new(
        "SELECT id, session_id, agent_id, agent_session_id, session_key, cwd, new_params_json, setup_json, title, status, \
         turn_state, turn_count, update_count, owner_session_key, created_at_ms, updated_at_ms \
         FROM acp_session WHERE status ",
    );
    if filter.statuses.is_empty() {
        query.push("<> 'failed'");
    } else {
        query.push("IN (");
        let mut list = query.separated(", ");
        for status in &filter.statuses {
            list.push_bind(status.name());
        }
        query.push(")");
    }
    if let Some(key) = &filter.session_key {
        query.push(" AND session_key = ").push_bind(key.clone());
    }
    if let Some(prefix) = &filter.id_prefix {
        // Ids are stored with hyphens; digits alone are what people type.
        let digits: String = prefix.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
        query.push(" AND substr(replace(session_id, '-', ''), 1, ").push_bind(i64::try_from(digits.len()).unwrap_or(0));
        query.push(") = ").push_bind(digits);
    }
    if let Some(agent) = &filter.agent_id {
        query.push(" AND agent_id = ").push_bind(agent.as_str().to_owned());
    }
    if let Some(cwd) = &filter.cwd {
        query.push(" AND cwd = ").push_bind(cwd.clone());
    }
    if let Some(after) = &filter.after {
        query.push(" AND (updated_at_ms, id) < (").push_bind(after.updated_at_ms);
        query.push(", ").push_bind(after.row_id).push(")");
    }
    query.push(" ORDER BY updated_at_ms DESC, id DESC LIMIT ").push_bind(filter.limit.clamp(1, PAGE_MAX));
    let rows = query.build().fetch_all(connection).await?;
    rows.iter().map(raw_session).collect()
}

fn raw_session(row: &SqliteRow) -> Result<RawSession, sqlx::Error> {
    Ok(RawSession {
        id: row.try_get("id")?,
        session_id: row.try_get("session_id")?,
        agent_id: row.try_get("agent_id")?,
        agent_session_id: row.try_get("agent_session_id")?,
        session_key: row.try_get("session_key")?,
        cwd: row.try_get("cwd")?,
        new_params_json: row.try_get("new_params_json")?,
        setup_json: row.try_get("setup_json")?,
        title: row.try_get("title")?,
        status: row.try_get("status")?,
        turn_state: row.try_get("turn_state")?,
        turn_count: row.try_get("turn_count")?,
        update_count: row.try_get("update_count")?,
        owner_session_key: row.try_get("owner_session_key")?,
        created_at_ms: row.try_get("created_at_ms")?,
        updated_at_ms: row.try_get("updated_at_ms")?,
    })
}
