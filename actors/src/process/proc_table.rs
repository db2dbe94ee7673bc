//! The real process table: `/proc` and pidfds.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal, waitid};

use super::cgroup;
use super::stat::ProcessStat;
use super::table::{ProcessHandle, ProcessTable, TableError};

/// The file system type of pidfds that have an inode of their own (`PID_FS_MAGIC` in linux/magic.h).
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// `/proc` of the running system.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcTable;

impl ProcTable {
    /// A missing file under `/proc/PID` means "no such process" only if `/proc` is there at all.
    fn confirm_mounted(self) -> Result<(), TableError> {
        let content = std::fs::read_to_string("/proc/self/stat")
            .map_err(|error| unavailable("read /proc/self/stat".to_owned(), &error))?;
        match ProcessStat::parse(&content) {
            Some(stat) if stat.pid == self.own_pid() => Ok(()),
            Some(_) | None => Err(TableError::Unavailable {
                action: "read /proc/self/stat".to_owned(),
                reason: "/proc belongs to another PID namespace".to_owned(),
            }),
        }
    }

    fn answer<T>(self, result: io::Result<T>, action: impl FnOnce() -> String) -> Result<Option<T>, TableError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::SRCH) => self.confirm_mounted().map(|()| None),
                Some(Errno::ACCESS | Errno::PERM) => Err(TableError::Denied { action: action() }),
                Some(_) | None => Err(unavailable(action(), &error)),
            },
        }
    }
}

impl ProcessTable for ProcTable {
    fn boot_id(&self) -> Result<String, TableError> {
        let path = "/proc/sys/kernel/random/boot_id";
        std::fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .map_err(|error| unavailable(format!("read {path}"), &error))
    }

    fn own_pid(&self) -> i32 {
        getpid().as_raw_pid()
    }

    fn stat(&self, pid: i32) -> Result<Option<ProcessStat>, TableError> {
        let path = format!("/proc/{pid}/stat");
        // The command name may be any bytes; only the fields after it matter.
        let Some(content) = self.answer(std::fs::read(&path), || format!("read {path}"))? else {
            return Ok(None);
        };
        match ProcessStat::parse(&String::from_utf8_lossy(&content)) {
            Some(stat) => Ok(Some(stat)),
            None => {
                Err(TableError::Unavailable { action: format!("read {path}"), reason: "unexpected format".to_owned() })
            }
        }
    }

    fn environment(&self, pid: i32) -> Result<Option<Vec<u8>>, TableError> {
        let path = format!("/proc/{pid}/environ");
        self.answer(std::fs::read(&path), || format!("read {path}"))
    }

    fn executable(&self, pid: i32) -> Result<Option<PathBuf>, TableError> {
        let path = format!("/proc/{pid}/exe");
        self.answer(std::fs::read_link(&path), || format!("read {path}"))
    }

    fn command_line(&self, pid: i32) -> Result<Option<Vec<OsString>>, TableError> {
        let path = format!("/proc/{pid}/cmdline");
        let Some(mut block) = self.answer(std::fs::read(&path), || format!("read {path}"))? else {
            return Ok(None);
        };
        // Each word ends with a zero byte; one that rewrote its title may have left the last one out.
        if block.last() == Some(&0) {
            block.pop();
        } else if block.is_empty() {
            return Ok(Some(Vec::new()));
        }
        Ok(Some(block.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()))
    }

    fn cgroup_path(&self, pid: i32) -> Result<Option<PathBuf>, TableError> {
        let path = format!("/proc/{pid}/cgroup");
        let content = self.answer(std::fs::read(&path), || format!("read {path}"))?;
        Ok(content.as_deref().and_then(cgroup::unified_path))
    }

    fn cgroup_members(&self, directory: &Path) -> Result<Option<Vec<i32>>, TableError> {
        cgroup::members(directory).map_err(|error| unavailable(format!("read cgroup {}", directory.display()), &error))
    }

    fn cgroup_kill(&self, directory: &Path) -> Result<(), TableError> {
        cgroup::kill(directory).map_err(|error| unavailable(format!("kill cgroup {}", directory.display()), &error))
    }

    fn cgroup_remove(&self, directory: &Path) -> Result<(), TableError> {
        cgroup::remove(directory).map_err(|error| unavailable(format!("remove cgroup {}", directory.display()), &error))
    }

