//! A running adapter below its wrapper, as its owner holds it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};

use super::spawn::{Job, Raw, SpawnError, Spawner, end_unwanted};
use super::wrapper::StatusLine;
use crate::process::proc_table::pidfd_inode;
use crate::process::{ProcTable, ProcessTable};

/// The root of a tree, the wrapper, as the lease row records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootIdentity {
    /// Its pid.
    pub pid: i32,
    /// Its start time in clock ticks after boot.
    pub start_ticks: u64,
    /// Its pidfd's inode, where the kernel has one.
    pub pidfd_inode: Option<u64>,
    /// The group and session it leads.
    pub process_group_id: i32,
    /// Whether it is in the cgroup that was asked for.
    pub in_cgroup: bool,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessExit {
    /// Its exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub exit_signal: Option<i32>,
}

/// Two facts to wait for: the adapter has ended; the whole tree has. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ExitWatch {
    adapter: watch::Receiver<Option<ProcessExit>>,
    tree: watch::Receiver<Option<ProcessExit>>,
}

impl ExitWatch {
    /// Waits until the adapter itself has ended; descendants of it may live on. `None` when nobody can tell any more,
    /// because the wrapper was killed.
    pub async fn adapter_ended(&mut self) -> Option<ProcessExit> {
        self.adapter.wait_for(Option::is_some).await.ok().and_then(|exit| *exit)
    }

    /// Waits until the wrapper has ended, and with it the tree; it ends the way its adapter did.
    ///
    /// A wrapper that was killed by SIGKILL may leave processes behind.
    pub async fn tree_ended(&mut self) -> ProcessExit {
        let ended = self.tree.wait_for(Option::is_some).await.map(|exit| *exit);
        match ended {
            Ok(exit) => exit.unwrap_or_default(),
            // The watching task can only vanish with its runtime.
            Err(_gone) => std::future::pending().await,
        }
    }

    /// Says whether the tree has ended.
    pub fn has_tree_ended(&self) -> bool {
        self.tree.borrow().is_some()
    }
}

/// A running adapter. Dropping it closes its pipes; the tree stays until its lease is closed or its adapter ends.
#[derive(Debug)]
pub struct LeasedProcess {
    /// The root of the tree.
    pub identity: RootIdentity,
    /// The adapter's pid, for people; it proves nothing.
    pub adapter_pid: i32,
    /// What the adapter reads.
    pub stdin: ChildStdin,
    /// What the adapter writes. A grandchild may hold its other end after the adapter has gone: watch [`Self::exit`].
    pub stdout: ChildStdout,
    /// Where the adapter complains.
    pub stderr: ChildStderr,
    /// How it ends.
    pub exit: ExitWatch,
}

/// A wrapper that has not reported its adapter yet. Dropped before it did, its tree is told to end.
pub(super) struct Starting {
    identity: RootIdentity,
    stdio: Option<(ChildStdin, ChildStdout, ChildStderr)>,
    exit: ExitWatch,
    report: Option<oneshot::Receiver<StatusLine>>,
    /// A second hold, for ending it.
    pidfd: Option<OwnedFd>,
}

impl LeasedProcess {
    /// Ends the tree without its lease: for a process whose start could not be recorded.
    pub fn abandon(self) {
        let pid = self.identity.pid;
        let Some(target) = (pid > 1).then(|| Pid::from_raw(pid)).flatten() else { return };
        // Gone and reaped is as good as ended.
        let Ok(pidfd) = pidfd_open(target, PidfdFlags::empty()) else { return };
        let ours = match ProcTable.stat(pid) {
            Ok(Some(stat)) => stat.start_ticks == self.identity.start_ticks && stat.parent_pid == ProcTable.own_pid(),
            Ok(None) | Err(_) => false,
        };
        if ours && pidfd_inode(&pidfd) == self.identity.pidfd_inode {
            end_unwanted(pid, pidfd);
        }
    }

