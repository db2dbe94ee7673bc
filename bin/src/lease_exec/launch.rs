//! From a plain process to the head of a tree: session, subreaper, the watch on the parent, the adapter.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_actors::leases::wrapper::{EXIT_CANNOT_RUN, EXIT_NOT_FOUND, EXIT_WRAPPER_FAILED, StatusLine};
use holdfast_actors::process::{ProcTable, ProcessTable};
use rustix::process::{
    Pid, PidfdFlags, getpid, getppid, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setsid,
};

use super::arguments::Arguments;
use super::signals::{PARENT_DEATH_SIGNAL, SignalReader, unblock_all};

/// A running adapter and what is needed to look after it.
pub(super) struct Launched {
    /// The adapter.
    pub(super) adapter: Pid,
    /// The watch on our parent; `None` where the kernel has no pidfds, the parent-death signal then stands alone.
    pub(super) parent: Option<OwnedFd>,
    /// What arrives for us.
    pub(super) signals: SignalReader,
}

/// Why nothing runs.
pub(super) struct LaunchFailure {
    /// The error number, where the system gave one.
    pub(super) errno: Option<i32>,
    /// What was tried, where, and why it failed.
    pub(super) message: String,
    /// What to exit with.
    pub(super) exit_code: u8,
}

impl LaunchFailure {
    fn wrapper(action: &str, error: &io::Error) -> Self {
        Self {
            errno: error.raw_os_error(),
            message: format!("the wrapper failed to {action}: {error}"),
            exit_code: EXIT_WRAPPER_FAILED,
        }
    }
}

/// Makes this process the head of a tree and starts the adapter in it.
pub(super) fn launch(arguments: &Arguments) -> Result<Launched, LaunchFailure> {
    let signals = SignalReader::install().map_err(|error| LaunchFailure::wrapper("take over its signals", &error))?;
    let own = getpid();
    if let Err(error) = setsid()
        && !leads_a_session(own.as_raw_pid())
    {
        return Err(LaunchFailure::wrapper("start a session of its own", &error.into()));
    }
    set_child_subreaper(Some(own))
        .map_err(|error| LaunchFailure::wrapper("become a child subreaper", &error.into()))?;
    let parent = watch_parent(arguments.parent_pid)?;
    let adapter = start_adapter(arguments)?;
    Ok(Launched { adapter, parent, signals })
}

fn leads_a_session(pid: i32) -> bool {
    matches!(ProcTable.stat(pid), Ok(Some(stat)) if stat.session_id == pid)
}

/// Sets up both ways to learn of the parent's death, then makes sure that it had not happened before.
///
/// If `parent_pid` still is our parent after the pidfd was opened, the pidfd is our parent's. Otherwise it died while we
/// were being started, and its pid may belong to anyone by now.
fn watch_parent(parent_pid: i32) -> Result<Option<OwnedFd>, LaunchFailure> {
    set_parent_process_death_signal(Some(PARENT_DEATH_SIGNAL))
        .map_err(|error| LaunchFailure::wrapper("watch its parent", &error.into()))?;
    let expected = (parent_pid > 0).then(|| Pid::from_raw(parent_pid)).flatten();
    let pidfd = expected.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if expected.is_none() || getppid() != expected {
        return Err(LaunchFailure {
            errno: None,
            message: format!("process {parent_pid}, which asked for this command, is not there any more"),
            exit_code: EXIT_WRAPPER_FAILED,
        });
    }
    Ok(pidfd)
}

fn start_adapter(arguments: &Arguments) -> Result<Pid, LaunchFailure> {
    let mut command = Command::new(&arguments.program);
    command.args(&arguments.program_arguments);
    if let Some(directory) = &arguments.directory {
        command.current_dir(directory);
    }
    // SAFETY: the closure makes one async-signal-safe system call and allocates nothing.
    unsafe { command.pre_exec(unblock_all) };
    // The handle is dropped: the child is reaped with all others, by whichever pid the kernel reports.
    let child = command.spawn().map_err(|error| diagnose(arguments, &error))?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| LaunchFailure {
        errno: None,
        message: "the system gave the command no usable process id".to_owned(),
        exit_code: EXIT_WRAPPER_FAILED,
    })
}

/// Says what was tried. The bare error of an exec ("No such file") does not say which file, nor where it was sought.
fn diagnose(arguments: &Arguments, error: &io::Error) -> LaunchFailure {
    let program = arguments.program.display();
    let errno = error.raw_os_error();
    let exit_code = if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_CANNOT_RUN };
    let failure = |message| LaunchFailure { errno, message, exit_code };
    if let Some(directory) = &arguments.directory
        && !directory.is_dir()
    {
        let directory = directory.display();
        return failure(format!(
            "failed to start `{program}`: its working directory {directory} can't be entered: {error}"
        ));
    }
    if !arguments.program.to_string_lossy().contains('/') {
        let searched = std::env::var_os("PATH").unwrap_or_default();
        return failure(format!("failed to start `{program}`: {error}; looked in PATH={}", searched.display()));
    }
    let path = absolute(Path::new(&arguments.program), arguments.directory.as_deref());
    let hint = if error.kind() == io::ErrorKind::NotFound && path.exists() {
        "; the file is there, so what is missing is the interpreter its first line names, or its loader"
    } else {
        ""
    };
    failure(format!("failed to start {}: {error}{hint}", path.display()))
}

/// A relative path counts from the adapter's directory, as exec sees it.
fn absolute(program: &Path, directory: Option<&Path>) -> PathBuf {
    let base = directory.map(Path::to_path_buf).or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    base.join(program)
}

/// Returns the line that says that the adapter runs.
pub(super) fn started(own_pid: i32, adapter: Pid) -> StatusLine {
    let start_ticks = |pid| ProcTable.stat(pid).ok().flatten().map(|stat| stat.start_ticks);
    StatusLine::Started {
        root_pid: own_pid,
        root_start_ticks: start_ticks(own_pid),
        process_group_id: own_pid,
        adapter_pid: adapter.as_raw_pid(),
        adapter_start_ticks: start_ticks(adapter.as_raw_pid()),
    }
}

/// Lets go of stdin, stdout and stderr once the adapter has them.
///
/// Otherwise whoever talks to the adapter would see no end of file and no broken pipe while the wrapper lives on.
pub(super) fn let_go_of_stdio() {
    // Without /dev/null the worst is that the other side learns of the end from our exit instead.
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for standard in 0..=2 {
            // SAFETY: both descriptors are open; dup2 replaces the second in one step.
            unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
    }
}

/// Marks all descriptors from `first` on to be closed by exec.
pub(super) fn close_on_exec_from(first: u32) {
    // SAFETY: only flags of descriptors change. Kernels before 5.11 refuse; the daemon opens all of its own with the flag
    // set, this is the second line.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
