//! Whose child a process is: its ancestors as they are now, up to us, to process 1 or to one we can't see, and what its
//! environment claims. Taken once, when a process connects; what follows from it is decided elsewhere.

use std::time::Duration;

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};

use super::cgroup::leases_on_path;
use super::table::{ProcessHandle, ProcessTable, TableError, environment_value};
use crate::leases::wrapper::{INSTANCE_ID_VARIABLE, LEASE_ID_VARIABLE, SESSION_ID_VARIABLE};

/// Ancestors looked at; real chains have a dozen.
const ANCESTORS_MAX: usize = 128;
/// How often a step is tried again when a parent dies under our eyes.
const TRIES_MAX: usize = 8;

/// A process of a chain of ancestors, as a lease would record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestor {
    /// Its pid.
    pub pid: i32,
    /// Its start time in clock ticks after boot.
    pub start_ticks: u64,
    /// Its pidfd's inode, where the kernel has one.
    pub pidfd_inode: Option<u64>,
}

/// Where a chain of ancestors ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainEnd {
    /// At process 1, or outside of our PID namespace.
    System,
    /// At ourselves.
    Us,
    /// At a process that we can't see, such as another user's on a hardened `/proc`.
    Hidden,
}

/// What a process's environment says of it. Anyone may write anything there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The lease it says it runs under.
    pub lease_id: LeaseId,
    /// The install that it says made the lease.
    pub instance_id: Option<InstanceId>,
    /// The session it says it serves.
    pub session_id: Option<SessionId>,
}

/// Whose child a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// The running boot.
    pub boot_id: String,
    /// The process itself, then its parent, and so on. Each was held while its child was confirmed to be its child.
    pub chain: Vec<Ancestor>,
    /// Where the chain ends.
    pub end: ChainEnd,
    /// Leases whose cgroup the process is in, the outermost first.
    pub cgroups: Vec<LeaseId>,
    /// What its environment claims.
    pub claim: Option<Claim>,
}

impl Lineage {
    /// Says whether nothing at all connects the process with us: it descends from no child of ours, is in no lease's cgroup
    /// and claims nothing.
    pub fn is_unrelated(&self) -> bool {
        self.end == ChainEnd::System && self.cgroups.is_empty() && self.claim.is_none()
    }
}

/// Why nothing can be said of a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineageError {
    /// It has ended.
    #[error("the process that connected has ended")]
    Gone,
    /// A question could not be answered.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Takes the lineage of the process `pid`. `peer` is a hold on it that the kernel handed out; without one whatever carries
/// `pid` now is taken, which may be another by then.
///
/// Makes blocking system calls; not for an async task.
///
/// # Errors
/// [`LineageError`].
pub fn lineage_of(
    pid: i32,
    peer: Option<Box<dyn ProcessHandle>>,
    table: &dyn ProcessTable,
) -> Result<Lineage, LineageError> {
    let boot_id = table.boot_id()?;
    let own = table.own_pid();
    let mut held = match peer {
        Some(handle) => handle,
        None => table.open(pid)?.ok_or(LineageError::Gone)?,
    };
    let mut stat = table.stat(pid)?.ok_or(LineageError::Gone)?;
    let claim = claim_of(pid, table)?;
    let cgroups = table.cgroup_path(pid)?.map(|path| leases_on_path(&path)).unwrap_or_default();
    // What was asked by pid was asked of the one that is held, if that still lives.
    if held.wait_ended(Duration::ZERO)? {
        return Err(LineageError::Gone);
    }
    let mut chain = vec![Ancestor { pid, start_ticks: stat.start_ticks, pidfd_inode: held.pidfd_inode() }];
    let mut tries = 0;
    let end = loop {
        let parent = stat.parent_pid;
        if stat.pid == own {
            break ChainEnd::Us;
        }
        if parent <= 1 && parent != own {
            break ChainEnd::System;
        }
        if chain.len() >= ANCESTORS_MAX || tries >= TRIES_MAX {
            break ChainEnd::Hidden;
        }
        let step = table.open(parent).and_then(|handle| Ok((handle, table.stat(parent)?)));
        // An orphan has got another parent: look again from the same child.
        match table.stat(stat.pid)? {
            Some(again) if !held.wait_ended(Duration::ZERO)? => {
                if again.parent_pid != parent {
                    tries += 1;
                    stat = again;
                    continue;
                }
            }
            Some(_) | None if chain.len() == 1 => return Err(LineageError::Gone),
            // It was an ancestor when it was looked at; whose child it was can't be told any more.
            Some(_) | None => break ChainEnd::Hidden,
        }
        match step {
            Ok((Some(handle), Some(parent_stat))) => {
                let (start_ticks, pidfd_inode) = (parent_stat.start_ticks, handle.pidfd_inode());
                chain.push(Ancestor { pid: parent, start_ticks, pidfd_inode });
                held = handle;
                stat = parent_stat;
                tries = 0;
            }
            // Its child names it as its parent, so it lives: we just may not look.
            Ok((None, _) | (_, None)) | Err(TableError::Denied { .. }) => break ChainEnd::Hidden,
            Err(error @ TableError::Unavailable { .. }) => return Err(error.into()),
        }
    };
    Ok(Lineage { boot_id, chain, end, cgroups, claim })
}

/// An environment that can't be read claims nothing: root's, say, for a daemon that is not root.
fn claim_of(pid: i32, table: &dyn ProcessTable) -> Result<Option<Claim>, TableError> {
    let environment = match table.environment(pid) {
        Ok(Some(environment)) => environment,
        Ok(None) | Err(TableError::Denied { .. }) => return Ok(None),
        Err(error @ TableError::Unavailable { .. }) => return Err(error),
    };
    let text = |name| environment_value(&environment, name).and_then(|value| std::str::from_utf8(value).ok());
    let Some(lease_id) = text(LEASE_ID_VARIABLE).and_then(|id| id.parse().ok()) else { return Ok(None) };
    Ok(Some(Claim {
        lease_id,
        instance_id: text(INSTANCE_ID_VARIABLE).and_then(|id| id.parse().ok()),
        session_id: text(SESSION_ID_VARIABLE).and_then(|id| id.parse().ok()),
    }))
}