    fn list(&self) -> Result<Vec<ProcessStat>, TableError> {
        self.confirm_mounted()?;
        let entries = std::fs::read_dir("/proc").map_err(|error| unavailable("list /proc".to_owned(), &error))?;
        let mut processes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| unavailable("list /proc".to_owned(), &error))?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            match self.stat(pid) {
                Ok(Some(stat)) => processes.push(stat),
                // Another user's process on a hardened /proc is not one that we could own.
                Ok(None) | Err(TableError::Denied { .. }) => {}
                Err(error @ TableError::Unavailable { .. }) => return Err(error),
            }
        }
        Ok(processes)
    }

    fn open(&self, pid: i32) -> Result<Option<Box<dyn ProcessHandle>>, TableError> {
        // `from_raw` is not to be asked about negative numbers, which mean groups.
        let Some(wanted) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else {
            return Ok(None);
        };
        match pidfd_open(wanted, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(Box::new(ProcHandle::new(pid, pidfd)))),
            // INVAL and NOENT: the number is in use as the id of a thread that leads no process.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(Errno::PERM | Errno::ACCESS) => Err(TableError::Denied { action: format!("open process {pid}") }),
            Err(error) => Err(unavailable(format!("open process {pid}"), &error.into())),
        }
    }
}

/// A pidfd.
#[derive(Debug)]
pub struct ProcHandle {
    pid: i32,
    pidfd: OwnedFd,
    inode: Option<u64>,
}

impl ProcHandle {
    /// Wraps a pidfd; `pid` appears in error texts only.
    pub fn new(pid: i32, pidfd: OwnedFd) -> Self {
        let inode = pidfd_inode(&pidfd);
        Self { pid, pidfd, inode }
    }
}

impl ProcHandle {
    /// Reaps the process if it is a dead child of ours; otherwise nothing happens.
    pub fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // Someone else may have reaped it.
        let _reaped = waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
    }
}

impl ProcessHandle for ProcHandle {
    fn pidfd_inode(&self) -> Option<u64> {
        self.inode
    }

    fn signal(&self, signal: Signal) -> Result<bool, TableError> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(Errno::PERM) => Err(TableError::Denied { action: format!("signal process {}", self.pid) }),
            Err(error) => Err(unavailable(format!("signal process {}", self.pid), &error.into())),
        }
    }

    fn wait_ended(&self, limit: Duration) -> Result<bool, TableError> {
        let deadline = std::time::Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3_600, tv_nsec: 0 });
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(unavailable(format!("wait for process {}", self.pid), &error.into())),
            }
        }
    }
}

/// Returns the inode of a pidfd, or `None` where all pidfds share one (kernels before 6.9).
pub fn pidfd_inode(pidfd: &OwnedFd) -> Option<u64> {
    let file_system = rustix::fs::fstatfs(pidfd).ok()?;
    if u64::try_from(file_system.f_type).ok()? != PID_FS_MAGIC {
        return None;
    }
    rustix::fs::fstat(pidfd).ok().map(|stat| stat.st_ino)
}

fn unavailable(action: String, error: &io::Error) -> TableError {
    TableError::Unavailable { action, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_seen_as_it_is() {
        let table = ProcTable;
        let own = table.own_pid();
        let stat = table.stat(own).unwrap().unwrap();
        assert_eq!(stat.pid, own);
        assert!(!stat.is_dead());
        let listed = table.list().unwrap().into_iter().find(|process| process.pid == own).unwrap();
        assert_eq!(listed.start_ticks, stat.start_ticks);
        assert_eq!(table.executable(own).unwrap().unwrap(), std::env::current_exe().unwrap());
        assert_eq!(table.boot_id().unwrap().len(), 36);
        let words: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(table.command_line(own).unwrap().unwrap(), words);
        let handle = table.open(own).unwrap().unwrap();
        assert!(!handle.wait_ended(Duration::ZERO).unwrap());
        let again = table.open(own).unwrap().unwrap();
        assert_eq!(handle.pidfd_inode(), again.pidfd_inode());
    }

    #[test]
    fn a_child_is_alive_then_ended_then_gone() {
        let table = ProcTable;
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let handle = table.open(pid).unwrap().unwrap();
        assert_eq!(table.stat(pid).unwrap().unwrap().parent_pid, table.own_pid());
        assert!(handle.signal(Signal::KILL).unwrap());
        assert!(handle.wait_ended(Duration::from_secs(10)).unwrap());
        assert!(table.stat(pid).unwrap().unwrap().is_dead(), "a zombie until it is reaped");
        child.wait().unwrap();
        assert!(!handle.signal(Signal::KILL).unwrap());
        assert!(table.open(0).unwrap().is_none());
        assert!(table.open(-1).unwrap().is_none());
    }
}
