//! What the daemon's process is, before it has threads: whom its files belong to, which session it is in.

use std::fs::File;
use std::io;

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

/// Leaves the terminal of whoever started the daemon, so that neither its Ctrl-C nor its end reach us, and the working
/// directory, which would keep its file system from being unmounted.
pub(super) fn leave_session() -> io::Result<()> {
    setsid()?;
    chdir("/")?;
    Ok(())
}

/// Lets go of standard output and error: their reader has heard that the daemon serves and leaves.
pub(super) fn leave_streams() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}
