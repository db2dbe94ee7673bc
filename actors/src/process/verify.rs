//! Verification before any signal: does this lease still own a tree of live processes?
//!
//! What is looked at is the wrapper, the root of the tree, because it is ours. An adapter rewrites its title, strips
//! its environment and shows its interpreter as executable, so it proves nothing. All evidence must agree; a check
//! that can't be made is never taken for a yes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_protocol::ids::{InstanceId, LeaseId};

use super::stat::{ProcessStat, descendants_of};
use super::table::{ProcessHandle, ProcessTable, TableError, environment_value};
use crate::leases::wrapper::{INSTANCE_ID_VARIABLE, LEASE_ID_VARIABLE};

/// What `/proc/PID/exe` appends when the file was replaced or removed. Source: proc_pid_exe(5).
const DELETED_SUFFIX: &str = " (deleted)";

/// What a lease recorded about the root of its tree, the wrapper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEvidence {
    /// The lease; the wrapper carries it in its environment.
    pub lease_id: LeaseId,
    /// The install that wrote the lease; in the wrapper's environment too.
    pub instance_id: InstanceId,
    /// The boot the processes belong to.
    pub boot_id: String,
    /// The wrapper's pid.
    pub root_pid: i32,
    /// The wrapper's start time in clock ticks after boot.
    pub root_start_ticks: u64,
    /// The inode of the wrapper's pidfd, where the kernel that ran then had one.
    pub root_pidfd_inode: Option<u64>,
    /// The wrapper's process group and session, both led by it.
    pub process_group_id: i32,
    /// The wrapper's executable, absolute and free of symbolic links.
    pub wrapper_path: PathBuf,
}

/// One thing the verification checks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The recorded pid is one that a wrapper can have: above 1 and not our own. Failing it means a corrupt lease.
    RootPid,
    /// The recorded group is the one the recorded wrapper leads. Failing it means a corrupt lease.
    RecordedGroup,
    /// The pidfd inode is the recorded one.
    PidfdInode,
    /// The start time is the recorded one.
    StartTicks,
    /// Group and session are the recorded ones.
    GroupAndSession,
    /// The environment names this lease and this instance.
    Environment,
    /// The executable is our wrapper.
    Executable,
}

impl Check {
    /// Says whether failing this check means that the lease itself is damaged, not merely out of date.
    pub fn means_corrupt(self) -> bool {
        match self {
            Self::RootPid | Self::RecordedGroup => true,
            Self::PidfdInode | Self::StartTicks | Self::GroupAndSession | Self::Environment | Self::Executable => false,
        }
    }

    /// Returns what was found, for logs and for `last_error`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::RootPid => "the recorded pid is none that a wrapper can have",
            Self::RecordedGroup => "the recorded process group is not led by the recorded pid",
            Self::PidfdInode => "the pid now belongs to another process (pidfd inode differs)",
            Self::StartTicks => "the pid now belongs to another process (start time differs)",
            Self::GroupAndSession => "the process is in another group or session than recorded",
            Self::Environment => "the process does not carry this lease in its environment",
            Self::Executable => "the process does not run our wrapper",
        }
    }
}

/// What the verification found.
pub enum Verification {
    /// All evidence agrees: this tree is ours.
    Owned(OwnedProcessTree),
    /// The wrapper has ended, or belonged to an earlier boot.
    Gone,
    /// Something lives at that pid, and it is not this lease's wrapper.
    Foreign {
        /// The first check that failed.
        failed: Check,
    },
    /// A check could not be made. No signal; the lease is kept.
    CannotTell {
        /// Why.
        why: String,
    },
}

/// A process we hold and have verified.
pub struct OwnedProcess {
    /// What the kernel said after we took hold of it.
    pub stat: ProcessStat,
    /// The hold.
    pub handle: Box<dyn ProcessHandle>,
}

/// A verified tree: the wrapper, and what was below it at that moment.
pub struct OwnedProcessTree {
    /// The wrapper.
    pub root: OwnedProcess,
    /// All others, children before their parents.
    pub members: Vec<OwnedProcess>,
    /// The evidence it was verified with.
    pub evidence: LeaseEvidence,
}

/// Checks a lease's evidence against the live processes and collects the tree if all of it agrees.
///
/// Makes blocking system calls; not for an async task.
pub fn verify_owned_tree(evidence: &LeaseEvidence, table: &dyn ProcessTable) -> Verification {
    match verify(evidence, table) {
        Ok(verification) => verification,
        Err(error) => Verification::CannotTell { why: error.to_string() },
    }
}

