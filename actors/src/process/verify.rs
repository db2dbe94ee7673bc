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

use super::cgroup::is_leaf_of;
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
    /// The cgroup that holds the tree and nothing else, where there is one.
    pub cgroup: Option<PathBuf>,
}

/// One thing the verification checks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Check {
    /// The recorded pid is one that a wrapper can have: above 1 and not our own. Failing it means a corrupt lease.
    RootPid,
    /// The recorded group is the one the recorded wrapper leads. Failing it means a corrupt lease.
    RecordedGroup,
    /// The recorded cgroup is one that this lease can have. Failing it means a corrupt lease.
    RecordedCgroup,
    /// The running boot is the recorded one.
    Boot,
    /// A process with that pid lives and is no zombie.
    Alive,
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
    /// The process is in the recorded cgroup.
    Cgroup,
    /// What is below it can be listed, and it was alive all the while.
    Descendants,
}

impl Check {
    /// All checks in their order.
    pub const ALL: [Self; 12] = [
        Self::RootPid,
        Self::RecordedGroup,
        Self::RecordedCgroup,
        Self::Boot,
        Self::Alive,
        Self::PidfdInode,
        Self::StartTicks,
        Self::GroupAndSession,
        Self::Environment,
        Self::Executable,
        Self::Cgroup,
        Self::Descendants,
    ];

    /// Returns the stable name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::RootPid => "root_pid",
            Self::RecordedGroup => "recorded_group",
            Self::RecordedCgroup => "recorded_cgroup",
            Self::Boot => "boot",
            Self::Alive => "alive",
            Self::PidfdInode => "pidfd_inode",
            Self::StartTicks => "start_ticks",
            Self::GroupAndSession => "group_and_session",
            Self::Environment => "environment",
            Self::Executable => "executable",
            Self::Cgroup => "cgroup",
            Self::Descendants => "descendants",
        }
    }

    /// Says whether failing this check means that the lease itself is damaged, not merely out of date.
    pub fn means_corrupt(self) -> bool {
        match self {
            Self::RootPid | Self::RecordedGroup | Self::RecordedCgroup => true,
            Self::Boot
            | Self::Alive
            | Self::PidfdInode
            | Self::StartTicks
            | Self::GroupAndSession
            | Self::Environment
            | Self::Executable
            | Self::Cgroup
            | Self::Descendants => false,
        }
    }

    /// Returns what failing it says, for logs and for `last_error`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::RootPid => "the recorded pid is none that a wrapper can have",
            Self::RecordedGroup => "the recorded process group is not led by the recorded pid",
            Self::RecordedCgroup => "the recorded cgroup is none that this lease can have",
            Self::Boot => "the machine was started anew since",
            Self::Alive => "no process with that pid lives",
            Self::PidfdInode => "the pid now belongs to another process (pidfd inode differs)",
            Self::StartTicks => "the pid now belongs to another process (start time differs)",
            Self::GroupAndSession => "the process is in another group or session than recorded",
            Self::Environment => "the process does not carry this lease in its environment",
            Self::Executable => "the process does not run our wrapper",
            Self::Cgroup => "the process is not in the cgroup of this lease",
            Self::Descendants => "the process ended while its descendants were listed",
        }
    }
}

/// What came out of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed {
        /// What was found.
        found: String,
    },
    /// It does not hold.
    Failed {
        /// What was recorded.
        recorded: String,
        /// What was found.
        found: String,
    },
    /// It could not be made.
    Unknown {
        /// Why.
        why: String,
    },
    /// Nothing was recorded that could be compared.
    NotRecorded,
    /// One before it decided already.
    NotMade,
}

/// A check and what came out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// What came out of it.
    pub outcome: Outcome,
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
    inspect(evidence, table).1
}

/// Like [`verify_owned_tree`], with what came out of each check. The first that does not hold, or can't be made, decides;
/// those behind it are not made.
pub fn inspect(evidence: &LeaseEvidence, table: &dyn ProcessTable) -> (Vec<Finding>, Verification) {
    let mut findings = Findings(Vec::with_capacity(Check::ALL.len()));
    let verification = match verify(evidence, table, &mut findings) {
        Ok(tree) => Verification::Owned(tree),
        Err(Decided::Fails(Check::Boot | Check::Alive | Check::Descendants)) => Verification::Gone,
        Err(Decided::Fails(failed)) => Verification::Foreign { failed },
        Err(Decided::Hidden(why)) => Verification::CannotTell { why },
    };
    (findings.complete(), verification)
}

