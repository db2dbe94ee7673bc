//! What another store must do about a change here, committed with the change.
//!
//! SQLite is not atomic across files. So the store that holds a fact also holds, in the same transaction, a row that
//! says what must follow elsewhere. The owner carries it over at least once, in the order of the rows, and notes that
//! it was applied; the receiver applies it by its origin key, so twice is as good as once. Rows not applied are carried
//! over again at start. Each store makes its own table in a migration:
//!
//! ```sql
//! CREATE TABLE <prefix>_outbox (
//!     id INTEGER PRIMARY KEY AUTOINCREMENT,
//!     origin_key TEXT NOT NULL UNIQUE,
//!     target TEXT NOT NULL,
//!     payload_json TEXT NOT NULL,
//!     created_at_ms INTEGER NOT NULL,
//!     applied_at_ms INTEGER
//! ) STRICT;
//! CREATE INDEX <prefix>_outbox_open ON <prefix>_outbox (id) WHERE applied_at_ms IS NULL;
//! ```

use std::sync::Arc;

use sqlx::{Row, SqliteConnection};

use super::error::{InStore, StoreError};
use super::unchecked;

/// Something to be carried over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its place in the order.
    pub id: i64,
    /// What the receiver knows it by: the same for each delivery.
    pub origin_key: String,
    /// Who receives it (a role).
    pub target: String,
    /// What to do, as JSON.
    pub payload_json: String,
    /// When it was made, UTC milliseconds.
    pub created_at_ms: i64,
}

/// The statements for one store's table. Their texts are made from the table's name, so they run
/// through [`unchecked::for_table`].
#[derive(Debug, Clone)]
pub struct OutboxTable {
    store: &'static str,
    insert: Arc<str>,
    open: Arc<str>,
    apply: Arc<str>,
    delete: Arc<str>,
}

impl OutboxTable {
    /// Names the store and its table.
    pub fn new(store: &'static str, table: &'static str) -> Self {
        Self {
            store,
            insert: format!(
                "INSERT INTO {table} (origin_key, target, payload_json, created_at_ms) VALUES (?, ?, ?, ?)
                 ON CONFLICT (origin_key) DO NOTHING"
            )
            .into(),
            open: format!(
                "SELECT id, origin_key, target, payload_json, created_at_ms FROM {table}
                 WHERE applied_at_ms IS NULL AND id > ? ORDER BY id LIMIT ?"
            )
            .into(),
            apply: format!(
                "UPDATE {table} SET applied_at_ms = ?
                 WHERE applied_at_ms IS NULL AND id IN (SELECT value FROM json_each(?))"
            )
            .into(),
            delete: format!("DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE applied_at_ms < ? LIMIT ?)")
                .into(),
        }
    }

    /// Adds an entry, in the transaction that holds the change. An origin key that is there already adds nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn push(
        &self,
        connection: &mut SqliteConnection,
        origin_key: &str,
        target: &str,
        payload_json: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        unchecked::for_table(&self.insert)
            .bind(origin_key)
            .bind(target)
            .bind(payload_json)
            .bind(now_ms)
            .execute(connection)
            .await
            .in_store(self.store, "add to the outbox")
            .map(|_| ())
    }

    /// Returns up to `limit` entries after `after_id` that are not applied yet, oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_entries(
        &self,
        connection: &mut SqliteConnection,
        after_id: i64,
        limit: u32,
    ) -> Result<Vec<OutboxEntry>, StoreError> {
        const ACTION: &str = "read the outbox";
        let rows = unchecked::for_table(&self.open)
            .bind(after_id)
            .bind(limit)
            .fetch_all(connection)
            .await
            .in_store(self.store, ACTION)?;
        rows.iter()
            .map(|row| {
                Ok(OutboxEntry {
                    id: row.try_get(0)?,
                    origin_key: row.try_get(1)?,
                    target: row.try_get(2)?,
                    payload_json: row.try_get(3)?,
                    created_at_ms: row.try_get(4)?,
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .in_store(self.store, ACTION)
    }

    /// Notes that entries were applied by their receivers.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn mark_applied(
        &self,
        connection: &mut SqliteConnection,
        ids: &[i64],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        // Numbers always serialise.
        let ids = serde_json::to_string(ids).unwrap_or_default();
        unchecked::for_table(&self.apply)
            .bind(now_ms)
            .bind(ids)
            .execute(connection)
            .await
            .in_store(self.store, "note applied outbox entries")
            .map(|_| ())
    }

    /// Removes up to `limit` entries applied before `before_ms`; returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn purge(
        &self,
        connection: &mut SqliteConnection,
        before_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        unchecked::for_table(&self.delete)
            .bind(before_ms)
            .bind(limit)
            .execute(connection)
            .await
            .in_store(self.store, "remove applied outbox entries")
            .map(|done| done.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::database::open_test_database;
    use super::*;

    #[tokio::test]
    async fn entries_stay_open_until_they_are_applied() {
        let directory = tempfile::tempdir().unwrap();
        let (mut database, _) = open_test_database(directory.path()).await.unwrap();
        let outbox = OutboxTable::new("test", "test_outbox");
        let writer = database.writer();
        for key in ["a", "b", "a", "c"] {
            outbox.push(writer, key, "cost", "{}", 5).await.unwrap();
        }
        let open = outbox.open_entries(writer, 0, 10).await.unwrap();
        let keys: Vec<_> = open.iter().map(|entry| entry.origin_key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        outbox.mark_applied(writer, &[open[0].id, open[2].id], 6).await.unwrap();
        let left = outbox.open_entries(writer, 0, 10).await.unwrap();
        assert_eq!(left, [open[1].clone()]);
        assert_eq!(outbox.open_entries(writer, open[1].id, 10).await.unwrap(), []);
        assert_eq!(outbox.purge(writer, 7, 10).await.unwrap(), 2);
        assert_eq!(outbox.open_entries(writer, 0, 10).await.unwrap(), left);
        database.close().await.unwrap();
    }
}