fn verify(evidence: &LeaseEvidence, table: &dyn ProcessTable) -> Result<Verification, TableError> {
    let pid = evidence.root_pid;
    if pid <= 1 || pid == table.own_pid() {
        return Ok(Verification::Foreign { failed: Check::RootPid });
    }
    if evidence.process_group_id != pid {
        return Ok(Verification::Foreign { failed: Check::RecordedGroup });
    }
    if table.boot_id()? != evidence.boot_id {
        return Ok(Verification::Gone);
    }
    // Take hold first, ask by pid afterwards, and at the end confirm that what we hold still lives: then the pid can't
    // have passed to another process between the questions.
    let Some(handle) = table.open(pid)? else {
        return Ok(Verification::Gone);
    };
    if handle.wait_ended(Duration::ZERO)? {
        return Ok(Verification::Gone);
    }
    match (evidence.root_pidfd_inode, handle.pidfd_inode()) {
        (Some(recorded), Some(live)) if recorded != live => {
            return Ok(Verification::Foreign { failed: Check::PidfdInode });
        }
        (Some(_), Some(_)) | (None, _) => {}
        (Some(_), None) => return Ok(cannot_tell("this kernel does not show the pidfd inode that was recorded")),
    }
    let checked = check_by_pid(evidence, table)?;
    if handle.wait_ended(Duration::ZERO)? {
        return Ok(Verification::Gone);
    }
    match checked {
        Checked::Agrees(stat) => {
            let root = OwnedProcess { stat, handle };
            match collect_members(evidence, &root, table)? {
                Some(members) => {
                    Ok(Verification::Owned(OwnedProcessTree { root, members, evidence: evidence.clone() }))
                }
                None => Ok(Verification::Gone),
            }
        }
        Checked::Fails(failed) => Ok(Verification::Foreign { failed }),
        Checked::Hidden(what) => Ok(cannot_tell(what)),
    }
}