/// Why a tree is not ours to end.
enum Decided {
    Fails(Check),
    Hidden(String),
}

/// Collects what comes out of the checks.
struct Findings(Vec<Finding>);

impl Findings {
    fn pass(&mut self, check: Check, found: impl ToString) {
        self.0.push(Finding { check, outcome: Outcome::Passed { found: found.to_string() } });
    }

    fn fail(&mut self, check: Check, recorded: impl ToString, found: impl ToString) -> Decided {
        let outcome = Outcome::Failed { recorded: recorded.to_string(), found: found.to_string() };
        self.0.push(Finding { check, outcome });
        Decided::Fails(check)
    }

    fn hide(&mut self, check: Check, why: impl ToString) -> Decided {
        let why = why.to_string();
        self.0.push(Finding { check, outcome: Outcome::Unknown { why: why.clone() } });
        Decided::Hidden(why)
    }

    fn not_recorded(&mut self, check: Check) {
        self.0.push(Finding { check, outcome: Outcome::NotRecorded });
    }

    fn compare<T: PartialEq + ToString>(&mut self, check: Check, recorded: T, found: T) -> Result<(), Decided> {
        if recorded == found {
            self.pass(check, found);
            return Ok(());
        }
        Err(self.fail(check, recorded, found))
    }

    /// Takes an answer of the table: an error hides what the check is about, and so does a process that lives but is not
    /// shown.
    fn shown<T>(&mut self, check: Check, answer: Result<Option<T>, TableError>) -> Result<T, Decided> {
        match answer {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(self.hide(check, "the process lives but /proc does not show this of it")),
            Err(error) => Err(self.hide(check, error)),
        }
    }

    /// Adds those that were not made.
    fn complete(mut self) -> Vec<Finding> {
        for check in Check::ALL {
            if !self.0.iter().any(|finding| finding.check == check) {
                self.0.push(Finding { check, outcome: Outcome::NotMade });
            }
        }
        self.0
    }
}

fn verify(
    evidence: &LeaseEvidence,
    table: &dyn ProcessTable,
    findings: &mut Findings,
) -> Result<OwnedProcessTree, Decided> {
    let pid = evidence.root_pid;
    if pid <= 1 || pid == table.own_pid() {
        return Err(findings.fail(Check::RootPid, pid, "no possible wrapper"));
    }
    findings.pass(Check::RootPid, pid);
    findings.compare(Check::RecordedGroup, evidence.process_group_id, pid)?;
    match &evidence.cgroup {
        Some(leaf) if is_leaf_of(leaf, evidence.lease_id) => findings.pass(Check::RecordedCgroup, leaf.display()),
        Some(leaf) => return Err(findings.fail(Check::RecordedCgroup, leaf.display(), "no possible leaf")),
        None => findings.not_recorded(Check::RecordedCgroup),
    }
    match table.boot_id() {
        Ok(boot_id) => findings.compare(Check::Boot, evidence.boot_id.clone(), boot_id)?,
        Err(error) => return Err(findings.hide(Check::Boot, error)),
    }
    // Take hold first, ask by pid afterwards, and at the end confirm that what we hold still lives: then the pid can't
    // have passed to another process between the questions.
    let handle = match table.open(pid) {
        Ok(Some(handle)) => handle,
        Ok(None) => return Err(findings.fail(Check::Alive, pid, "no process")),
        Err(error) => return Err(findings.hide(Check::Alive, error)),
    };
    if still_lives(&*handle, findings)? {
        findings.pass(Check::Alive, pid);
    } else {
        return Err(findings.fail(Check::Alive, pid, "a zombie"));
    }
    match (evidence.root_pidfd_inode, handle.pidfd_inode()) {
        (Some(recorded), Some(live)) => findings.compare(Check::PidfdInode, recorded, live)?,
        (None, _) => findings.not_recorded(Check::PidfdInode),
        (Some(_), None) => {
            let why = "this kernel does not show the pidfd inode that was recorded";
            return Err(findings.hide(Check::PidfdInode, why));
        }
    }
    let checked = check_by_pid(evidence, table, findings);
    if !still_lives(&*handle, findings)? {
        return Err(findings.fail(Check::Descendants, pid, "it ended meanwhile"));
    }
    let root = OwnedProcess { stat: checked?, handle };
    match collect_members(evidence, &root, table) {
        Ok(Some(members)) => {
            findings.pass(Check::Descendants, members.len());
            Ok(OwnedProcessTree { root, members, evidence: evidence.clone() })
        }
        Ok(None) => Err(findings.fail(Check::Descendants, pid, "it ended meanwhile")),
        Err(error) => Err(findings.hide(Check::Descendants, error)),
    }
}

