//! Ending a verified tree: TERM, grace, KILL, children first; at last its cgroup, where it has one.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::careful::StoredTree;
use super::stat::descendants_of;
use super::table::{ProcessTable, TableError};
use super::verify::{OwnedProcess, OwnedProcessTree, collect_members, take_hold};

/// How long one look at the tree waits for its end before the next.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);
/// Sweeps that a tree may outlive (by forking faster than it is swept) before its cgroup is killed as a whole.
const SWEEPS_BEFORE_CGROUP: u32 = 20;

/// The limits of [`end_tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndOptions {
    /// Time between TERM and KILL.
    pub grace: Duration,
    /// Time after the first KILL until we give up and report survivors (a process in uninterruptible sleep).
    pub kill_limit: Duration,
}

/// What [`end_tree`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndReport {
    /// The whole tree has ended.
    pub ended: bool,
    /// At least one process had to be killed.
    pub killed: bool,
    /// The pids that were still alive at the end.
    pub survivors: Vec<i32>,
    /// What went wrong on the way, as text.
    pub problems: Vec<String>,
}

/// Ends a verified tree and waits until it is gone, within `grace + kill_limit`.
///
/// TERM goes to the wrapper, which passes it to its group, and to members outside of the group. The wrapper ends when
/// its last descendant has, so its end is the tree's. Only pidfds of verified processes are signalled. Blocks; not for
/// an async task.
pub fn end_tree(tree: OwnedProcessTree, options: EndOptions, table: &dyn ProcessTable) -> EndReport {
    let OwnedProcessTree { root, members, evidence } = tree;
    let mut report = EndReport::default();
    let mut known = members;
    for member in known.iter().filter(|member| member.stat.process_group_id != evidence.process_group_id) {
        signal(member, Signal::TERM, &mut report);
    }
    signal(&root, Signal::TERM, &mut report);
    if !wait(&root, options.grace, &mut report) {
        report.killed = true;
        let deadline = Instant::now() + options.kill_limit;
        let mut sweeps = 0;
        loop {
            sweeps += 1;
            if let Some(leaf) = evidence.cgroup.as_deref().filter(|_| sweeps > SWEEPS_BEFORE_CGROUP) {
                kill_cgroup(leaf, table, &mut report);
            }
            match collect_members(&evidence, &root, table) {
                Ok(Some(members)) => known = merge(known, members),
                Ok(None) => break,
                Err(error) => report.problem(&error),
            }
            known.retain(|member| !has_ended(member));
            if known.is_empty() {
                // Nothing below it and still there: the wrapper itself hangs.
                if wait(&root, SWEEP_INTERVAL, &mut report) {
                    break;
                }
                signal(&root, Signal::KILL, &mut report);
            }
            for member in &known {
                signal(member, Signal::KILL, &mut report);
            }
            if wait(&root, SWEEP_INTERVAL, &mut report) || Instant::now() >= deadline {
                break;
            }
        }
    }
    // The wrapper may have been killed by someone else, leaving members behind that we hold.
    end_left_over(&mut known, options, &mut report);
    report.survivors = known.iter().map(|member| member.stat.pid).collect();
    if !has_ended(&root) {
        report.survivors.push(root.stat.pid);
    }
    if let Some(leaf) = &evidence.cgroup {
        let left = empty_cgroup(leaf, options.kill_limit, table, &mut report);
        report.survivors.extend(left);
        report.survivors.sort_unstable();
        report.survivors.dedup();
    }
    report.ended = report.survivors.is_empty();
    report
}

/// Ends what is left in a lease's cgroup after its wrapper has gone: TERM, grace, then the whole cgroup is killed. The caller
/// has made sure that the cgroup is the lease's and of this boot. Blocks.
pub fn end_cgroup(leaf: &Path, options: EndOptions, table: &dyn ProcessTable) -> EndReport {
    let mut report = EndReport::default();
    for pid in cgroup_members(leaf, table, &mut report) {
        if let Some(member) = hold_member(leaf, pid, table, &mut report) {
            signal(&member, Signal::TERM, &mut report);
        }
    }
    let deadline = Instant::now() + options.grace;
    let mut left = cgroup_members(leaf, table, &mut report);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(SWEEP_INTERVAL);
        left = cgroup_members(leaf, table, &mut report);
    }
    report.survivors = empty_cgroup(leaf, options.kill_limit, table, &mut report);
    report.ended = report.survivors.is_empty() && report.problems.is_empty();
    report
}

/// Kills whatever is left in a cgroup and waits until it is empty; returns what would not go.
fn empty_cgroup(leaf: &Path, limit: Duration, table: &dyn ProcessTable, report: &mut EndReport) -> Vec<i32> {
    let mut left = cgroup_members(leaf, table, report);
    if left.is_empty() {
        return left;
    }
    kill_cgroup(leaf, table, report);
    let deadline = Instant::now() + limit;
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(SWEEP_INTERVAL);
        left = cgroup_members(leaf, table, report);
    }
    left
}

fn kill_cgroup(leaf: &Path, table: &dyn ProcessTable, report: &mut EndReport) {
    report.killed = true;
    if let Err(error) = table.cgroup_kill(leaf) {
        report.problem(&error);
    }
}

