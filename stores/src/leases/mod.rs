//! The store of process leases: `data/leases.db`.
//!
//! It keeps what was recorded and refuses changes of state that make no sense; it knows nothing of live processes.

mod change;
mod read;
mod row;
mod state;
#[cfg(test)]
mod tests;
mod types;

use std::path::Path;

use sqlx::migrate::Migrator;

use crate::kit::batch::BatchOutcome;
use crate::kit::error::InStore;
use crate::kit::{Database, DatabaseSpec, Durability, OpenContext, OpenError, Opened, Readers, StoreError, run_batch};
use change::ChangeWork;

pub use read::{LEASE_PAGE_MAX, LeasePage, LeaseReads};
pub use state::LeaseState;
pub use types::{LeaseChange, LeaseExit, LeaseFilter, LeaseRecord, LeaseRoot, NewLease, Refusal};

/// The store's role: its name in errors and metrics.
pub const ROLE: &str = "leases";

static MIGRATOR: Migrator = sqlx::migrate!("../migrations/leases");

/// What the database is.
pub static SPEC: DatabaseSpec =
    DatabaseSpec { role: ROLE, file: "leases.db", migrator: &MIGRATOR, readers: 1, durability: Durability::Full };

/// The store of process leases.
#[derive(Debug)]
pub struct LeasesStore {
    database: Database,
}

impl LeasesStore {
    /// Opens or makes the store below the data directory.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub async fn open(data_dir: &Path, context: OpenContext<'_>) -> Result<(Self, Opened), OpenError> {
        let (database, opened) = Database::open(data_dir, &SPEC, context).await?;
        Ok((Self { database }, opened))
    }

    /// Returns what reads, to be cloned into tasks.
    pub fn reads(&self) -> LeaseReads {
        LeaseReads::new(self.database.readers().clone())
    }

    /// Returns the readers themselves, for the check of the file.
    pub fn readers(&self) -> &Readers {
        self.database.readers()
    }

    /// Returns the bytes of the store's files.
    pub fn size_bytes(&self) -> u64 {
        self.database.size_bytes()
    }

    /// Makes or changes leases in one transaction; committed when this returns. Answers each lease as it is then, or
    /// why the change makes no sense.
    pub async fn lease_change(
        &mut self,
        changes: &[LeaseChange],
        now_ms: i64,
    ) -> BatchOutcome<Result<LeaseRecord, Refusal>> {
        run_batch(&mut self.database, &mut ChangeWork { now_ms }, changes).await
    }

    /// Removes leases that ended before `before_ms`, 1000 at most; returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lease_expire(&mut self, before_ms: i64) -> Result<u64, StoreError> {
        sqlx::query!(
            "DELETE FROM process_leases WHERE lease_id IN (
                 SELECT lease_id FROM process_leases
                 WHERE state_changed_at_ms < ? AND state IN ('closed', 'lost') LIMIT 1000)",
            before_ms
        )
        .execute(self.database.writer())
        .await
        .in_store(ROLE, "remove old leases")
        .map(|done| done.rows_affected())
    }

    /// Closes the store.
    ///
    /// # Errors
    /// As [`Database::close`].
    pub async fn close(self) -> Result<(), StoreError> {
        self.database.close().await
    }
}
