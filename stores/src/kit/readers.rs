//! Read-only connections, handed out by a store's owner.

use std::time::Duration;

use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

use super::error::{InStore, StoreError};
use super::unchecked;

/// One read-only connection, on loan.
pub type Reader = PoolConnection<Sqlite>;

/// A few read-only connections to one database, opened when first needed. Cheap to clone.
///
/// They see committed rows only. A read must end soon: the write-ahead log can't start over while one is open, so
/// readers run single statements with a limit, never an open transaction across an await on something else.
#[derive(Debug, Clone)]
pub struct Readers {
    store: &'static str,
    pool: SqlitePool,
}

impl Readers {
    /// Prepares up to `count` readers without opening any.
    pub(super) fn new(store: &'static str, options: SqliteConnectOptions, count: u32, wait: Duration) -> Self {
        let pool = SqlitePoolOptions::new()
            .max_connections(count.max(1))
            .min_connections(0)
            .acquire_timeout(wait)
            // No recycling and no ping: the file is local, and both cost wake-ups or a hop for nothing.
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Self { store, pool }
    }

    /// Takes a reader; it goes back when dropped.
    ///
    /// # Errors
    /// [`StoreError::ReadersBusy`] after the busy timeout, [`StoreError::Closed`] after the store's close.
    pub async fn reader(&self) -> Result<Reader, StoreError> {
        self.pool.acquire().await.in_store(self.store, "take a reader")
    }

    /// Checks the whole file; see [`unchecked::quick_check`]. Returns what is wrong; empty means sound.
    ///
    /// # Errors
    /// [`StoreError`] when the check could not run.
    pub async fn quick_check(&self) -> Result<Vec<String>, StoreError> {
        let mut reader = self.reader().await?;
        unchecked::quick_check(&mut reader, self.store).await
    }

    /// Closes all readers; waits for those in use.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}
