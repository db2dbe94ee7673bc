//! What the verification asks about processes. A trait, so that a test can let a PID be recycled between two questions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::stat::ProcessStat;

/// A question about processes that could not be answered. Never read as "no".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// We may not look (another user's process, a hardened `/proc`) or may not signal.
    #[error("permission denied to {action}")]
    Denied {
        /// What was being done, with the pid.
        action: String,
    },
    /// The source of the answer is missing or broken (`/proc` not mounted, out of file descriptors).
    #[error("failed to {action}: {reason}")]
    Unavailable {
        /// What was being done, with the pid.
        action: String,
        /// The cause as text.
        reason: String,
    },
}

/// The processes of this machine, as this process may see them. Pids are those of our PID namespace.
pub trait ProcessTable: Send + Sync {
    /// Returns the id of the running boot, a UUID as text.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn boot_id(&self) -> Result<String, TableError>;

    /// Returns our own process id.
    fn own_pid(&self) -> i32;

    /// Returns what the kernel says about a process; `None` when it shows no such process.
    ///
    /// # Errors
    /// When it can't be told.
    fn stat(&self, pid: i32) -> Result<Option<ProcessStat>, TableError>;

    /// Returns the environment as it was at the last exec: `NAME=value` entries, each ended by a zero byte. `None` when
    /// there is no such process.
    ///
    /// # Errors
    /// When it can't be told; so for a zombie.
    fn environment(&self, pid: i32) -> Result<Option<Vec<u8>>, TableError>;

    /// Returns the executable's path; it ends in ` (deleted)` when the file was replaced. `None` when there is no such
    /// process.
    ///
    /// # Errors
    /// When it can't be told.
    fn executable(&self, pid: i32) -> Result<Option<PathBuf>, TableError>;

    /// Returns program and arguments as the process shows them now; it may have rewritten them. Empty for a kernel thread
    /// and a zombie, `None` when there is no such process.
    ///
    /// # Errors
    /// When it can't be told.
    fn command_line(&self, pid: i32) -> Result<Option<Vec<OsString>>, TableError>;

    /// Returns the path of the process's cgroup below the root of the unified hierarchy, as `/proc/PID/cgroup` has it. `None`
    /// when there is no such process or no unified hierarchy.
    ///
    /// # Errors
    /// When it can't be told.
    fn cgroup_path(&self, pid: i32) -> Result<Option<PathBuf>, TableError>;

    /// Returns the processes in the cgroup at `directory` and below it; `None` when there is no such cgroup.
    ///
    /// # Errors
    /// When it can't be told.
    fn cgroup_members(&self, directory: &Path) -> Result<Option<Vec<i32>>, TableError>;

    /// Kills everything in the cgroup at `directory` and below it, in one step that no fork can outrun. Nothing happens when
    /// there is no such cgroup.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn cgroup_kill(&self, directory: &Path) -> Result<(), TableError>;

    /// Removes the cgroup at `directory` and those below it; they must be empty. Nothing happens when there is none.
    ///
    /// # Errors
    /// When processes are left in it, or the kernel refuses.
    fn cgroup_remove(&self, directory: &Path) -> Result<(), TableError>;

    /// Returns all processes.
    ///
    /// # Errors
    /// When the list can't be had. Processes that end while it is read are left out.
    fn list(&self) -> Result<Vec<ProcessStat>, TableError>;

    /// Takes hold of whatever process carries `pid` now; `None` when none does.
    ///
    /// The caller checks afterwards that it is the one it meant.
    ///
    /// # Errors
    /// When it can't be told.
    fn open(&self, pid: i32) -> Result<Option<Box<dyn ProcessHandle>>, TableError>;
}

/// A hold on one process (a pidfd): it never comes to mean another process.
pub trait ProcessHandle: Send + Sync {
    /// Returns the pidfd's inode number, unique within a boot; `None` on kernels before 6.9.
    fn pidfd_inode(&self) -> Option<u64>;

    /// Sends a signal; `false` when the process has ended already.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn signal(&self, signal: Signal) -> Result<bool, TableError>;

    /// Waits until the process has ended (a zombie counts as ended) or the limit has passed; says whether it has ended.
    ///
    /// # Errors
    /// When it can't be told.
    fn wait_ended(&self, limit: Duration) -> Result<bool, TableError>;
}

/// Returns the value of a variable in an environment block as `/proc/PID/environ` holds it.
pub fn environment_value<'a>(block: &'a [u8], name: &str) -> Option<&'a [u8]> {
    block.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name_only() {
        let block = b"XHOLD=no\0HOLDER=no\0HOLD=a=b\0EMPTY=\0";
        assert_eq!(environment_value(block, "HOLD"), Some(&b"a=b"[..]));
        assert_eq!(environment_value(block, "EMPTY"), Some(&b""[..]));
        assert_eq!(environment_value(block, "HOL"), None);
    }
}
