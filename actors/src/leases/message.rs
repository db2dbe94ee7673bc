//! What the Leases actor can be asked or told.

use holdfast_protocol::ids::{LeaseId, SessionId};
use holdfast_stores::kit::StoreError;
use holdfast_stores::leases::LeaseRecord;

use super::ending::TreeEnd;
use super::error::LeasesError;
use super::leased::{ExitWatch, ProcessExit, RootIdentity};
use crate::reply::Reply;

/// An answer of the Leases actor.
pub type LeasesReply<T> = Reply<Result<T, LeasesError>>;

/// A lease about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLease {
    /// The session the adapter is for, if for one.
    pub session_id: Option<SessionId>,
    /// The agent's name in the configuration.
    pub agent: String,
    /// See [`super::command::command_hash`].
    pub command_hash: [u8; 32],
}

/// What a reaping did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReapReport {
    /// Leases whose verified trees were ended.
    pub closed: Vec<LeaseId>,
    /// Leases whose trees were gone or not ours.
    pub lost: Vec<LeaseId>,
    /// Leases that could not be verified or whose trees would not end; kept as they are.
    pub kept: Vec<LeaseId>,
    /// Old leases removed.
    pub expired: u64,
}

/// What health shows of the leases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeasesStatus {
    /// Leases that are not over.
    pub unfinished: usize,
    /// Leases that could not be verified or whose trees would not end, with the reason.
    pub warnings: Vec<(LeaseId, String)>,
    /// A reaping runs.
    pub reaping: bool,
}

/// What the Leases actor can be asked or told. Requests carry a `reply`; facts do not.
pub enum LeasesMessage {
    /// Makes a lease; answered once it is on disk, so that its process may be spawned.
    Open {
        /// What for.
        lease: OpenLease,
        /// The lease, in the state `starting`.
        reply: LeasesReply<LeaseRecord>,
    },
    /// The lease's wrapper runs.
    Opened {
        /// Which.
        lease_id: LeaseId,
        /// The wrapper.
        root: RootIdentity,
        /// How its end will be known.
        exit: ExitWatch,
        /// The lease, in the state `open`.
        reply: LeasesReply<LeaseRecord>,
    },
    /// The lease's process could not be started.
    Failed {
        /// Which.
        lease_id: LeaseId,
        /// Why.
        error: String,
        /// The lease, in the state `closed`.
        reply: LeasesReply<LeaseRecord>,
    },
    /// Ends a lease's tree; answered when it has gone. Nothing that is not verified is signalled.
    Close {
        /// Which.
        lease_id: LeaseId,
        /// Why, for the record.
        reason: Option<String>,
        /// The lease, in the state `closed` or `lost`.
        reply: LeasesReply<LeaseRecord>,
    },
    /// Ends all trees that this run of the daemon started; answered with how many leases are still not over.
    CloseAll {
        /// How many could not be ended.
        reply: LeasesReply<usize>,
    },
    /// Gives a lease up without any signal.
    MarkLost {
        /// Which.
        lease_id: LeaseId,
        /// Why.
        reason: String,
        /// The lease, in the state `lost`.
        reply: LeasesReply<LeaseRecord>,
    },
    /// Looks after the leases that earlier runs of this install left open, and removes old ones.
    ReapStartupOrphans {
        /// What was done.
        reply: LeasesReply<ReapReport>,
    },
    /// Says how the leases stand.
    Status {
        /// The status.
        reply: Reply<LeasesStatus>,
    },
    /// A wrapper has ended.
    TreeEnded {
        /// Whose.
        lease_id: LeaseId,
        /// How the adapter ended, where known.
        exit: Option<ProcessExit>,
        /// What was left behind by a wrapper that was killed.
        end: TreeEnd,
    },
    /// An attempt to end a tree is over.
    EndTried {
        /// Whose.
        lease_id: LeaseId,
        /// What came out of it.
        end: TreeEnd,
    },
    /// It is time to remove old leases.
    ExpireDue,
    /// The check of the file after an unclean stop has ended; empty means sound.
    FileChecked {
        /// What is wrong, or why it could not be checked.
        outcome: Result<Vec<String>, StoreError>,
    },
}
