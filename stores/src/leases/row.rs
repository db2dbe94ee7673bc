//! Rows as the database holds them, and their way to the types outside.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};
use uuid::Uuid;

use super::ROLE;
use super::state::LeaseState;
use super::types::{LeaseExit, LeaseRecord, LeaseRoot};
use crate::kit::StoreError;

/// A row of `process_leases`.
pub(super) struct LeaseColumns {
    pub(super) lease_id: Vec<u8>,
    pub(super) instance_id: Vec<u8>,
    pub(super) session_id: Option<Vec<u8>>,
    pub(super) agent: String,
    pub(super) wrapper_root: Vec<u8>,
    pub(super) wrapper_path: Vec<u8>,
    pub(super) root_pid: Option<i64>,
    pub(super) root_start_ticks: Option<i64>,
    pub(super) root_pidfd_ino: Option<i64>,
    pub(super) process_group_id: Option<i64>,
    pub(super) cgroup_path: Option<Vec<u8>>,
    pub(super) command_hash: Vec<u8>,
    pub(super) boot_id: String,
    pub(super) started_at_ms: i64,
    pub(super) state: String,
    pub(super) state_changed_at_ms: i64,
    pub(super) exit_code: Option<i64>,
    pub(super) exit_signal: Option<i64>,
    pub(super) last_error: Option<String>,
}

impl LeaseColumns {
    /// Reads the row; `action` is for the error.
    pub(super) fn into_record(self, action: &'static str) -> Result<LeaseRecord, StoreError> {
        let state = LeaseState::named(&self.state).ok_or_else(|| bad_row(action, "state", &self.state))?;
        let command_hash = <[u8; 32]>::try_from(self.command_hash.as_slice())
            .map_err(|_length| bad_row(action, "command_hash", &self.command_hash))?;
        let root = match (self.root_pid, self.root_start_ticks) {
            (Some(pid), Some(start_ticks)) => Some(LeaseRoot {
                pid,
                // Both numbers are the kernel's u64, kept bit for bit.
                start_ticks: start_ticks.cast_unsigned(),
                pidfd_ino: self.root_pidfd_ino.map(i64::cast_unsigned),
                process_group_id: self.process_group_id,
            }),
            (None, _) | (_, None) => None,
        };
        Ok(LeaseRecord {
            lease_id: LeaseId(uuid(action, "lease_id", &self.lease_id)?),
            instance_id: InstanceId(uuid(action, "instance_id", &self.instance_id)?),
            session_id: match &self.session_id {
                Some(bytes) => Some(SessionId(uuid(action, "session_id", bytes)?)),
                None => None,
            },
            agent: self.agent,
            wrapper_root: OsString::from_vec(self.wrapper_root).into(),
            wrapper_path: OsString::from_vec(self.wrapper_path).into(),
            root,
            cgroup_path: self.cgroup_path.map(|path| OsString::from_vec(path).into()),
            command_hash,
            boot_id: self.boot_id,
            started_at_ms: self.started_at_ms,
            state,
            state_changed_at_ms: self.state_changed_at_ms,
            exit: LeaseExit {
                exit_code: small(action, "exit_code", self.exit_code)?,
                exit_signal: small(action, "exit_signal", self.exit_signal)?,
            },
            last_error: self.last_error,
        })
    }
}

/// Returns the error for a value that this program never writes.
fn bad_row(action: &'static str, column: &str, value: impl std::fmt::Debug) -> StoreError {
    StoreError::Row { store: ROLE, action, problem: format!("{column} is {value:?}") }
}

fn uuid(action: &'static str, column: &str, bytes: &[u8]) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| bad_row(action, column, bytes))
}

fn small(action: &'static str, column: &str, value: Option<i64>) -> Result<Option<i32>, StoreError> {
    value.map(|number| i32::try_from(number).map_err(|_| bad_row(action, column, number))).transpose()
}
