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
//! - [`end`]: TERM, grace, KILL.

pub mod end;
pub mod proc_table;
pub mod stat;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod verify;

pub use end::{EndOptions, EndReport, end_tree};
pub use proc_table::ProcTable;
pub use stat::{ProcessStat, descendants_of};
pub use table::{ProcessHandle, ProcessTable, TableError, environment_value};
pub use verify::{Check, LeaseEvidence, OwnedProcess, OwnedProcessTree, Verification, verify_owned_tree};
