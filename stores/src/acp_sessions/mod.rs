//! The store of ACP sessions: `data/sessions/acp-sessions.db`.
//!
//! One writer, owned by the actor; reads take a read-only connection and see committed rows only. Positions are given
//! out by whoever owns the live session, so a change that is sent again after an unknown outcome is stored once.

mod ownership;
mod read;
mod recover;
mod row;
#[cfg(test)]
mod tests;
mod unchecked;
mod write;

use std::path::Path;
use std::sync::Arc;

use sqlx::migrate::Migrator;

use crate::kit::{
    BatchOutcome, Database, DatabaseSpec, Durability, OpenContext, OpenError, Opened, Readers, StoreError, run_batch,
};
use write::{ChangeWork, CreateWork};

pub use ownership::{Ownership, ownership_list};
pub use read::{
    PAGE_MAX, SessionFilter, SessionPosition, running_by_agent, session_find_by_key, session_get, session_list,
    turn_list, update_page,
};
pub use recover::{CUT_REASON, Recovered};
pub use row::{
    AcpSessionRow, AcpSessionRowId, AcpSessionStatus, AcpUpdate, NewAcpSession, RowChange, SessionChange, TurnBegin,
    TurnEnd, TurnOutcome, TurnRow, TurnState,
};

/// The store's role: its name in errors and metrics.
pub const ROLE: &str = "acp-sessions";

static MIGRATOR: Migrator = sqlx::migrate!("../migrations/acp_sessions");

/// What the database is.
pub static SPEC: DatabaseSpec = DatabaseSpec {
    role: ROLE,
    file: "sessions/acp-sessions.db",
    migrator: &MIGRATOR,
    readers: 2,
    durability: Durability::Full,
};

/// The store of ACP sessions.
#[derive(Debug)]
pub struct AcpSessionsStore {
    database: Database,
}

impl AcpSessionsStore {
    /// Opens or makes the store below the data directory.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub async fn open(data_dir: &Path, context: OpenContext<'_>) -> Result<(Self, Opened), OpenError> {
        let (database, opened) = Database::open(data_dir, &SPEC, context).await?;
        Ok((Self { database }, opened))
    }

    /// Returns what reads, to be cloned into tasks.
    pub fn readers(&self) -> &Readers {
        self.database.readers()
    }

    /// Returns the bytes of the store's files.
    pub fn size_bytes(&self) -> u64 {
        self.database.size_bytes()
    }

    /// Makes sessions; each is answered with its row, or `None` when its name is taken.
    pub async fn session_create(&mut self, sessions: &[NewAcpSession]) -> BatchOutcome<Option<AcpSessionRow>> {
        run_batch(&mut self.database, &mut CreateWork, sessions).await
    }

    /// Stores changes of many sessions in one transaction.
    pub async fn change_record(&mut self, changes: &[Arc<SessionChange>]) -> BatchOutcome<()> {
        run_batch(&mut self.database, &mut ChangeWork, changes).await
    }

    /// Settles what earlier runs of the daemon left unfinished; see [`recover`].
    ///
    /// # Errors
    /// When the store can't be read or written.
    pub async fn interrupted_settle(&mut self, boot_id: &str, now_ms: i64) -> Result<Recovered, StoreError> {
        recover::settle(self, boot_id, now_ms).await
    }

    /// Closes the store; see [`Database::close`].
    ///
    /// # Errors
    /// As [`Database::close`].
    pub async fn close(self) -> Result<(), StoreError> {
        self.database.close().await
    }
}
