//! `control_plane.db`: who this install is, and the agents it has known.

mod agents;
mod row;
#[cfg(test)]
mod tests;

use std::path::Path;

use holdfast_protocol::ids::InstanceId;
use sqlx::SqliteConnection;
use sqlx::migrate::Migrator;

use crate::kit::error::InStore;
use crate::kit::{Database, DatabaseSpec, Durability, OpenContext, OpenError, Opened, Readers, StoreError};

pub use agents::{agent_initialize_get, agent_list};
pub use row::{AgentInitialize, AgentRow, ConfiguredAgent, Instance};

/// The store's role.
pub const STORE: &str = "control_plane";

static MIGRATOR: Migrator = sqlx::migrate!("../migrations/control_plane");

/// The database.
pub static SPEC: DatabaseSpec = DatabaseSpec {
    role: STORE,
    file: "control_plane.db",
    migrator: &MIGRATOR,
    readers: 2,
    durability: Durability::Full,
};

/// The one owner of `control_plane.db`.
#[derive(Debug)]
pub struct ControlPlaneStore {
    database: Database,
}

impl ControlPlaneStore {
    /// Opens or makes the database in `data_dir`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(data_dir: &Path, context: OpenContext<'_>) -> Result<(Self, Opened), OpenError> {
        let (database, opened) = Database::open(data_dir, &SPEC, context).await?;
        Ok((Self { database }, opened))
    }

    /// Returns who this install is; the first time, `proposed` becomes its id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn instance_ensure(&mut self, proposed: InstanceId, now_ms: i64) -> Result<Instance, StoreError> {
        let writer = self.database.writer();
        if let Some(known) = instance_get(writer).await? {
            return Ok(known);
        }
        let id = proposed.to_string();
        sqlx::query!(
            "INSERT INTO instance (id, instance_id, created_at_ms) VALUES (1, ?, ?) ON CONFLICT (id) DO NOTHING",
            id,
            now_ms
        )
        .execute(&mut *writer)
        .await
        .in_store(STORE, "name the instance")?;
        instance_get(writer).await?.ok_or_else(|| StoreError::Row {
            store: STORE,
            action: "read the instance",
            problem: "its row is missing right after it was made".to_owned(),
        })
    }

    /// Returns the readers.
    pub fn readers(&self) -> &Readers {
        self.database.readers()
    }

    /// Returns the bytes of the database.
    pub fn size_bytes(&self) -> u64 {
        self.database.size_bytes()
    }

    /// Replaces the writer after [`StoreError::OutcomeUnknown`].
    ///
    /// # Errors
    /// [`OpenError`]: the surface can't go on.
    pub async fn reopen_writer(&mut self) -> Result<(), OpenError> {
        self.database.reopen_writer().await
    }

    /// Closes the database.
    ///
    /// # Errors
    /// [`StoreError`]; nothing committed is lost by that.
    pub async fn close(self) -> Result<(), StoreError> {
        self.database.close().await
    }
}

/// Returns who this install is, once it has been named.
///
/// # Errors
/// [`StoreError`].
pub async fn instance_get(connection: &mut SqliteConnection) -> Result<Option<Instance>, StoreError> {
    const ACTION: &str = "read the instance";
    let row = sqlx::query!("SELECT instance_id, created_at_ms FROM instance WHERE id = 1")
        .fetch_optional(connection)
        .await
        .in_store(STORE, ACTION)?;
    row.map(|row| {
        let instance_id = row.instance_id.parse().map_err(|error| row::not_understood(ACTION, error))?;
        Ok(Instance { instance_id, created_at_ms: row.created_at_ms })
    })
    .transpose()
}
