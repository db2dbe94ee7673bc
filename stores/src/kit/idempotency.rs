//! What a mutating request with a key was answered, kept for a day in the store that it changed.
//!
//! Key, body hash and answer commit with the change, so a client that got no answer may ask again: the same body gets
//! the first answer, another body is a conflict. Each store makes its own table in a migration:
//!
//! ```sql
//! CREATE TABLE <prefix>_idempotency (
//!     key TEXT NOT NULL PRIMARY KEY,
//!     method TEXT NOT NULL,
//!     body_hash BLOB NOT NULL CHECK (length(body_hash) = 32),
//!     result_json TEXT NOT NULL,
//!     created_at_ms INTEGER NOT NULL
//! ) STRICT;
//! CREATE INDEX <prefix>_idempotency_created ON <prefix>_idempotency (created_at_ms);
//! ```

use std::sync::Arc;

use sqlx::{Row, SqliteConnection};

use super::error::{InStore, StoreError};
use super::unchecked;

/// How long an answer is kept: 24 hours.
pub const KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// A BLAKE3 hash of a request's body.
pub type BodyHash = [u8; 32];

/// Returns the hash of a request's body. Equal requests must be given as equal bytes.
pub fn body_hash(body: &[u8]) -> BodyHash {
    *blake3::hash(body).as_bytes()
}

/// What is known about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing, or it was over a day ago.
    Never,
    /// The same request was answered this.
    Answered {
        /// The answer's JSON.
        result_json: String,
    },
    /// Another request has used the key.
    Conflict,
}

/// A request with a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyedRequest<'a> {
    /// The client's key.
    pub key: &'a str,
    /// The method's name on the wire.
    pub method: &'a str,
    /// The hash of the body.
    pub body_hash: &'a BodyHash,
}

/// The statements for one store's table. Their texts are made from the table's name, so they run
/// through [`unchecked::for_table`].
#[derive(Debug, Clone)]
pub struct IdempotencyTable {
    store: &'static str,
    select: Arc<str>,
    upsert: Arc<str>,
    delete: Arc<str>,
}

impl IdempotencyTable {
    /// Names the store and its table.
    pub fn new(store: &'static str, table: &'static str) -> Self {
        Self {
            store,
            select: format!("SELECT method, body_hash, result_json, created_at_ms FROM {table} WHERE key = ?").into(),
            upsert: format!(
                "INSERT INTO {table} (key, method, body_hash, result_json, created_at_ms) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (key) DO UPDATE SET method = excluded.method, body_hash = excluded.body_hash,
                 result_json = excluded.result_json, created_at_ms = excluded.created_at_ms"
            )
            .into(),
            delete: format!(
                "DELETE FROM {table} WHERE key IN (SELECT key FROM {table} WHERE created_at_ms < ? LIMIT ?)"
            )
            .into(),
        }
    }

    /// Looks the request's key up.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look_up(
        &self,
        connection: &mut SqliteConnection,
        request: KeyedRequest<'_>,
        now_ms: i64,
    ) -> Result<Seen, StoreError> {
        const ACTION: &str = "look up an idempotency key";
        let row = unchecked::for_table(&self.select)
            .bind(request.key)
            .fetch_optional(connection)
            .await
            .in_store(self.store, ACTION)?;
        let Some(row) = row else { return Ok(Seen::Never) };
        let created_at_ms: i64 = row.try_get(3).in_store(self.store, ACTION)?;
        if created_at_ms < now_ms.saturating_sub(KEPT_MS) {
            return Ok(Seen::Never);
        }
        let method: &str = row.try_get(0).in_store(self.store, ACTION)?;
        let hash: &[u8] = row.try_get(1).in_store(self.store, ACTION)?;
        if method != request.method || hash != request.body_hash {
            return Ok(Seen::Conflict);
        }
        Ok(Seen::Answered { result_json: row.try_get(2).in_store(self.store, ACTION)? })
    }

    /// Notes the answer, in the transaction that holds the change. An older note under the key is replaced, so look
    /// the key up first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn record(
        &self,
        connection: &mut SqliteConnection,
        request: KeyedRequest<'_>,
        result_json: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        unchecked::for_table(&self.upsert)
            .bind(request.key)
            .bind(request.method)
            .bind(request.body_hash.as_slice())
            .bind(result_json)
            .bind(now_ms)
            .execute(connection)
            .await
            .in_store(self.store, "note an idempotency key")
            .map(|_| ())
    }

    /// Removes up to `limit` answers that are over a day old; returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn purge(&self, connection: &mut SqliteConnection, now_ms: i64, limit: u32) -> Result<u64, StoreError> {
        unchecked::for_table(&self.delete)
            .bind(now_ms.saturating_sub(KEPT_MS))
            .bind(limit)
            .execute(connection)
            .await
            .in_store(self.store, "remove old idempotency keys")
            .map(|done| done.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::database::open_test_database;
    use super::*;

    #[tokio::test]
    async fn the_same_body_gets_the_first_answer_and_another_a_conflict() {
        let directory = tempfile::tempdir().unwrap();
        let (mut database, _) = open_test_database(directory.path()).await.unwrap();
        let table = IdempotencyTable::new("test", "test_idempotency");
        let (one, two) = (body_hash(b"one"), body_hash(b"two"));
        let request = KeyedRequest { key: "k", method: "a/b", body_hash: &one };
        let writer = database.writer();
        assert_eq!(table.look_up(writer, request, 1000).await.unwrap(), Seen::Never);
        table.record(writer, request, "{\"id\":1}", 1000).await.unwrap();
        let answered = Seen::Answered { result_json: "{\"id\":1}".to_owned() };
        assert_eq!(table.look_up(writer, request, 1000 + KEPT_MS).await.unwrap(), answered);
        let other_body = KeyedRequest { body_hash: &two, ..request };
        assert_eq!(table.look_up(writer, other_body, 1000).await.unwrap(), Seen::Conflict);
        let other_method = KeyedRequest { method: "a/c", ..request };
        assert_eq!(table.look_up(writer, other_method, 1000).await.unwrap(), Seen::Conflict);

        let late_ms = 1001 + KEPT_MS;
        assert_eq!(table.look_up(writer, other_body, late_ms).await.unwrap(), Seen::Never, "kept for a day");
        table.record(writer, other_body, "{}", late_ms).await.unwrap();
        assert_eq!(table.purge(writer, late_ms, 10).await.unwrap(), 0);
        assert_eq!(table.purge(writer, late_ms + KEPT_MS + 1, 10).await.unwrap(), 1);
        database.close().await.unwrap();
    }
}
