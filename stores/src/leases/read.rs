//! Reading leases.

use holdfast_protocol::ids::{InstanceId, LeaseId};
use sqlx::SqliteConnection;

use super::ROLE;
use super::row::LeaseColumns;
use super::types::{LeaseFilter, LeaseRecord};
use crate::kit::error::InStore;
use crate::kit::{Readers, StoreError};

/// Most leases on one page.
pub const LEASE_PAGE_MAX: u32 = 200;

/// A page of leases, the youngest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasePage {
    /// The leases.
    pub leases: Vec<LeaseRecord>,
    /// Where the next page begins, if there is more.
    pub next: Option<LeaseId>,
}

/// Reads committed leases.
#[derive(Debug, Clone)]
pub struct LeaseReads {
    readers: Readers,
}

impl LeaseReads {
    pub(super) fn new(readers: Readers) -> Self {
        Self { readers }
    }

    /// Returns a lease.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lease_show(&self, lease_id: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        let mut reader = self.readers.reader().await?;
        lease_row(&mut reader, lease_id).await
    }

    /// Returns the leases older than `before` (all without it), the youngest first, `limit` at most.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lease_list(
        &self,
        filter: &LeaseFilter,
        before: Option<LeaseId>,
        limit: u32,
    ) -> Result<LeasePage, StoreError> {
        const ACTION: &str = "list leases";
        let limit = limit.clamp(1, LEASE_PAGE_MAX);
        let before = before.map(|id| id.0.as_bytes().to_vec());
        let session_id = filter.session_id.map(|id| id.0.as_bytes().to_vec());
        // One more than asked for tells whether there is a next page.
        let wanted = i64::from(limit) + 1;
        let mut reader = self.readers.reader().await?;
        let rows = sqlx::query_as!(
            LeaseColumns,
            "SELECT lease_id, instance_id, session_id, agent, wrapper_root, wrapper_path, root_pid, root_start_ticks,
                 root_pidfd_ino, process_group_id, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
                 exit_code, exit_signal, last_error
             FROM process_leases
             WHERE (?1 IS NULL OR lease_id < ?1) AND (?2 IS NULL OR agent = ?2) AND (?3 IS NULL OR session_id = ?3)
                 AND (NOT ?4 OR state IN ('starting', 'open', 'closing'))
             ORDER BY lease_id DESC LIMIT ?5",
            before,
            filter.agent,
            session_id,
            filter.unfinished,
            wanted
        )
        .fetch_all(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        let mut leases = rows.into_iter().map(|row| row.into_record(ACTION)).collect::<Result<Vec<_>, StoreError>>()?;
        let more = leases.len() > limit as usize;
        leases.truncate(limit as usize);
        let next = if more { leases.last().map(|lease| lease.lease_id) } else { None };
        Ok(LeasePage { leases, next })
    }

    /// Returns the leases of an install that are not over, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lease_unfinished(&self, instance_id: InstanceId) -> Result<Vec<LeaseRecord>, StoreError> {
        const ACTION: &str = "list unfinished leases";
        let instance_id = instance_id.0.as_bytes().as_slice();
        let mut reader = self.readers.reader().await?;
        let rows = sqlx::query_as!(
            LeaseColumns,
            "SELECT lease_id, instance_id, session_id, agent, wrapper_root, wrapper_path, root_pid, root_start_ticks,
                 root_pidfd_ino, process_group_id, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
                 exit_code, exit_signal, last_error
             FROM process_leases
             WHERE state IN ('starting', 'open', 'closing') AND instance_id = ? ORDER BY lease_id",
            instance_id
        )
        .fetch_all(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        rows.into_iter().map(|row| row.into_record(ACTION)).collect()
    }
}

/// Reads one lease over any connection.
pub(super) async fn lease_row(
    connection: &mut SqliteConnection,
    lease_id: LeaseId,
) -> Result<Option<LeaseRecord>, StoreError> {
    const ACTION: &str = "read a lease";
    let id = lease_id.0.as_bytes().as_slice();
    let row = sqlx::query_as!(
        LeaseColumns,
        "SELECT lease_id, instance_id, session_id, agent, wrapper_root, wrapper_path, root_pid, root_start_ticks,
             root_pidfd_ino, process_group_id, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
             exit_code, exit_signal, last_error
         FROM process_leases WHERE lease_id = ?",
        id
    )
    .fetch_optional(connection)
    .await
    .in_store(ROLE, ACTION)?;
    row.map(|row| row.into_record(ACTION)).transpose()
}
