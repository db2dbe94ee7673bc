//! What the daemon's process is, before it has threads: whom its files belong to, whose child it is.

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};

use rustix::fs::Mode;
use rustix::process::{chdir, setsid, umask};

/// Keeps group and others out of every file made from here on, whatever umask the daemon was started with.
pub(super) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Returns the id of this process.
pub(super) fn id() -> u32 {
    std::process::id()
}

/// What a detached daemon owes the process it came from: a word that it serves.
pub(super) struct Detached {
    serves: PipeWriter,
}

impl Detached {
    /// Leaves the family, session and working directory of whoever started the daemon. Call it before there are threads.
    ///
    /// A session of its own keeps the terminal's Ctrl-C away, and another working directory lets its file system be
    /// unmounted. But some programs end all descendants of what they started, found by parent, so the daemon must be
    /// nobody's child: it goes on in a fork, and the first process waits until it serves or has failed, and ends likewise.
    pub(super) fn leave() -> io::Result<Self> {
        let (mut told, serves) = io::pipe()?;
        // SAFETY: this process has one thread, so the child may do all that the parent could.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(told);
                setsid()?;
                chdir("/")?;
                Ok(Self { serves })
            }
            daemon => {
                drop(serves);
                let serves = told.read(&mut [0]).is_ok_and(|count| count == 1);
                std::process::exit(if serves { 0 } else { exit_code_of(daemon) })
            }
        }
    }

    /// Says that the daemon serves, and lets go of standard output and error, whose reader leaves now.
    pub(super) fn serve(mut self) -> io::Result<()> {
        self.serves.write_all(b"!")?;
        leave_streams()
    }
}

/// Waits for a child that failed and returns its exit code; 1 if a signal ended it.
fn exit_code_of(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the child is ours and `status` outlives the call. An error leaves the status as a plain failure.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    if waited == child && libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1 }
}

/// Lets go of standard output and error: their reader has heard that the daemon serves and leaves.
fn leave_streams() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}
