//! What the daemon and the wrapper `lease-exec` say to each other: arguments, environment, status lines.
//!
//! The wrapper is the root of a lease's process tree and what the lease row records; the adapter is the process it runs.

use serde::{Deserialize, Serialize};

/// The first argument that makes the program a wrapper.
pub const SUBCOMMAND: &str = "lease-exec";
/// In the wrapper's environment: the lease.
pub const LEASE_ID_VARIABLE: &str = "HOLDFAST_LEASE_ID";
/// In the wrapper's environment: the install the lease belongs to.
pub const INSTANCE_ID_VARIABLE: &str = "HOLDFAST_INSTANCE_ID";
/// In the wrapper's environment: the session the adapter serves, if it serves one.
pub const SESSION_ID_VARIABLE: &str = "HOLDFAST_SESSION_ID";

/// Argument: the pid of the process whose death ends the tree. Required: a wrapper compares it with its real parent, so
/// a parent that died before the wrapper could watch it is noticed.
pub const PARENT_PID_ARGUMENT: &str = "--parent-pid";
/// Argument: the number of the inherited file descriptor that takes the status lines.
pub const STATUS_FD_ARGUMENT: &str = "--status-fd";
/// Argument: milliseconds between TERM and KILL.
pub const KILL_GRACE_ARGUMENT: &str = "--kill-grace-ms";
/// Argument: the adapter's working directory; the wrapper itself stays where it is.
pub const DIRECTORY_ARGUMENT: &str = "--directory";
/// What parts the wrapper's arguments from the adapter's command.
pub const COMMAND_SEPARATOR: &str = "--";

/// Exit code when the wrapper was called wrongly or could not set itself up, as env(1) and timeout(1) have it for a
/// failure of their own.
pub const EXIT_WRAPPER_FAILED: u8 = 125;
/// Exit code when the adapter was found but can't be run. Source: POSIX shell, section 2.8.2.
pub const EXIT_CANNOT_RUN: u8 = 126;
/// Exit code when the adapter was not found. Source: POSIX shell, section 2.8.2.
pub const EXIT_NOT_FOUND: u8 = 127;

/// One line of JSON on the status pipe. "Tree gone" has no line: it is the wrapper's own exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StatusLine {
    /// The adapter runs.
    Started {
        /// The wrapper's pid.
        root_pid: i32,
        /// The wrapper's start time, in clock ticks after boot; `None` when `/proc` did not say.
        root_start_ticks: Option<u64>,
        /// The process group and session the wrapper leads and the adapter was started in.
        process_group_id: i32,
        /// The adapter's pid.
        adapter_pid: i32,
        /// The adapter's start time, in clock ticks after boot; `None` when `/proc` did not say.
        adapter_start_ticks: Option<u64>,
    },
    /// The adapter could not be started; the wrapper exits.
    ExecFailed {
        /// The program as given.
        program: String,
        /// The error number, where the system gave one. Source: errno(3).
        errno: Option<i32>,
        /// What was tried, where, and why it failed; for people.
        message: String,
    },
    /// The adapter has ended; descendants of it may live on until the wrapper exits.
    AdapterExited {
        /// Its exit code, unless a signal ended it.
        exit_code: Option<i32>,
        /// The signal that ended it.
        exit_signal: Option<i32>,
    },
}
