//! Ending the tree of one lease, and what its outcome means for the lease. Blocks; runs beside the actor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_stores::leases::{LeaseRecord, LeaseState};

use super::adopt::{Adopter, Orphans};
use crate::process::verify::find_by_environment;
use crate::process::{Check, EndOptions, LeaseEvidence, ProcessTable, Verification, end_tree, verify_owned_tree};

/// How long a tree may take to die of SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How much longer than the grace period a wrapper without a record may take to end by itself.
const OUTWAIT_EXTRA: Duration = Duration::from_secs(2);
/// How often environments are searched again while a wrapper without a record ends by itself.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// What came out of looking after one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEnd {
    /// It was ours and has gone.
    Ended {
        /// SIGKILL was needed.
        killed: bool,
    },
    /// It had gone before.
    Gone,
    /// What lives there is not this lease's tree.
    Foreign(Check),
    /// A check could not be made; nothing was signalled.
    Unclear(String),
    /// Not all of it would end.
    Survivors(Vec<i32>),
}

impl TreeEnd {
    /// Returns the state the lease goes over to, if it can leave the one it has, and what to note.
    pub fn verdict(&self) -> (Option<LeaseState>, Option<String>) {
        match self {
            Self::Ended { .. } => (Some(LeaseState::Closed), None),
            Self::Gone => (Some(LeaseState::Lost), Some("the process was gone already".to_owned())),
            Self::Foreign(check) if check.means_corrupt() => {
                (Some(LeaseState::Lost), Some(format!("the lease is damaged: {}", check.describe())))
            }
            Self::Foreign(check) => (Some(LeaseState::Lost), Some(check.describe().to_owned())),
            Self::Unclear(why) => (None, Some(format!("could not be verified: {why}"))),
            Self::Survivors(pids) => (None, Some(format!("processes outlived SIGKILL: {pids:?}"))),
        }
    }
}

/// What ending trees takes.
#[derive(Clone)]
pub struct Ender {
    /// The processes of this machine.
    pub table: Arc<dyn ProcessTable>,
    /// Ends what a killed wrapper left behind, where this process adopts orphans.
    pub adopter: Option<Adopter>,
    /// Time between TERM and KILL.
    pub grace: Duration,
}

/// What keeps a record from being evidence.
enum NoEvidence {
    Unspawned,
    Damaged(Check),
    Incomplete(&'static str),
}

/// Turns a record into evidence. Stored numbers may be anything.
fn evidence_of(record: &LeaseRecord) -> Result<LeaseEvidence, NoEvidence> {
    let root = record.root.ok_or(NoEvidence::Unspawned)?;
    let root_pid = i32::try_from(root.pid).map_err(|_range| NoEvidence::Damaged(Check::RootPid))?;
    let group = root.process_group_id.ok_or(NoEvidence::Incomplete("no process group was recorded"))?;
    let process_group_id = i32::try_from(group).map_err(|_range| NoEvidence::Damaged(Check::RecordedGroup))?;
    Ok(LeaseEvidence {
        lease_id: record.lease_id,
        instance_id: record.instance_id,
        boot_id: record.boot_id.clone(),
        root_pid,
        root_start_ticks: root.start_ticks,
        root_pidfd_inode: root.pidfd_ino,
        process_group_id,
        wrapper_path: record.wrapper_path.clone(),
    })
}

impl Ender {
    fn options(&self) -> EndOptions {
        EndOptions { grace: self.grace, kill_limit: KILL_LIMIT }
    }

    /// Verifies a lease's tree and ends it if it is ours.
    pub fn end(&self, record: &LeaseRecord) -> TreeEnd {
        let evidence = match evidence_of(record) {
            Ok(evidence) => evidence,
            Err(NoEvidence::Unspawned) => return self.outwait(record),
            Err(NoEvidence::Damaged(check)) => return TreeEnd::Foreign(check),
            Err(NoEvidence::Incomplete(why)) => return TreeEnd::Unclear(why.to_owned()),
        };
        match verify_owned_tree(&evidence, &*self.table) {
            Verification::Gone => TreeEnd::Gone,
            Verification::Foreign { failed } => TreeEnd::Foreign(failed),
            Verification::CannotTell { why } => TreeEnd::Unclear(why),
            Verification::Owned(tree) => {
                let recorded = tree.members.iter().map(|member| (member.stat.pid, member.stat.start_ticks)).collect();
                let report = end_tree(tree, self.options(), &*self.table);
                if !report.problems.is_empty() {
                    tracing::warn!(lease_id = %record.lease_id, problems = ?report.problems, "ending a tree met problems");
                }
                if !report.ended {
                    return TreeEnd::Survivors(report.survivors);
                }
                // The wrapper may have been killed by someone else in the meantime: then its orphans are ours.
                match self.end_orphans(record, recorded) {
                    TreeEnd::Gone => TreeEnd::Ended { killed: report.killed },
                    TreeEnd::Ended { killed } => TreeEnd::Ended { killed: killed || report.killed },
                    other => other,
                }
            }
        }
    }

    /// Ends what a wrapper of this run left behind when it was killed. `Gone` when there was nothing.
    pub fn end_orphans(&self, record: &LeaseRecord, recorded: Vec<(i32, u64)>) -> TreeEnd {
        let Ok(evidence) = evidence_of(record) else { return TreeEnd::Gone };
        let Some(adopter) = &self.adopter else { return self.find_orphans(record) };
        let orphans = Orphans {
            lease_id: record.lease_id,
            instance_id: record.instance_id,
            process_group_id: evidence.process_group_id,
            recorded,
        };
        let report = adopter.end_orphans(orphans, self.options());
        match report.problems.first() {
            _ if !report.survivors.is_empty() => TreeEnd::Survivors(report.survivors),
            Some(problem) if !report.ended => TreeEnd::Unclear(problem.clone()),
            Some(_) | None => TreeEnd::Ended { killed: report.killed },
        }
    }

    /// Without an adopter orphans of a killed wrapper belong to someone else; that some live is worth knowing.
    fn find_orphans(&self, record: &LeaseRecord) -> TreeEnd {
        match find_by_environment(record.lease_id, record.instance_id, &*self.table) {
            Ok(left) if left.is_empty() => TreeEnd::Gone,
            Ok(left) => TreeEnd::Survivors(left.iter().map(|process| process.pid).collect()),
            Err(error) => TreeEnd::Unclear(error.to_string()),
        }
    }

    /// A lease without a recorded process: whoever was to record it has gone, and a wrapper ends its tree by itself when
    /// that happens. It is searched by the lease id and waited for, never signalled.
    fn outwait(&self, record: &LeaseRecord) -> TreeEnd {
        let deadline = Instant::now() + self.grace + OUTWAIT_EXTRA;
        loop {
            match self.find_orphans(record) {
                TreeEnd::Survivors(_) if Instant::now() < deadline => std::thread::sleep(SEARCH_INTERVAL),
                other => return other,
            }
        }
    }
}
