//! The spawner: one thread that starts every wrapper, and what it hands back.
//!
//! A parent-death signal belongs to the thread that started a process, so a pool thread must never do it. The thread
//! lives as long as the last [`Spawner`] and knows which children are ours, which is how an orphan is told from them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::sync::oneshot;

use super::leased::{LeasedProcess, RootIdentity};
use super::wrapper;
use crate::process::cgroup::make_leaf;
use crate::process::proc_table::{ProcHandle, pidfd_inode};
use crate::process::verify::hold_descendants;
use crate::process::{ProcTable, ProcessHandle, ProcessTable};

/// How long a wrapper may take to report its adapter. Starting one takes milliseconds; this is for a machine on its knees.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time between TERM and KILL for a tree whose start was called off.
const UNWANTED_GRACE: Duration = Duration::from_secs(5);
/// Time between two looks at such a tree once it is being killed.
const UNWANTED_SWEEP: Duration = Duration::from_millis(100);

/// Why no adapter runs.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The wrapper program can't be found or run.
    #[error("failed to start the wrapper {}: {source}", path.display())]
    Wrapper {
        /// The wrapper.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The wrapper runs, the adapter can't be started.
    #[error("{message}")]
    Adapter {
        /// The program as configured.
        program: String,
        /// The error number, where there was one.
        errno: Option<i32>,
        /// What was tried, where, and why it failed.
        message: String,
    },
    /// The wrapper ended or fell silent before it said that the adapter runs.
    #[error("the wrapper of `{program}` ended or gave no sign within {limit_s} s", limit_s = START_LIMIT.as_secs())]
    NoReport {
        /// The program as configured.
        program: String,
    },
    /// A descriptor, thread or other resource is missing.
    #[error("failed to {action}: {source}")]
    Resource {
        /// What was being done.
        action: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The spawner thread has ended, which it does with the daemon.
    #[error("the process spawner has ended")]
    Ended,
}

/// One adapter to start.
#[derive(Debug, Clone)]
pub struct SpawnRequest {
    /// The lease, whose row is committed already.
    pub lease_id: LeaseId,
    /// This install.
    pub instance_id: InstanceId,
    /// The session it serves, if it serves one.
    pub session_id: Option<SessionId>,
    /// The adapter and its arguments.
    pub program: OsString,
    /// The adapter's arguments.
    pub arguments: Vec<OsString>,
    /// The adapter's working directory; ours when `None`.
    pub directory: Option<PathBuf>,
    /// Variables set on top of our own environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Time between TERM and KILL when the wrapper ends the tree by itself.
    pub kill_grace: Duration,
    /// The cgroup to make for the tree. One that can't be made or joined is done without.
    pub cgroup_path: Option<PathBuf>,
}

/// Starts wrappers. Cheap to clone; the thread ends with the last clone.
#[derive(Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
    wrapper_path: Arc<Path>,
}

pub(super) enum Job {
    Spawn {
        request: Box<SpawnRequest>,
        reply: oneshot::Sender<Result<Raw, SpawnError>>,
    },
    /// This child of ours was reaped.
    Reaped {
        pid: i32,
    },
    Children {
        reply: oneshot::Sender<HashSet<i32>>,
    },
}

/// A wrapper just started, as the thread hands it over.
pub(super) struct Raw {
    pub(super) identity: RootIdentity,
    pub(super) pidfd: OwnedFd,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
    pub(super) status: OwnedFd,
}

