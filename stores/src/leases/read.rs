//! Reading leases.

use holdfast_protocol::ids::{InstanceId, LeaseId};
use sqlx::SqliteConnection;

use super::ROLE;
use super::row::LeaseColumns;
use super::state::LeaseState;
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
    /// Reads over these connections: the store's own, or those of a file at rest.
    pub fn new(readers: Readers) -> Self {
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
        let state = filter.state.map(LeaseState::name);
        let Some((lowest, highest)) = id_range(filter.id_prefix.as_deref().unwrap_or_default()) else {
            return Ok(LeasePage { leases: Vec::new(), next: None });
        };
        // One more than asked for tells whether there is a next page.
        let wanted = i64::from(limit) + 1;
        let mut reader = self.readers.reader().await?;
        let rows = sqlx::query_as!(
            LeaseColumns,
            "SELECT lease_id, instance_id, session_id, agent, wrapper_root, wrapper_path, root_pid, root_start_ticks,
                 root_pidfd_ino, process_group_id, cgroup_path, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
                 exit_code, exit_signal, last_error
             FROM process_leases
             WHERE (?1 IS NULL OR lease_id < ?1) AND (?2 IS NULL OR agent = ?2) AND (?3 IS NULL OR session_id = ?3)
                 AND (NOT ?4 OR state IN ('starting', 'open', 'closing')) AND (?5 IS NULL OR state = ?5)
                 AND lease_id BETWEEN ?6 AND ?7
             ORDER BY lease_id DESC LIMIT ?8",
            before,
            filter.agent,
            session_id,
            filter.unfinished,
            state,
            lowest,
            highest,
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

    /// Returns how many leases ended before `before_ms`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lease_count_expired(&self, before_ms: i64) -> Result<u64, StoreError> {
        let mut reader = self.readers.reader().await?;
        let count = sqlx::query_scalar!(
            "SELECT count(*) FROM process_leases WHERE state_changed_at_ms < ? AND state IN ('closed', 'lost')",
            before_ms
        )
        .fetch_one(&mut *reader)
        .await
        .in_store(ROLE, "count old leases")?;
        Ok(u64::try_from(count).unwrap_or(0))
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
                 root_pidfd_ino, process_group_id, cgroup_path, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
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

/// Returns the lowest and the highest id that begin with these hexadecimal digits; `None` when none can.
fn id_range(prefix: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let digits: String = prefix.chars().filter(|character| *character != '-').collect();
    let bound = |filler: char| {
        let padded: String = digits.chars().chain(std::iter::repeat(filler)).take(32.max(digits.len())).collect();
        uuid::Uuid::try_parse(&padded).ok().map(|id| id.as_bytes().to_vec())
    };
    Some((bound('0')?, bound('f')?))
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
             root_pidfd_ino, process_group_id, cgroup_path, command_hash, boot_id, started_at_ms, state, state_changed_at_ms,
             exit_code, exit_signal, last_error
         FROM process_leases WHERE lease_id = ?",
        id
    )
    .fetch_optional(connection)
    .await
    .in_store(ROLE, ACTION)?;
    row.map(|row| row.into_record(ACTION)).transpose()
}