    /// Starts to watch a wrapper. No await between the spawn and this, so no wrapper is ever without a watcher.
    pub(super) fn take_over(raw: Raw, spawner: Spawner) -> Result<Starting, SpawnError> {
        let resource = |action| move |source| SpawnError::Resource { action, source };
        let pidfd = raw.pidfd.try_clone().map_err(resource("hold the wrapper"))?;
        let mut guard =
            Starting { identity: raw.identity, stdio: None, exit: never(), report: None, pidfd: Some(pidfd) };
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped, and only `AsyncFd` drops it.
        let watched: AsyncFd<OwnedFd> =
            unsafe { AsyncFd::register(raw.pidfd) }.map_err(|error| resource("watch the wrapper")(error.into()))?;
        let status = pipe::Receiver::from_owned_fd(raw.status).map_err(resource("read the status pipe"))?;
        let stdin = ChildStdin::from_std(raw.stdin).map_err(resource("open the adapter's stdin"))?;
        let stdout = ChildStdout::from_std(raw.stdout).map_err(resource("open the adapter's stdout"))?;
        let stderr = ChildStderr::from_std(raw.stderr).map_err(resource("open the adapter's stderr"))?;
        let (adapter_sender, adapter) = watch::channel(None);
        let (tree_sender, tree) = watch::channel(None);
        let (report_sender, report) = oneshot::channel();
        guard.exit = ExitWatch { adapter, tree };
        guard.stdio = Some((stdin, stdout, stderr));
        guard.report = Some(report);
        tokio::spawn(watch_exit(watched, raw.identity.pid, spawner, tree_sender));
        tokio::spawn(read_status(status, report_sender, adapter_sender));
        Ok(guard)
    }
}

impl Starting {
    /// Waits for the wrapper's word that the adapter runs.
    pub(super) async fn started(mut self, program: String) -> Result<LeasedProcess, SpawnError> {
        let line = match self.report.take() {
            Some(report) => report.await.ok(),
            None => None,
        };
        match (line, self.stdio.take()) {
            (Some(StatusLine::Started { adapter_pid, .. }), Some((stdin, stdout, stderr))) => {
                self.pidfd = None;
                let exit = self.exit.clone();
                Ok(LeasedProcess { identity: self.identity, adapter_pid, stdin, stdout, stderr, exit })
            }
            (Some(StatusLine::ExecFailed { program, errno, message }), _) => {
                // Nothing runs below it and it is ending: wait, so that the lease can say `closed` at once.
                self.exit.tree_ended().await;
                self.pidfd = None;
                Err(SpawnError::Adapter { program, errno, message })
            }
            (Some(StatusLine::Started { .. } | StatusLine::AdapterExited { .. }) | None, _) => {
                Err(SpawnError::NoReport { program })
            }
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            end_unwanted(self.identity.pid, pidfd);
        }
    }
}

fn never() -> ExitWatch {
    ExitWatch { adapter: watch::channel(None).1, tree: watch::channel(None).1 }
}

/// Waits for the end of one wrapper, reaps exactly it, and says so.
async fn watch_exit(pidfd: AsyncFd<OwnedFd>, pid: i32, spawner: Spawner, tree: watch::Sender<Option<ProcessExit>>) {
    let exit = loop {
        // An error means that the runtime is going away; then nobody waits for this any more.
        let Ok(mut ready) = pidfd.readable().await else { return };
        match waitid(WaitId::PidFd(pidfd.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => {
                break ProcessExit { exit_code: status.exit_status(), exit_signal: status.terminating_signal() };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => ready.clear_ready(),
            // Reaped by someone else: how it ended is lost, that it ended is not.
            Err(_) => break ProcessExit::default(),
        }
    };
    // A spawner that has ended keeps no list.
    let _ended = spawner.send(Job::Reaped { pid });
    tree.send_replace(Some(exit));
}

/// Reads the status pipe to its end. The adapter's end is `None` for ever when the wrapper could not report it: dropping
/// the sender says so.
async fn read_status(
    status: pipe::Receiver,
    report: oneshot::Sender<StatusLine>,
    adapter: watch::Sender<Option<ProcessExit>>,
) {
    let mut report = Some(report);
    let mut lines = BufReader::new(status).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str::<StatusLine>(&line) {
            Ok(StatusLine::AdapterExited { exit_code, exit_signal }) => {
                adapter.send_replace(Some(ProcessExit { exit_code, exit_signal }));
            }
            Ok(line) => {
                if let Some(report) = report.take() {
                    // Whoever started it may have given up.
                    drop(report.send(line));
                }
            }
            Err(error) => tracing::warn!(%error, "a wrapper wrote an unreadable status line"),
        }
    }
}