/// Lists what lives in a cgroup; a zombie stays in it until it is reaped.
fn cgroup_members(leaf: &Path, table: &dyn ProcessTable, report: &mut EndReport) -> Vec<i32> {
    let mut members = match table.cgroup_members(leaf) {
        Ok(members) => members.unwrap_or_default(),
        Err(error) => {
            report.problem(&error);
            return Vec::new();
        }
    };
    // What can't be told counts as alive.
    members.retain(|pid| !matches!(table.stat(*pid), Ok(None)) && !is_dead(*pid, table));
    members
}

fn is_dead(pid: i32, table: &dyn ProcessTable) -> bool {
    matches!(table.stat(pid), Ok(Some(stat)) if stat.is_dead())
}

/// Takes hold of a member and confirms that what is held is one.
fn hold_member(leaf: &Path, pid: i32, table: &dyn ProcessTable, report: &mut EndReport) -> Option<OwnedProcess> {
    let held = (|| {
        let Some(handle) = table.open(pid)? else { return Ok(None) };
        let Some(stat) = table.stat(pid)? else { return Ok(None) };
        let still_member = table.cgroup_members(leaf)?.is_some_and(|members| members.contains(&pid));
        let is_it = still_member && !handle.wait_ended(Duration::ZERO)?;
        Ok(is_it.then_some(OwnedProcess { stat, handle }))
    })();
    held.unwrap_or_else(|error: TableError| {
        report.problem(&error);
        None
    })
}

/// Ends the tree of a row without a lease, within `grace + kill_limit`. Blocks.
///
/// Nothing adopts its orphans, so everything that was seen below the root is held from the start, and what appears below
/// those meanwhile is added as long as they live.
pub fn end_stored(tree: StoredTree, options: EndOptions, table: &dyn ProcessTable) -> EndReport {
    let StoredTree { root, members } = tree;
    let mut report = EndReport::default();
    let mut known = members;
    known.push(root);
    for process in &known {
        signal(process, Signal::TERM, &mut report);
    }
    let deadline = Instant::now() + options.grace;
    while known.iter().any(|process| !has_ended(process)) && Instant::now() < deadline {
        let found = below(&known, table, &mut report);
        known = merge(known, found);
        known.retain(|process| !has_ended(process));
        if let Some(last) = known.last() {
            wait(last, SWEEP_INTERVAL.min(deadline.saturating_duration_since(Instant::now())), &mut report);
        }
    }
    end_left_over(&mut known, options, &mut report);
    report.survivors = known.iter().map(|process| process.stat.pid).collect();
    report.ended = report.survivors.is_empty();
    report
}

/// Takes hold of what descends from processes that we hold.
fn below(held: &[OwnedProcess], table: &dyn ProcessTable, report: &mut EndReport) -> Vec<OwnedProcess> {
    let processes = match table.list() {
        Ok(processes) => processes,
        Err(error) => {
            report.problem(&error);
            return Vec::new();
        }
    };
    let own = table.own_pid();
    let mut found = Vec::new();
    for root in held.iter().filter(|root| !has_ended(root)) {
        for (pid, _) in descendants_of(root.stat.pid, &processes) {
            let listed = processes.iter().find(|process| process.pid == pid && pid != own && !process.is_dead());
            // One that ended meanwhile leaves a number that may be another's, and with it this look at what is below.
            if let Some(listed) = listed
                && !has_ended(root)
                && let Ok(Some(process)) = take_hold(listed, root.stat.pid, table)
            {
                found.push(process);
            }
        }
    }
    found
}

fn end_left_over(known: &mut Vec<OwnedProcess>, options: EndOptions, report: &mut EndReport) {
    known.retain(|member| !has_ended(member));
    for member in known.iter() {
        report.killed = true;
        signal(member, Signal::KILL, report);
    }
    let deadline = Instant::now() + options.kill_limit;
    for member in known.iter() {
        wait(member, deadline.saturating_duration_since(Instant::now()), report);
    }
    known.retain(|member| !has_ended(member));
}

/// Adds newly found processes to the known ones, by pid and start time.
fn merge(mut known: Vec<OwnedProcess>, found: Vec<OwnedProcess>) -> Vec<OwnedProcess> {
    for process in found {
        let same = |other: &OwnedProcess| {
            other.stat.pid == process.stat.pid
                && other.stat.start_ticks == process.stat.start_ticks
                && !has_ended(other)
        };
        if !known.iter().any(same) {
            known.push(process);
        }
    }
    known
}

/// What can't be told counts as alive: it is then reported as a survivor instead of being forgotten.
fn has_ended(process: &OwnedProcess) -> bool {
    process.handle.wait_ended(Duration::ZERO).unwrap_or(false)
}

fn wait(process: &OwnedProcess, limit: Duration, report: &mut EndReport) -> bool {
    match process.handle.wait_ended(limit) {
        Ok(ended) => ended,
        Err(error) => {
            report.problem(&error);
            false
        }
    }
}

fn signal(process: &OwnedProcess, signal: Signal, report: &mut EndReport) {
    if let Err(error) = process.handle.signal(signal) {
        report.problem(&error);
    }
}

impl EndReport {
    /// Sweeps repeat; the same problem is kept once.
    fn problem(&mut self, error: &TableError) {
        let text = error.to_string();
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }
}
