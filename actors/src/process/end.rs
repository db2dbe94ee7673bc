//! Ending a verified tree: TERM, grace, KILL, children first.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::table::{ProcessTable, TableError};
use super::verify::{OwnedProcess, OwnedProcessTree, collect_members};

/// How long one look at the tree waits for its end before the next.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

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
        loop {
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
    report.ended = report.survivors.is_empty();
    report
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
