//! Making and changing leases.

use std::os::unix::ffi::OsStrExt;

use holdfast_protocol::ids::LeaseId;
use sqlx::SqliteConnection;

use super::ROLE;
use super::read::lease_row;
use super::state::LeaseState;
use super::types::{LeaseChange, LeaseExit, LeaseRecord, LeaseRoot, NewLease, Refusal};
use crate::kit::error::InStore;
use crate::kit::{BatchWork, StoreError};

/// Changes to be made in one transaction.
pub(super) struct ChangeWork {
    pub(super) now_ms: i64,
}

impl BatchWork for ChangeWork {
    type Request = LeaseChange;
    type Answer = Result<LeaseRecord, Refusal>;

    fn is_single_statement(&self, _: &[LeaseChange]) -> bool {
        false
    }

    async fn run_all(
        &mut self,
        writer: &mut SqliteConnection,
        requests: &[LeaseChange],
    ) -> Result<Vec<Self::Answer>, StoreError> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.run_one(writer, request).await?);
        }
        Ok(answers)
    }

    async fn run_one(
        &mut self,
        writer: &mut SqliteConnection,
        request: &LeaseChange,
    ) -> Result<Self::Answer, StoreError> {
        let now_ms = self.now_ms;
        let lease_id = match request {
            LeaseChange::Insert(new) => {
                if lease_row(&mut *writer, new.lease_id).await?.is_some() {
                    return Ok(Err(Refusal::Exists { lease_id: new.lease_id }));
                }
                insert(writer, new, now_ms).await?;
                new.lease_id
            }
            LeaseChange::Open { lease_id, root, in_cgroup } => {
                if let Err(refusal) = may_become(writer, *lease_id, LeaseState::Open).await? {
                    return Ok(Err(refusal));
                }
                open(writer, *lease_id, root, *in_cgroup, now_ms).await?;
                *lease_id
            }
            LeaseChange::Move { lease_id, state, exit, error } => {
                if let Err(refusal) = may_become(writer, *lease_id, *state).await? {
                    return Ok(Err(refusal));
                }
                change_state(writer, *lease_id, *state, exit.as_ref(), error.as_deref(), now_ms).await?;
                *lease_id
            }
            LeaseChange::Exited { lease_id, exit } => {
                exited(writer, *lease_id, exit).await?;
                *lease_id
            }
            LeaseChange::Note { lease_id, error } => {
                note(writer, *lease_id, error).await?;
                *lease_id
            }
        };
        Ok(lease_row(writer, lease_id).await?.ok_or(Refusal::NotFound { lease_id }))
    }
}

/// The writer is alone, and inside a transaction: what it reads here still holds when it writes.
async fn may_become(
    writer: &mut SqliteConnection,
    lease_id: LeaseId,
    to: LeaseState,
) -> Result<Result<(), Refusal>, StoreError> {
    Ok(match lease_row(writer, lease_id).await? {
        None => Err(Refusal::NotFound { lease_id }),
        Some(record) if record.state.may_become(to) => Ok(()),
        Some(record) => Err(Refusal::IllegalMove { lease_id, from: record.state, to }),
    })
}

async fn insert(writer: &mut SqliteConnection, new: &NewLease, now_ms: i64) -> Result<(), StoreError> {
    let lease_id = new.lease_id.0.as_bytes().as_slice();
    let instance_id = new.instance_id.0.as_bytes().as_slice();
    let session_id = new.session_id.map(|id| id.0.as_bytes().to_vec());
    let wrapper_root = new.wrapper_root.as_os_str().as_bytes();
    let wrapper_path = new.wrapper_path.as_os_str().as_bytes();
    let cgroup_path = new.cgroup_path.as_ref().map(|path| path.as_os_str().as_bytes());
    let command_hash = new.command_hash.as_slice();
    sqlx::query!(
        "INSERT INTO process_leases (lease_id, instance_id, session_id, agent, wrapper_root, wrapper_path, cgroup_path,
             command_hash, boot_id, started_at_ms, state, state_changed_at_ms)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'starting', ?)",
        lease_id,
        instance_id,
        session_id,
        new.agent,
        wrapper_root,
        wrapper_path,
        cgroup_path,
        command_hash,
        new.boot_id,
        now_ms,
        now_ms
    )
    .execute(writer)
    .await
    .in_store(ROLE, "make a lease")
    .map(drop)
}

async fn open(
    writer: &mut SqliteConnection,
    lease_id: LeaseId,
    root: &LeaseRoot,
    in_cgroup: bool,
    now_ms: i64,
) -> Result<(), StoreError> {
    let id = lease_id.0.as_bytes().as_slice();
    let start_ticks = root.start_ticks.cast_signed();
    let pidfd_ino = root.pidfd_ino.map(u64::cast_signed);
    sqlx::query!(
        "UPDATE process_leases SET root_pid = ?, root_start_ticks = ?, root_pidfd_ino = ?, process_group_id = ?,
             cgroup_path = CASE WHEN ? THEN cgroup_path END, state = 'open', state_changed_at_ms = ?
         WHERE lease_id = ?",
        root.pid,
        start_ticks,
        pidfd_ino,
        root.process_group_id,
        in_cgroup,
        now_ms,
        id
    )
    .execute(writer)
    .await
    .in_store(ROLE, "open a lease")
    .map(drop)
}

async fn change_state(
    writer: &mut SqliteConnection,
    lease_id: LeaseId,
    state: LeaseState,
    exit: Option<&LeaseExit>,
    error: Option<&str>,
    now_ms: i64,
) -> Result<(), StoreError> {
    let id = lease_id.0.as_bytes().as_slice();
    let state = state.name();
    let exit_code = exit.and_then(|exit| exit.exit_code);
    let exit_signal = exit.and_then(|exit| exit.exit_signal);
    sqlx::query!(
        "UPDATE process_leases SET state = ?, state_changed_at_ms = ?, exit_code = coalesce(?, exit_code),
             exit_signal = coalesce(?, exit_signal), last_error = coalesce(?, last_error)
         WHERE lease_id = ?",
        state,
        now_ms,
        exit_code,
        exit_signal,
        error,
        id
    )
    .execute(writer)
    .await
    .in_store(ROLE, "change a lease")
    .map(drop)
}

async fn exited(writer: &mut SqliteConnection, lease_id: LeaseId, exit: &LeaseExit) -> Result<(), StoreError> {
    let id = lease_id.0.as_bytes().as_slice();
    sqlx::query!(
        "UPDATE process_leases SET exit_code = ?, exit_signal = ?
         WHERE lease_id = ? AND exit_code IS NULL AND exit_signal IS NULL AND state IN ('closed', 'lost')",
        exit.exit_code,
        exit.exit_signal,
        id
    )
    .execute(writer)
    .await
    .in_store(ROLE, "note a lease's exit")
    .map(drop)
}

async fn note(writer: &mut SqliteConnection, lease_id: LeaseId, error: &str) -> Result<(), StoreError> {
    let id = lease_id.0.as_bytes().as_slice();
    sqlx::query!("UPDATE process_leases SET last_error = ? WHERE lease_id = ?", error, id)
        .execute(writer)
        .await
        .in_store(ROLE, "note a lease's error")
        .map(drop)
}
