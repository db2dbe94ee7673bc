//! What the Leases actor can answer instead of a result.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::LeaseId;
use holdfast_stores::kit::StoreError;
use holdfast_stores::leases::Refusal;

use crate::address::CallError;
use crate::process::TableError;

/// What the Leases actor can answer instead of a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeasesError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The change makes no sense for the lease as it is.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A bound on adapter processes is reached.
    #[error("{running} adapter processes{bound} run already, the bound is {limit}")]
    TooMany {
        /// How many leases are not over.
        running: usize,
        /// The bound.
        limit: u32,
        /// Which one it is.
        bound: Bound,
    },
    /// The kernel does not say what has to be recorded.
    #[error("failed to read the running boot's id: {0}")]
    Boot(TableError),
    /// Nobody can say whether the tree is ours, so nothing was signalled and the lease is kept.
    #[error("lease {lease_id} can't be verified, so nothing was signalled: {why}")]
    Unverifiable {
        /// The lease.
        lease_id: LeaseId,
        /// Why.
        why: String,
    },
    /// Processes outlived SIGKILL.
    #[error("processes of lease {lease_id} outlived SIGKILL: {pids:?}")]
    Survivors {
        /// The lease.
        lease_id: LeaseId,
        /// Their pids.
        pids: Vec<i32>,
    },
    /// The call itself brought no answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What a bound on processes counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// Processes of all agents: `leases.max_processes`.
    All,
    /// Processes of this agent: `agents.<alias>.max_processes`.
    Agent(String),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Agent(agent) => write!(formatter, " of agent `{agent}`"),
        }
    }
}

impl LeasesError {
    /// Returns the stable kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Refused(refusal) => refusal.kind(),
            Self::TooMany { .. } => ErrorKind::Busy,
            Self::Boot(_) => ErrorKind::Internal,
            Self::Unverifiable { .. } => ErrorKind::Denied,
            Self::Survivors { .. } => ErrorKind::AgentFailed,
            Self::Call(error) => WireError::from(error.clone()).kind,
        }
    }
}

impl From<LeasesError> for WireError {
    fn from(error: LeasesError) -> Self {
        let wire = WireError::new(error.kind(), error.to_string());
        match error {
            LeasesError::Store(store) => store.to_wire(),
            LeasesError::Call(call) => call.into(),
            LeasesError::TooMany { bound: Bound::All, .. } => {
                wire.with_remedy("close a session, or raise `leases.max_processes` in config.toml")
            }
            LeasesError::TooMany { bound: Bound::Agent(agent), .. } => wire
                .with_remedy(format!("close a session of it, or raise `agents.{agent}.max_processes` in config.toml")),
            LeasesError::Unverifiable { .. } => {
                wire.with_remedy("see that the daemon may read /proc of its own user's processes, then close it again")
            }
            LeasesError::Survivors { .. } => {
                wire.with_remedy("a process stuck in the kernel ends with what it waits for; then close it again")
            }
            LeasesError::Refused(_) | LeasesError::Boot(_) => wire,
        }
    }
}
