//! The store of chat and channel sessions: `data/sessions/sessions.db`.
//!
//! One writer, owned by the actor; reads go through [`SessionReads`] and see committed rows only. Positions (`seq`) are
//! given out here, from what this store remembers of each session, and a trigger refuses any that would leave a gap.

mod append;
mod create;
mod error;
mod heads;
mod read;
mod row;
#[cfg(test)]
mod tests;
mod types;

use std::path::Path;

use holdfast_protocol::ids::SessionId;
use sqlx::migrate::Migrator;

use crate::kit::idempotency::IdempotencyTable;
use crate::kit::{
    BatchOutcome, Database, DatabaseSpec, Durability, OpenContext, OpenError, Opened, Readers, StoreError, run_batch,
};
use append::AppendWork;
use create::{CloseWork, InsertWork};
use heads::Heads;

pub use error::Refusal;
pub use read::{EventsPage, ListPage, PAGE_MAX, SessionReads};
pub use types::{
    Append, Appended, EventDraft, EventKind, EventRole, ListFilter, ListPosition, NewSession, SessionInserted,
    SessionRecord, StoredEvent,
};

/// The store's role: its name in errors and metrics.
pub const ROLE: &str = "sessions";

static MIGRATOR: Migrator = sqlx::migrate!("../migrations/sessions");

/// What the database is.
pub static SPEC: DatabaseSpec = DatabaseSpec {
    role: ROLE,
    file: "sessions/sessions.db",
    migrator: &MIGRATOR,
    readers: 2,
    durability: Durability::Full,
};

/// The store of chat and channel sessions.
#[derive(Debug)]
pub struct SessionsStore {
    database: Database,
    heads: Heads,
    idempotency: IdempotencyTable,
}

impl SessionsStore {
    /// Opens or makes the store below the data directory.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub async fn open(data_dir: &Path, context: OpenContext<'_>) -> Result<(Self, Opened), OpenError> {
        let (database, opened) = Database::open(data_dir, &SPEC, context).await?;
        let idempotency = IdempotencyTable::new(ROLE, "session_idempotency");
        Ok((Self { database, heads: Heads::default(), idempotency }, opened))
    }

    /// Returns what reads, to be cloned into tasks.
    pub fn reads(&self) -> SessionReads {
        SessionReads::new(self.database.readers().clone())
    }

    /// Returns the readers themselves, for the check of the file.
    pub fn readers(&self) -> &Readers {
        self.database.readers()
    }

    /// Returns the bytes of the store's files.
    pub fn size_bytes(&self) -> u64 {
        self.database.size_bytes()
    }

    /// Makes sessions, or finds the current ones of their keys, in one transaction; committed when this returns.
    pub async fn session_insert(
        &mut self,
        requests: &[NewSession],
        now_ms: i64,
    ) -> BatchOutcome<Result<SessionInserted, Refusal>> {
        let mut work = InsertWork { idempotency: &self.idempotency, now_ms };
        run_batch(&mut self.database, &mut work, requests).await
    }

    /// Closes sessions in one transaction; committed when this returns. Answers whether each was open until now.
    pub async fn session_close(&mut self, requests: &[SessionId], now_ms: i64) -> BatchOutcome<Result<bool, Refusal>> {
        let mut work = CloseWork { now_ms };
        let outcome = run_batch(&mut self.database, &mut work, requests).await;
        // What is remembered of them says "open".
        self.heads.forget();
        outcome
    }

    /// Appends to any number of sessions in one transaction; committed when this returns. Each append is stored whole
    /// or not at all.
    pub async fn events_append(&mut self, requests: &[Append]) -> BatchOutcome<Result<Appended, Refusal>> {
        if let Err(error) = self.heads.load(self.database.writer(), requests).await {
            return BatchOutcome { answers: requests.iter().map(|_| Err(error.clone())).collect(), writer_lost: None };
        }
        let mut work = AppendWork::new(&mut self.heads);
        run_batch(&mut self.database, &mut work, requests).await
    }

    /// Removes answers kept for repeated requests that are over a day old, 1000 at most; returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn idempotency_purge(&mut self, now_ms: i64) -> Result<u64, StoreError> {
        self.idempotency.purge(self.database.writer(), now_ms, 1000).await
    }

    /// Closes the store; see [`Database::close`].
    ///
    /// # Errors
    /// [`StoreError`]; nothing committed is lost.
    pub async fn close(self) -> Result<(), StoreError> {
        self.database.close().await
    }
}
