//! What the Leases actor can be asked or told.

use holdfast_protocol::ids::{LeaseId, SessionId};
use holdfast_stores::kit::StoreError;
use holdfast_stores::leases::LeaseRecord;

use super::ending::{StoredEnd, TreeEnd};
use super::error::LeasesError;
use super::inspection::{Inspection, ReapReport};
use super::leased::{ExitWatch, ProcessExit, RootIdentity};
use crate::process::StoredProcess;
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
    /// Says what a reaping would do now, and does nothing.
    Foresee {
        /// What would be done.
        reply: LeasesReply<ReapReport>,
    },
    /// Looks at a lease's tree, check by check, and signals nothing.
    Verify {
        /// Which.
        lease_id: LeaseId,
        /// The lease, and what was found.
        reply: LeasesReply<(LeaseRecord, Inspection)>,
    },
    /// Ends the process of a row without a lease, if it is proven to be theirs.
    EndStored {
        /// What the row knows of it.
        stored: StoredProcess,
        /// What came out of it.
        reply: LeasesReply<StoredEnd>,
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
    /// A wrapper was killed; what it left behind is to be ended.
    WrapperKilled {
        /// Whose.
        lease_id: LeaseId,
    },
    /// What runs below the wrappers.
    DescendantsSeen {
        /// Per lease, pid and start time.
        seen: Vec<(LeaseId, Vec<(i32, u64)>)>,
    },
    /// It is time to look after what nobody looks after, and to remove old leases.
    SweepDue,
    /// The check of the file after an unclean stop has ended; empty means sound.
    FileChecked {
        /// What is wrong, or why it could not be checked.
        outcome: Result<Vec<String>, StoreError>,
    },
}