fn still_lives(handle: &dyn ProcessHandle, findings: &mut Findings) -> Result<bool, Decided> {
    handle.wait_ended(Duration::ZERO).map(|ended| !ended).map_err(|error| findings.hide(Check::Alive, error))
}

fn check_by_pid(
    evidence: &LeaseEvidence,
    table: &dyn ProcessTable,
    findings: &mut Findings,
) -> Result<ProcessStat, Decided> {
    let pid = evidence.root_pid;
    let stat = findings.shown(Check::StartTicks, table.stat(pid))?;
    findings.compare(Check::StartTicks, evidence.root_start_ticks, stat.start_ticks)?;
    let group = evidence.process_group_id;
    if stat.process_group_id != group || stat.session_id != group {
        let found = format!("group {}, session {}", stat.process_group_id, stat.session_id);
        return Err(findings.fail(Check::GroupAndSession, group, found));
    }
    findings.pass(Check::GroupAndSession, group);
    let environment = findings.shown(Check::Environment, table.environment(pid))?;
    let named = environment_value(&environment, LEASE_ID_VARIABLE)
        .map_or("no lease".to_owned(), |value| String::from_utf8_lossy(value).into_owned());
    if !carries_lease(&environment, evidence.lease_id, evidence.instance_id) {
        return Err(findings.fail(Check::Environment, evidence.lease_id, named));
    }
    findings.pass(Check::Environment, named);
    let executable = findings.shown(Check::Executable, table.executable(pid))?;
    if !is_executable(&executable, &evidence.wrapper_path) {
        return Err(findings.fail(Check::Executable, evidence.wrapper_path.display(), executable.display()));
    }
    findings.pass(Check::Executable, executable.display());
    let Some(leaf) = &evidence.cgroup else {
        findings.not_recorded(Check::Cgroup);
        return Ok(stat);
    };
    match table.cgroup_members(leaf) {
        Ok(Some(members)) if members.contains(&pid) => findings.pass(Check::Cgroup, leaf.display()),
        Ok(Some(_)) => return Err(findings.fail(Check::Cgroup, leaf.display(), "another cgroup")),
        Ok(None) => return Err(findings.fail(Check::Cgroup, leaf.display(), "that cgroup is not there")),
        Err(error) => return Err(findings.hide(Check::Cgroup, error)),
    }
    Ok(stat)
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
/// is their subreaper), when it is in the root's group or session or in the lease's cgroup, or when its environment names
/// the lease. We, and what descends from us, never belong to it. `None` when the root ended meanwhile: its pid and group may then have passed to
/// others while we looked, so nothing found is trusted.
///
/// # Errors
/// When the process list, or the list of the lease's cgroup, can't be had.
pub fn collect_members(
    evidence: &LeaseEvidence,
    root: &OwnedProcess,
    table: &dyn ProcessTable,
) -> Result<Option<Vec<OwnedProcess>>, TableError> {
    let own = table.own_pid();
    let in_leaf: HashSet<i32> = match &evidence.cgroup {
        Some(leaf) => table.cgroup_members(leaf)?.unwrap_or_default().into_iter().collect(),
        None => HashSet::new(),
    };
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
        let is_marked = in_group || in_leaf.contains(&process.pid);
        if !depths.contains_key(&process.pid) && (is_marked || names_lease(process, evidence, table)) {
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
