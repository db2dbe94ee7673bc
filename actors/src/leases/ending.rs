//! Looking at the tree of one lease and ending it, and what the outcome means for the lease. Blocks; runs beside the actor.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_stores::leases::{LeaseRecord, LeaseState};

use super::adopt::{Adopter, Orphans};
use super::inspection::{Inspection, Verdict};
use crate::process::cgroup::is_leaf_of;
use crate::process::verify::find_by_environment;
use crate::process::{
    CarefulVerdict, Check, EndOptions, EndReport, LeaseEvidence, ProcessTable, StoredProcess, Verification, end_cgroup,
    end_stored, end_tree, inspect, verify_owned_tree, verify_stored,
};

/// How long a tree may take to die of SIGKILL.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(10);
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

/// What came out of the careful look at the process of a row without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredEnd {
    /// It was theirs, and it has ended with what hung below it.
    Ended {
        /// SIGKILL was needed.
        killed: bool,
    },
    /// No process with that pid lives.
    Gone,
    /// It is not proven to be theirs; nothing was signalled.
    LeftAlone {
        /// What is missing or differs.
        why: String,
    },
    /// Not all of it would end.
    Survivors(Vec<i32>),
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
        cgroup: record.cgroup_path.clone(),
    })
}

impl Ender {
    fn options(&self) -> EndOptions {
        EndOptions { grace: self.grace, kill_limit: KILL_LIMIT }
    }

    /// Looks at a lease's tree, check by check, and ends nothing.
    pub fn look(&self, record: &LeaseRecord) -> Inspection {
        let evidence = match evidence_of(record) {
            Ok(evidence) => evidence,
            Err(NoEvidence::Unspawned) => return self.look_for_unspawned(record),
            Err(NoEvidence::Damaged(check)) => return Inspection::without_checks(Verdict::Foreign(check)),
            Err(NoEvidence::Incomplete(why)) => return Inspection::without_checks(Verdict::Unclear(why.to_owned())),
        };
        let (findings, verification) = inspect(&evidence, &*self.table);
        let (verdict, processes) = match verification {
            Verification::Owned(tree) => {
                let all = std::iter::once(&tree.root).chain(tree.members.iter().rev());
                (Verdict::Owned, all.map(|process| process.stat.clone()).collect())
            }
            Verification::Gone => (Verdict::Gone, self.left_in_leaf(record)),
            Verification::Foreign { failed } => (Verdict::Foreign(failed), self.left_in_leaf(record)),
            Verification::CannotTell { why } => (Verdict::Unclear(why), Vec::new()),
        };
        Inspection { findings, verdict, processes }
    }

    fn look_for_unspawned(&self, record: &LeaseRecord) -> Inspection {
        match find_by_environment(record.lease_id, record.instance_id, &*self.table) {
            Ok(found) if found.is_empty() => Inspection::without_checks(Verdict::Gone),
            Ok(processes) => Inspection { processes, ..Inspection::without_checks(Verdict::Unrecorded) },
            Err(error) => Inspection::without_checks(Verdict::Unclear(error.to_string())),
        }
    }

    fn left_in_leaf(&self, record: &LeaseRecord) -> Vec<crate::process::ProcessStat> {
        let Ok(Some(leaf)) = self.leaf_of(record) else { return Vec::new() };
        let members = self.table.cgroup_members(leaf).ok().flatten().unwrap_or_default();
        let live = members.into_iter().filter_map(|pid| self.table.stat(pid).ok().flatten());
        live.filter(|process| !process.is_dead()).collect()
    }

    /// Verifies a lease's tree and ends it if it is ours; then whatever is left in the lease's cgroup.
    pub fn end(&self, record: &LeaseRecord) -> TreeEnd {
        let evidence = match evidence_of(record) {
            Ok(evidence) => evidence,
            Err(NoEvidence::Unspawned) => return self.then_leaf(record, self.outwait(record)),
            Err(NoEvidence::Damaged(check)) => return TreeEnd::Foreign(check),
            Err(NoEvidence::Incomplete(why)) => return TreeEnd::Unclear(why.to_owned()),
        };
        let end = match verify_owned_tree(&evidence, &*self.table) {
            Verification::Gone => TreeEnd::Gone,
            Verification::Foreign { failed } => TreeEnd::Foreign(failed),
            Verification::CannotTell { why } => TreeEnd::Unclear(why),
            Verification::Owned(tree) => {
                let recorded = tree.members.iter().map(|member| (member.stat.pid, member.stat.start_ticks)).collect();
                let report = end_tree(tree, self.options(), &*self.table);
                tell_problems(record, &report);
                if !report.ended {
                    return TreeEnd::Survivors(report.survivors);
                }
                // The wrapper may have been killed by someone else in the meantime: then its orphans are ours.
                match self.adopt_orphans(record, recorded) {
                    TreeEnd::Gone => TreeEnd::Ended { killed: report.killed },
                    TreeEnd::Ended { killed } => TreeEnd::Ended { killed: killed || report.killed },
                    other => other,
                }
            }
        };
        self.then_leaf(record, end)
    }

