//! Processes as the kernel shows them, and the proof that a tree of them is ours.
//!
//! A PID alone identifies nothing: it is reused. What is used here is the PID together with its start time, the inode
//! of its pidfd (unique within a boot since Linux 6.9) and the boot id. Whatever sends a signal holds a pidfd that was
//! opened first and checked afterwards, so a PID that was recycled in between is not hit.
//!
//! - [`table`]: the [`ProcessTable`] and [`ProcessHandle`] traits, so that tests can force races;
//! - [`proc_table`]: the real table, `/proc` and pidfds;
//! - [`stat`]: one line of `/proc/PID/stat`;
//! - [`verify`]: which tree belongs to a lease;
//! - [`careful`]: which tree belongs to a row that knows of no lease;
//! - [`cgroup`]: a cgroup of its own for each tree, where there can be one;
//! - [`end`]: TERM, grace, KILL;
//! - [`lineage`]: whose child a process is.

pub mod careful;
pub mod cgroup;
pub mod end;
pub mod lineage;
pub mod proc_table;
pub mod stat;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod verify;

pub use careful::{CarefulVerdict, StoredCommand, StoredProcess, StoredTree, verify_stored};
pub use cgroup::{Cgroups, CgroupsUnavailable};
pub use end::{EndOptions, EndReport, end_cgroup, end_stored, end_tree};
pub use lineage::{Ancestor, ChainEnd, Claim, Lineage, LineageError, lineage_of};
pub use proc_table::ProcTable;
pub use stat::{ProcessStat, descendants_of};
pub use table::{ProcessHandle, ProcessTable, TableError, environment_value};
pub use verify::{
    Check, Finding, LeaseEvidence, Outcome, OwnedProcess, OwnedProcessTree, Verification, inspect, verify_owned_tree,
};
