//! The registry of agents and what each answered to `initialize`.

use std::collections::BTreeMap;

use holdfast_protocol::ids::AgentAlias;
use sqlx::SqliteConnection;

use super::row::{AgentInitialize, AgentRow, ConfiguredAgent, not_understood};
use super::{ControlPlaneStore, STORE};
use crate::kit::error::InStore;
use crate::kit::row_insert::{RowInsert, rows_insert};
use crate::kit::{BatchWork, StoreError, run_batch};
use crate::row_insert;

row_insert! {
    /// An agent of the configuration in force.
    struct RegistryRow {
        alias: String,
        launch_hash: String,
        first_seen_at_ms: i64,
    }
    store: STORE,
    action: "register the agents",
    sql: "INSERT INTO agent_registry (alias, launch_hash, configured, first_seen_at_ms) VALUES (?, ?, 1, ?)
          ON CONFLICT (alias) DO UPDATE SET launch_hash = excluded.launch_hash, configured = 1",
}

/// Makes the registry follow one list of agents.
struct Follow {
    now_ms: i64,
}

impl BatchWork for Follow {
    type Request = Vec<ConfiguredAgent>;
    type Answer = ();

    fn is_single_statement(&self, _requests: &[Self::Request]) -> bool {
        false
    }

    async fn run_all(
        &mut self,
        writer: &mut SqliteConnection,
        requests: &[Self::Request],
    ) -> Result<Vec<()>, StoreError> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.run_one(writer, request).await?);
        }
        Ok(answers)
    }

    async fn run_one(&mut self, writer: &mut SqliteConnection, agents: &Self::Request) -> Result<(), StoreError> {
        const ACTION: &str = "register the agents";
        let rows: Vec<RegistryRow> = agents
            .iter()
            .map(|agent| RegistryRow {
                alias: agent.alias.to_string(),
                launch_hash: agent.launch_hash.clone(),
                first_seen_at_ms: self.now_ms,
            })
            .collect();
        sqlx::query!("UPDATE agent_registry SET configured = 0 WHERE configured = 1")
            .execute(&mut *writer)
            .await
            .in_store(STORE, ACTION)?;
        match rows.as_slice() {
            [only] => only.insert_one(writer).await?,
            rows => rows_insert(writer, rows).await?,
        };
        sqlx::query!("DELETE FROM agent_initialize WHERE launch_hash NOT IN (SELECT launch_hash FROM agent_registry)")
            .execute(&mut *writer)
            .await
            .in_store(STORE, ACTION)?;
        Ok(())
    }
}

impl ControlPlaneStore {
    /// Makes the registry follow the configuration, in one transaction: new agents get a row, changed ones their new hash,
    /// those that are gone are marked. Answers to `initialize` that no known launch needs any more are dropped. Writes
    /// nothing when the registry follows it already, as it does at most starts.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed, unless the outcome is unknown. The writer has then been replaced.
    pub async fn agents_follow(&mut self, agents: Vec<ConfiguredAgent>, now_ms: i64) -> Result<(), StoreError> {
        if self.follows(&agents).await? {
            return Ok(());
        }
        let outcome = run_batch(&mut self.database, &mut Follow { now_ms }, &[agents]).await;
        outcome.answers.into_iter().collect()
    }

    async fn follows(&mut self, agents: &[ConfiguredAgent]) -> Result<bool, StoreError> {
        let known = agent_list(self.database.writer()).await?;
        let configured: BTreeMap<_, _> =
            known.iter().filter(|row| row.configured).map(|row| (&row.alias, &row.launch_hash)).collect();
        Ok(configured == agents.iter().map(|agent| (&agent.alias, &agent.launch_hash)).collect())
    }

    /// Notes that an agent's process was started. Says whether the agent is known.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn agent_started(&mut self, alias: &AgentAlias, now_ms: i64) -> Result<bool, StoreError> {
        let alias = alias.as_str();
        let done = sqlx::query!("UPDATE agent_registry SET last_started_at_ms = ? WHERE alias = ?", now_ms, alias)
            .execute(self.database.writer())
            .await
            .in_store(STORE, "note an agent's start")?;
        Ok(done.rows_affected() == 1)
    }

    /// Keeps what an agent answered to `initialize`, in place of what it answered before under the same launch.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn agent_initialize_put(&mut self, answer: &AgentInitialize) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO agent_initialize (launch_hash, agent_version, result_json, recorded_at_ms) VALUES (?, ?, ?, ?)
             ON CONFLICT (launch_hash) DO UPDATE SET agent_version = excluded.agent_version,
                 result_json = excluded.result_json, recorded_at_ms = excluded.recorded_at_ms",
            answer.launch_hash,
            answer.agent_version,
            answer.result_json,
            answer.recorded_at_ms
        )
        .execute(self.database.writer())
        .await
        .in_store(STORE, "keep what an agent can do")?;
        Ok(())
    }
}

/// Returns all agents known, by alias.
///
/// # Errors
/// [`StoreError`].
pub async fn agent_list(connection: &mut SqliteConnection) -> Result<Vec<AgentRow>, StoreError> {
    const ACTION: &str = "list the agents";
    let rows = sqlx::query!(
        r#"SELECT alias, launch_hash, configured AS "configured: bool", first_seen_at_ms, last_started_at_ms
           FROM agent_registry ORDER BY alias"#
    )
    .fetch_all(connection)
    .await
    .in_store(STORE, ACTION)?;
    rows.into_iter()
        .map(|row| {
            Ok(AgentRow {
                alias: row.alias.parse().map_err(|error| not_understood(ACTION, error))?,
                launch_hash: row.launch_hash,
                configured: row.configured,
                first_seen_at_ms: row.first_seen_at_ms,
                last_started_at_ms: row.last_started_at_ms,
            })
        })
        .collect()
}

/// Returns what an agent launched so last answered to `initialize`.
///
/// # Errors
/// [`StoreError`].
pub async fn agent_initialize_get(
    connection: &mut SqliteConnection,
    launch_hash: &str,
) -> Result<Option<AgentInitialize>, StoreError> {
    sqlx::query_as!(
        AgentInitialize,
        "SELECT launch_hash, agent_version, result_json, recorded_at_ms FROM agent_initialize WHERE launch_hash = ?",
        launch_hash
    )
    .fetch_optional(connection)
    .await
    .in_store(STORE, "read what an agent can do")
}
