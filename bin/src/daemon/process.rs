//! What the daemon's process is, before it has threads: whom its files belong to, whose children it adopts.

use std::io;

use rustix::fs::Mode;
use rustix::process::{getpid, set_child_subreaper, umask};

/// Keeps group and others out of every file made from here on, whatever umask the daemon was started with.
pub(super) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Makes this process the parent of orphans below it: when a wrapper is killed its adapter comes here and is ended,
/// instead of living on under init. Source: prctl(2), `PR_SET_CHILD_SUBREAPER`.
pub(super) fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)
}

/// Returns the id of this process.
pub(super) fn id() -> u32 {
    std::process::id()
}