enum Checked {
    Agrees(ProcessStat),
    Fails(Check),
    Hidden(&'static str),
}

fn check_by_pid(evidence: &LeaseEvidence, table: &dyn ProcessTable) -> Result<Checked, TableError> {
    let pid = evidence.root_pid;
    let Some(stat) = table.stat(pid)? else {
        return Ok(Checked::Hidden("the process lives but /proc does not show it"));
    };
    if stat.start_ticks != evidence.root_start_ticks {
        return Ok(Checked::Fails(Check::StartTicks));
    }
    if stat.process_group_id != evidence.process_group_id || stat.session_id != evidence.process_group_id {
        return Ok(Checked::Fails(Check::GroupAndSession));
    }
    let Some(environment) = table.environment(pid)? else {
        return Ok(Checked::Hidden("the process lives but /proc does not show its environment"));
    };
    if !carries_lease(&environment, evidence.lease_id, evidence.instance_id) {
        return Ok(Checked::Fails(Check::Environment));
    }
    let Some(executable) = table.executable(pid)? else {
        return Ok(Checked::Hidden("the process lives but /proc does not show its executable"));
    };
    if !is_executable(&executable, &evidence.wrapper_path) {
        return Ok(Checked::Fails(Check::Executable));
    }
    Ok(Checked::Agrees(stat))
}

fn cannot_tell(why: &str) -> Verification {
    Verification::CannotTell { why: why.to_owned() }
}

/// Says whether an environment block names this lease of this instance.
pub fn carries_lease(environment: &[u8], lease_id: LeaseId, instance_id: InstanceId) -> bool {
    environment_value(environment, LEASE_ID_VARIABLE) == Some(lease_id.to_string().as_bytes())
        && environment_value(environment, INSTANCE_ID_VARIABLE) == Some(instance_id.to_string().as_bytes())
}

/// Says whether `live`, as `/proc` shows it, is the recorded program, also when the file was replaced since.
pub fn is_executable(live: &Path, recorded: &Path) -> bool {
    let mut deleted = OsString::from(recorded);
    deleted.push(DELETED_SUFFIX);
    live == recorded || live.as_os_str().as_bytes() == deleted.as_bytes()
}

/// Collects and takes hold of every other process of a verified tree, children before their parents.
///
/// A process belongs to the tree when it descends from the root (orphans inside the tree become the root's children, it
/// is their subreaper), when it is in the root's group or session, or when its environment names the lease. We, and what
/// descends from us, never belong to it. `None` when the root ended meanwhile: its pid and group may then have passed to
/// others while we looked, so nothing found is trusted.
///
/// # Errors
/// When the process list can't be had.
pub fn collect_members(
    evidence: &LeaseEvidence,
    root: &OwnedProcess,
    table: &dyn ProcessTable,
) -> Result<Option<Vec<OwnedProcess>>, TableError> {
    let own = table.own_pid();
    let processes = table.list()?;
    let below_root = descendants_of(evidence.root_pid, &processes);
    let below_us: HashSet<i32> = descendants_of(own, &processes).into_iter().map(|(pid, _)| pid).collect();
    // While the daemon lives its wrappers are its descendants; what must be kept out is the daemon below an old wrapper.
    let we_are_inside = below_root.iter().any(|(pid, _)| *pid == own);
    let excluded =
        |pid: i32| pid <= 1 || pid == own || pid == evidence.root_pid || (we_are_inside && below_us.contains(&pid));
    let mut depths: HashMap<i32, u32> = below_root.into_iter().collect();
    for process in &processes {
        let in_group =
            process.process_group_id == evidence.process_group_id || process.session_id == evidence.process_group_id;
        if !depths.contains_key(&process.pid) && (in_group || names_lease(process, evidence, table)) {
            depths.insert(process.pid, 1);
        }
    }
    let mut found: Vec<(&ProcessStat, u32)> = processes
        .iter()
        .filter(|process| !process.is_dead() && !excluded(process.pid))
        .filter_map(|process| depths.get(&process.pid).map(|depth| (process, *depth)))
        .collect();
    found.sort_by_key(|(process, depth)| (std::cmp::Reverse(*depth), std::cmp::Reverse(process.start_ticks)));
    let mut members = Vec::with_capacity(found.len());
    for (listed, _) in found {
        if let Some(member) = take_hold(listed, evidence.root_pid, table)? {
            members.push(member);
        }
    }
    Ok((!root.handle.wait_ended(Duration::ZERO)?).then_some(members))
}

/// An unreadable environment decides nothing here: the other marks stand on their own.
fn names_lease(process: &ProcessStat, evidence: &LeaseEvidence, table: &dyn ProcessTable) -> bool {
    match table.environment(process.pid) {
        Ok(Some(environment)) => carries_lease(&environment, evidence.lease_id, evidence.instance_id),
        Ok(None) | Err(_) => false,
    }
}

/// Opens a listed process and confirms afterwards that it is still the one that was listed.
pub(crate) fn take_hold(
    listed: &ProcessStat,
    root_pid: i32,
    table: &dyn ProcessTable,
) -> Result<Option<OwnedProcess>, TableError> {
    let Some(handle) = table.open(listed.pid)? else {
        return Ok(None);
    };
    let Some(stat) = table.stat(listed.pid)? else {
        return Ok(None);
    };
    // A process that took over the number within one tick has the same start time, but not the same parent; a member
    // that lost its parent between the two looks has become the root's child.
    let same = stat.start_ticks == listed.start_ticks
        && stat.session_id == listed.session_id
        && stat.process_group_id == listed.process_group_id
        && (stat.parent_pid == listed.parent_pid || stat.parent_pid == root_pid);
    if !same || stat.is_dead() || handle.wait_ended(Duration::ZERO)? {
        return Ok(None);
    }
    Ok(Some(OwnedProcess { stat, handle }))
}

/// Takes hold of all live descendants of a process that itself can't go away meanwhile (ourselves), deepest first.
///
/// # Errors
/// When the process list can't be had. A process that can't be opened is left out.
pub fn hold_descendants(root_pid: i32, table: &dyn ProcessTable) -> Result<Vec<OwnedProcess>, TableError> {
    let processes = table.list()?;
    let by_pid: HashMap<i32, &ProcessStat> = processes.iter().map(|process| (process.pid, process)).collect();
    let mut held = Vec::new();
    for (pid, _) in descendants_of(root_pid, &processes) {
        if let Some(listed) = by_pid.get(&pid).filter(|listed| !listed.is_dead())
            && let Ok(Some(process)) = take_hold(listed, root_pid, table)
        {
            held.push(process);
        }
    }
    Ok(held)
}

/// Searches all live environments for a lease; for a lease that has no pid yet. Returns the processes found.
///
/// # Errors
/// When the process list can't be had. Environments that can't be read are passed over.
pub fn find_by_environment(
    lease_id: LeaseId,
    instance_id: InstanceId,
    table: &dyn ProcessTable,
) -> Result<Vec<ProcessStat>, TableError> {
    let own = table.own_pid();
    let mut found = table.list()?;
    found.retain(|process| {
        let carries = match table.environment(process.pid) {
            Ok(Some(environment)) => carries_lease(&environment, lease_id, instance_id),
            Ok(None) | Err(_) => false,
        };
        process.pid != own && !process.is_dead() && carries
    });
    Ok(found)
}