    /// Ends what a wrapper of this run left behind when it was killed. `Gone` when there was nothing.
    pub fn end_orphans(&self, record: &LeaseRecord, recorded: Vec<(i32, u64)>) -> TreeEnd {
        // The cgroup first, where there is one: what it holds needs no adopter, and is found wherever it went.
        let leaf = self.end_leaf(record);
        let adopted = self.adopt_orphans(record, recorded);
        match (leaf, adopted) {
            (TreeEnd::Ended { killed }, TreeEnd::Gone) => TreeEnd::Ended { killed },
            (TreeEnd::Ended { killed }, TreeEnd::Ended { killed: also }) => TreeEnd::Ended { killed: killed || also },
            (problem @ (TreeEnd::Survivors(_) | TreeEnd::Unclear(_)), _) => problem,
            (_, adopted) => adopted,
        }
    }

    fn adopt_orphans(&self, record: &LeaseRecord, recorded: Vec<(i32, u64)>) -> TreeEnd {
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

    /// Follows up an end with what is left in the lease's cgroup. What could not be told stays so.
    fn then_leaf(&self, record: &LeaseRecord, end: TreeEnd) -> TreeEnd {
        match end {
            TreeEnd::Unclear(_) => end,
            // These are in the leaf, where there is one, and are ended there; without one they stay.
            TreeEnd::Survivors(_) => match self.end_leaf(record) {
                ended @ TreeEnd::Ended { .. } => ended,
                TreeEnd::Gone | TreeEnd::Foreign(_) | TreeEnd::Unclear(_) | TreeEnd::Survivors(_) => end,
            },
            TreeEnd::Ended { .. } | TreeEnd::Gone | TreeEnd::Foreign(_) => match self.end_leaf(record) {
                TreeEnd::Gone | TreeEnd::Foreign(_) => end,
                other => other,
            },
        }
    }

    /// Ends what is left in a lease's cgroup and removes that. `Gone` when there is no such cgroup, or nothing in it.
    pub fn end_leaf(&self, record: &LeaseRecord) -> TreeEnd {
        let leaf = match self.leaf_of(record) {
            Ok(Some(leaf)) => leaf,
            Ok(None) => return TreeEnd::Gone,
            Err(end) => return end,
        };
        let members = match self.table.cgroup_members(leaf) {
            Ok(None) => return TreeEnd::Gone,
            Ok(Some(members)) => members,
            Err(error) => return TreeEnd::Unclear(error.to_string()),
        };
        let end = if members.is_empty() {
            TreeEnd::Gone
        } else {
            tracing::warn!(lease_id = %record.lease_id, ?members, "processes were left in a lease's cgroup");
            let report = end_cgroup(leaf, self.options(), &*self.table);
            tell_problems(record, &report);
            match report.problems.first() {
                _ if !report.survivors.is_empty() => return TreeEnd::Survivors(report.survivors),
                Some(problem) if !report.ended => return TreeEnd::Unclear(problem.clone()),
                Some(_) | None => TreeEnd::Ended { killed: report.killed },
            }
        };
        self.remove_leaf(leaf);
        end
    }

    /// Returns the lease's cgroup, if it has one that can be acted on.
    fn leaf_of<'a>(&self, record: &'a LeaseRecord) -> Result<Option<&'a Path>, TreeEnd> {
        let Some(leaf) = record.cgroup_path.as_deref() else { return Ok(None) };
        if !is_leaf_of(leaf, record.lease_id) {
            return Err(TreeEnd::Foreign(Check::RecordedCgroup));
        }
        match self.table.boot_id() {
            Ok(boot_id) if boot_id == record.boot_id => Ok(Some(leaf)),
            // Cgroups do not outlive a boot; one with this name is not the one that was made.
            Ok(_) => Ok(None),
            Err(error) => Err(TreeEnd::Unclear(error.to_string())),
        }
    }

    fn remove_leaf(&self, leaf: &Path) {
        if let Err(error) = self.table.cgroup_remove(leaf) {
            tracing::debug!(%error, "a cgroup stays until it is looked for again");
        }
    }

    /// Looks, with all care, for the process of a row without a lease, and ends it if it is proven to be theirs.
    pub fn end_stored(&self, stored: &StoredProcess) -> StoredEnd {
        match verify_stored(stored, &*self.table) {
            CarefulVerdict::Gone => StoredEnd::Gone,
            CarefulVerdict::LeftAlone { why } => StoredEnd::LeftAlone { why: why.to_owned() },
            CarefulVerdict::CannotTell { why } => StoredEnd::LeftAlone { why },
            CarefulVerdict::Owned(tree) => {
                let report = end_stored(tree, self.options(), &*self.table);
                if !report.problems.is_empty() {
                    tracing::warn!(pid = stored.pid, problems = ?report.problems, "ending a process met problems");
                }
                if report.ended {
                    StoredEnd::Ended { killed: report.killed }
                } else {
                    StoredEnd::Survivors(report.survivors)
                }
            }
        }
    }
}

fn tell_problems(record: &LeaseRecord, report: &EndReport) {
    if !report.problems.is_empty() {
        tracing::warn!(lease_id = %record.lease_id, problems = ?report.problems, "ending a tree met problems");
    }
}
