//! What goes into the store and comes out of it.

use std::path::PathBuf;

use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};

use super::state::LeaseState;

/// A lease about to be made, before anything is spawned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLease {
    /// Its id, of version 7.
    pub lease_id: LeaseId,
    /// The install that makes it.
    pub instance_id: InstanceId,
    /// The session the adapter is for.
    pub session_id: Option<SessionId>,
    /// The agent's name in the configuration.
    pub agent: String,
    /// The install root.
    pub wrapper_root: PathBuf,
    /// The wrapper's executable, absolute and free of symbolic links.
    pub wrapper_path: PathBuf,
    /// BLAKE3 of the command as configured.
    pub command_hash: [u8; 32],
    /// The running boot.
    pub boot_id: String,
    /// The cgroup that the tree is to be put in, where there can be one.
    pub cgroup_path: Option<PathBuf>,
}

/// The root of a lease's tree, the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRoot {
    /// Its pid, as stored: any number.
    pub pid: i64,
    /// Its start time in clock ticks after boot.
    pub start_ticks: u64,
    /// Its pidfd's inode, where the kernel had one.
    pub pidfd_ino: Option<u64>,
    /// The group and session it leads.
    pub process_group_id: Option<i64>,
}

/// How the tree's root ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseExit {
    /// The adapter's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended the adapter.
    pub exit_signal: Option<i32>,
}

/// A lease as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Its id.
    pub lease_id: LeaseId,
    /// The install that made it.
    pub instance_id: InstanceId,
    /// The session the adapter is for.
    pub session_id: Option<SessionId>,
    /// The agent's name in the configuration.
    pub agent: String,
    /// The install root.
    pub wrapper_root: PathBuf,
    /// The wrapper's executable.
    pub wrapper_path: PathBuf,
    /// The root of its tree, once it was spawned.
    pub root: Option<LeaseRoot>,
    /// The cgroup made for its tree.
    pub cgroup_path: Option<PathBuf>,
    /// BLAKE3 of the command as configured.
    pub command_hash: [u8; 32],
    /// The boot it belongs to.
    pub boot_id: String,
    /// When it was made, UTC milliseconds.
    pub started_at_ms: i64,
    /// Where it stands.
    pub state: LeaseState,
    /// Since when, UTC milliseconds.
    pub state_changed_at_ms: i64,
    /// How its tree's root ended.
    pub exit: LeaseExit,
    /// The last thing that went wrong with it.
    pub last_error: Option<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseChange {
    /// Makes a lease in the state `starting`.
    Insert(NewLease),
    /// The wrapper runs: `starting` becomes `open`.
    Open {
        /// Which.
        lease_id: LeaseId,
        /// Its tree's root.
        root: LeaseRoot,
        /// Whether it is in the cgroup that was made for it; if not, the lease has none.
        in_cgroup: bool,
    },
    /// Moves a lease on.
    Move {
        /// Which.
        lease_id: LeaseId,
        /// The next state.
        state: LeaseState,
        /// How the tree's root ended, where known; `None` keeps what is stored.
        exit: Option<LeaseExit>,
        /// What went wrong; `None` keeps what is stored.
        error: Option<String>,
    },
    /// Adds how the root ended to a lease that is over and does not say; the state stays.
    Exited {
        /// Which.
        lease_id: LeaseId,
        /// How the tree's root ended.
        exit: LeaseExit,
    },
    /// Notes what went wrong, without a change of state.
    Note {
        /// Which.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
    },
}

/// Why a change makes no sense. Nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such lease.
    #[error("there is no lease {lease_id}")]
    NotFound {
        /// The id.
        lease_id: LeaseId,
    },
    /// A lease with that id exists.
    #[error("lease {lease_id} exists already")]
    Exists {
        /// The id.
        lease_id: LeaseId,
    },
    /// One state can't follow the other.
    #[error("lease {lease_id} is {from}, it can't become {to}")]
    IllegalMove {
        /// The id.
        lease_id: LeaseId,
        /// The state it has.
        from: LeaseState,
        /// The state that was asked for.
        to: LeaseState,
    },
}

impl Refusal {
    /// Returns the stable kind for the wire.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::IllegalMove { .. } => ErrorKind::Conflict,
        }
    }
}

/// Which leases to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseFilter {
    /// Only those of this agent.
    pub agent: Option<String>,
    /// Only those of this session.
    pub session_id: Option<SessionId>,
    /// Only those that are not over.
    pub unfinished: bool,
    /// Only those in this state.
    pub state: Option<LeaseState>,
    /// Only those whose id begins with this (hexadecimal digits; hyphens do not count).
    pub id_prefix: Option<String>,
}