impl Spawner {
    /// Starts the thread. `wrapper_path` is the program that has the subcommand `lease-exec`.
    ///
    /// # Errors
    /// [`SpawnError::Wrapper`] when there is no such file, [`SpawnError::Resource`] when no thread can be had.
    pub fn start(wrapper_path: &Path) -> Result<Self, SpawnError> {
        // The form /proc shows, against which the verification compares.
        let wrapper_path: Arc<Path> = std::fs::canonicalize(wrapper_path)
            .map_err(|source| SpawnError::Wrapper { path: wrapper_path.to_owned(), source })?
            .into();
        let (jobs, receiver) = mpsc::channel();
        let program = Arc::clone(&wrapper_path);
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || work(&program, &receiver))
            .map_err(|source| SpawnError::Resource { action: "start the spawner thread", source })?;
        Ok(Self { jobs, wrapper_path })
    }

    /// Returns the wrapper's path, absolute and free of symbolic links.
    pub fn wrapper_path(&self) -> &Path {
        &self.wrapper_path
    }

    /// Starts an adapter below a wrapper and returns once it runs.
    ///
    /// When the returned future is dropped half-way, the tree is told to end.
    ///
    /// # Errors
    /// [`SpawnError`]; nothing runs then.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<LeasedProcess, SpawnError> {
        let program = request.program.to_string_lossy().into_owned();
        let (reply, answer) = oneshot::channel();
        self.send(Job::Spawn { request: Box::new(request), reply })?;
        let raw = answer.await.map_err(|_gone| SpawnError::Ended)??;
        let starting = LeasedProcess::take_over(raw, self.clone())?;
        match tokio::time::timeout(START_LIMIT, starting.started(program.clone())).await {
            Ok(outcome) => outcome,
            Err(_passed) => Err(SpawnError::NoReport { program }),
        }
    }

    /// Returns the pids of the wrappers that we started and that have not been reaped.
    ///
    /// # Errors
    /// [`SpawnError::Ended`].
    pub async fn children(&self) -> Result<HashSet<i32>, SpawnError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Children { reply })?;
        answer.await.map_err(|_gone| SpawnError::Ended)
    }

    /// Like [`Self::children`], for a thread that may block.
    pub(super) fn children_blocking(&self) -> Result<HashSet<i32>, SpawnError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Children { reply })?;
        answer.blocking_recv().map_err(|_gone| SpawnError::Ended)
    }

    pub(super) fn send(&self, job: Job) -> Result<(), SpawnError> {
        self.jobs.send(job).map_err(|_gone| SpawnError::Ended)
    }
}

/// The thread.
fn work(wrapper_path: &Path, jobs: &mpsc::Receiver<Job>) {
    let mut children = HashSet::new();
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Spawn { request, reply } => {
                let spawned = start_wrapper(wrapper_path, &request);
                if let Ok(raw) = &spawned {
                    children.insert(raw.identity.pid);
                }
                if let Err(Ok(unwanted)) = reply.send(spawned) {
                    children.remove(&unwanted.identity.pid);
                    end_unwanted(unwanted.identity.pid, unwanted.pidfd);
                }
            }
            Job::Reaped { pid } => {
                children.remove(&pid);
            }
            // An asker that has gone away is no matter.
            Job::Children { reply } => drop(reply.send(children.clone())),
        }
    }
}

/// Ends a tree that nobody looks after, and waits for it on a thread of its own.
///
/// The wrapper passes TERM on. It is a child of ours that has not been reaped, so what hangs below its pid is its tree,
/// and what has not ended after the grace period is killed; the wrapper ends with the last of it.
pub(super) fn end_unwanted(pid: i32, pidfd: OwnedFd) {
    let reaper = std::thread::Builder::new().name("reaper".to_owned()).spawn(move || {
        let wrapper = ProcHandle::new(pid, pidfd);
        let mut wait = UNWANTED_GRACE;
        // An error means that it has ended already.
        let _ended = wrapper.signal(Signal::TERM);
        while !wrapper.wait_ended(wait).unwrap_or(true) {
            wait = UNWANTED_SWEEP;
            for process in hold_descendants(pid, &ProcTable).unwrap_or_default() {
                let _ended = process.handle.signal(Signal::KILL);
            }
        }
        wrapper.reap();
    });
    if let Err(error) = reaper {
        tracing::warn!(%error, "no thread to end an unwanted process with; it ends with the daemon");
    }
}

