//! Who holds the lock: a record that names a process beyond doubt, and the checks that it still lives.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

/// `statfs` of a pidfd on kernels that give each its own inode (linux/magic.h, `PID_FS_MAGIC`; Linux 6.9).
const PID_FS_MAGIC: u32 = 0x5049_4446;

/// What the owner writes into the lock file. Only read for messages: the kernel's lock decides, never this text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The daemon's process id.
    pub pid: i32,
    /// The time it started, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
    /// The kernel's random id of this boot.
    pub boot_id: String,
    /// The inode of its pidfd, where the kernel has one a process: unique within a boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pidfd_inode: Option<u64>,
    /// When it started, in UTC milliseconds.
    pub started_at_ms: i64,
    /// The version of the program.
    pub version: String,
}

impl OwnerRecord {
    /// Describes this process.
    ///
    /// # Errors
    /// What reading `/proc` fails with.
    pub fn of_this_process(started_at_ms: i64, version: &str) -> io::Result<Self> {
        let pid = rustix::process::getpid();
        Ok(Self {
            pid: pid.as_raw_nonzero().get(),
            start_ticks: start_ticks(pid.as_raw_nonzero().get())?,
            boot_id: boot_id()?,
            pidfd_inode: pidfd_inode(pid.as_raw_nonzero().get()),
            started_at_ms,
            version: version.to_owned(),
        })
    }

    /// Says whether the process named here still lives. What can't be checked counts as "no".
    pub fn lives(&self) -> bool {
        if boot_id().ok().as_deref() != Some(self.boot_id.as_str())
            || start_ticks(self.pid).ok() != Some(self.start_ticks)
        {
            return false;
        }
        match (self.pidfd_inode, pidfd_inode(self.pid)) {
            (Some(recorded), Some(found)) => recorded == found,
            _ => true,
        }
    }
}

/// Reads the random id of this boot.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Reads field 22 of `/proc/<pid>/stat`. The second field, the name, may hold spaces and brackets, so fields are counted from
/// its last `)`.
fn start_ticks(pid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    text.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in /proc/<pid>/stat"))
}

/// Returns the inode of a process's pidfd, or nothing on kernels where all share one.
fn pidfd_inode(pid: i32) -> Option<u64> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    let descriptor = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let file_system = rustix::fs::fstatfs(&descriptor).ok()?;
    if file_system.f_type as u32 != PID_FS_MAGIC {
        return None;
    }
    Some(rustix::fs::fstat(&descriptor).ok()?.st_ino)
}

/// Finds the process that holds a `flock` on the file with this inode, in the text of `/proc/locks` (proc_locks(5)):
/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. Zero means a process we can't see.
pub(super) fn flock_holder(locks: &str, inode: u64) -> Option<i32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = fields.as_slice() else { return None };
        let found: u64 = place.rsplit(':').next()?.parse().ok()?;
        let pid: i32 = pid.parse().ok()?;
        (found == inode && pid > 0).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_this_process_lives_and_any_change_makes_it_stale() {
        let record = OwnerRecord::of_this_process(1, "0.1.0").unwrap();
        assert!(record.lives());
        assert!(!OwnerRecord { start_ticks: record.start_ticks + 1, ..record.clone() }.lives());
        assert!(!OwnerRecord { boot_id: "another boot".to_owned(), ..record.clone() }.lives());
        assert!(!OwnerRecord { pid: 1, ..record.clone() }.lives());
        assert!(!OwnerRecord { pid: -1, ..record.clone() }.lives());
        if let Some(inode) = record.pidfd_inode {
            assert!(!OwnerRecord { pidfd_inode: Some(inode + 1), ..record }.lives());
        }
    }

    #[test]
    fn the_holder_is_read_from_the_kernels_table() {
        let table = "1: POSIX  ADVISORY  WRITE 20 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 21 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 08:01:77 0 EOF\n\
                     4: -> FLOCK  ADVISORY  WRITE 5 08:01:78 0 EOF\n";
        assert_eq!(flock_holder(table, 77), Some(4711));
        assert_eq!(flock_holder(table, 78), None);
        assert_eq!(flock_holder("", 77), None);
    }
}
