//! What a look at a lease's tree shows, for whoever asks.

use holdfast_protocol::ids::LeaseId;

use crate::process::{Check, Finding, ProcessStat};

/// What a look at a lease's tree showed. Nothing was signalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The checks in their order; none when the lease records no process.
    pub findings: Vec<Finding>,
    /// What follows from them.
    pub verdict: Verdict,
    /// The processes found: the tree from its root down when it is ours, else what is left of it.
    pub processes: Vec<ProcessStat>,
}

/// What follows from a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All evidence agrees: closing the lease ends this tree.
    Owned,
    /// The wrapper has ended.
    Gone,
    /// What lives there is not this lease's; it is never signalled.
    Foreign(Check),
    /// A check could not be made; nothing is signalled until it can.
    Unclear(String),
    /// No process was recorded, and some carry the lease in their environment: a start that was cut short.
    Unrecorded,
}

impl Inspection {
    pub(super) fn without_checks(verdict: Verdict) -> Self {
        Self { findings: Vec::new(), verdict, processes: Vec::new() }
    }
}

impl Verdict {
    /// Returns the stable name for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Gone => "gone",
            Self::Foreign(_) => "foreign",
            Self::Unclear(_) => "unclear",
            Self::Unrecorded => "unrecorded",
        }
    }

    /// Returns what there is to say beside the name.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Owned | Self::Gone => None,
            Self::Foreign(check) => Some(check.describe().to_owned()),
            Self::Unclear(why) => Some(why.clone()),
            Self::Unrecorded => Some("its start was cut short; a wrapper ends by itself when that happens".to_owned()),
        }
    }
}

/// What a reaping did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReapReport {
    /// Leases whose verified trees were ended.
    pub closed: Vec<LeaseId>,
    /// Leases whose trees were gone or not ours.
    pub lost: Vec<LeaseId>,
    /// Leases that could not be verified or whose trees would not end, each with the reason; kept as they are.
    pub kept: Vec<(LeaseId, String)>,
    /// Old leases removed.
    pub expired: u64,
}

impl ReapReport {
    /// Adds what a look at a lease says will become of it.
    pub(super) fn foresee(&mut self, lease_id: LeaseId, inspection: &Inspection) {
        match &inspection.verdict {
            Verdict::Owned => self.closed.push(lease_id),
            Verdict::Gone | Verdict::Foreign(_) if !inspection.processes.is_empty() => self.closed.push(lease_id),
            Verdict::Gone | Verdict::Foreign(_) | Verdict::Unrecorded => self.lost.push(lease_id),
            Verdict::Unclear(why) => self.kept.push((lease_id, why.clone())),
        }
    }
}