fn start_wrapper(wrapper_path: &Path, request: &SpawnRequest) -> Result<Raw, SpawnError> {
    let resource = |action| move |source| SpawnError::Resource { action, source };
    let (status_reader, status_writer) = io::pipe().map_err(resource("make a status pipe"))?;
    let status_writer = OwnedFd::from(status_writer);
    let number = status_writer.as_raw_fd();
    let mut command = Command::new(wrapper_path);
    command
        .arg(wrapper::SUBCOMMAND)
        .args([wrapper::PARENT_PID_ARGUMENT, &std::process::id().to_string()])
        .args([wrapper::STATUS_FD_ARGUMENT, &number.to_string()])
        .args([wrapper::KILL_GRACE_ARGUMENT, &request.kill_grace.as_millis().to_string()]);
    if let Some(directory) = &request.directory {
        command.arg(wrapper::DIRECTORY_ARGUMENT).arg(directory);
    }
    command.arg(wrapper::COMMAND_SEPARATOR).arg(&request.program).args(&request.arguments);
    // The daemon may run inside a leased session itself; its session is not this one's.
    command
        .env_remove(wrapper::SESSION_ID_VARIABLE)
        .envs(request.environment.iter().map(|(name, value)| (name, value)));
    command
        .env(wrapper::LEASE_ID_VARIABLE, request.lease_id.to_string())
        .env(wrapper::INSTANCE_ID_VARIABLE, request.instance_id.to_string());
    if let Some(session_id) = request.session_id {
        command.env(wrapper::SESSION_ID_VARIABLE, session_id.to_string());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let leaf = request.cgroup_path.as_deref();
    let entrance = leaf.and_then(|leaf| {
        let made = make_leaf(leaf);
        made.inspect_err(|error| tracing::warn!(%error, path = %leaf.display(), "no cgroup for a tree")).ok()
    });
    let entrance_number = entrance.as_ref().map(AsRawFd::as_raw_fd);
    // SAFETY: two async-signal-safe system calls. The flag goes in the child only, so no other child inherits the pipe.
    unsafe {
        command.pre_exec(move || {
            if let Some(number) = entrance_number {
                // The kernel may say no; whether the child is in is looked up afterwards.
                let _refused = libc::write(number, c"0".as_ptr().cast(), 1);
            }
            if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let spawned = command.spawn();
    drop((status_writer, entrance));
    let started = spawned
        .map_err(|source| SpawnError::Wrapper { path: wrapper_path.to_owned(), source })
        .and_then(|child| hold(child, status_reader.into(), leaf));
    if let Some(leaf) = leaf.filter(|_| !started.as_ref().is_ok_and(|raw| raw.identity.in_cgroup)) {
        leave(leaf);
    }
    started
}

/// Removes a leaf that holds nothing.
fn leave(leaf: &Path) {
    if let Err(error) = ProcTable.cgroup_remove(leaf) {
        tracing::debug!(%error, "a cgroup stays until the next start");
    }
}

/// Takes hold of a wrapper that was just started.
fn hold(mut child: std::process::Child, status: OwnedFd, leaf: Option<&Path>) -> Result<Raw, SpawnError> {
    match identify(&mut child, status, leaf) {
        Ok(raw) => Ok(raw),
        Err(error) => {
            // It has started nothing yet, or only just: its parent's hold on it is lost, so it must not stay.
            let _ended = child.kill();
            let _reaped = child.wait();
            Err(error)
        }
    }
}

/// Takes hold of a child that can't have been reaped yet, so that its pid is its own.
fn identify(child: &mut std::process::Child, status: OwnedFd, leaf: Option<&Path>) -> Result<Raw, SpawnError> {
    let missing = |what: &'static str| SpawnError::Resource { action: what, source: io::ErrorKind::NotFound.into() };
    let pid = i32::try_from(child.id()).map_err(|_large| missing("read the wrapper's process id"))?;
    let target = Pid::from_raw(pid).ok_or_else(|| missing("read the wrapper's process id"))?;
    let pidfd = pidfd_open(target, PidfdFlags::empty())
        .map_err(|error| SpawnError::Resource { action: "take hold of the wrapper", source: error.into() })?;
    let stat = ProcTable.stat(pid).ok().flatten().ok_or_else(|| missing("read the wrapper's start time"))?;
    let identity = RootIdentity {
        pid,
        start_ticks: stat.start_ticks,
        pidfd_inode: pidfd_inode(&pidfd),
        // The wrapper leads a session of its own before it starts anything.
        process_group_id: pid,
        in_cgroup: leaf
            .is_some_and(|leaf| matches!(ProcTable.cgroup_members(leaf), Ok(Some(members)) if members.contains(&pid))),
    };
    Ok(Raw {
        identity,
        pidfd,
        stdin: child.stdin.take().ok_or_else(|| missing("open the adapter's stdin"))?,
        stdout: child.stdout.take().ok_or_else(|| missing("open the adapter's stdout"))?,
        stderr: child.stderr.take().ok_or_else(|| missing("open the adapter's stderr"))?,
        status,
    })
}
