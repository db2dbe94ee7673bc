//! What the daemon's process is, before it has threads: whom its files belong to.

use rustix::fs::Mode;
use rustix::process::umask;

/// Keeps group and others out of every file made from here on, whatever umask the daemon was started with.
pub(super) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Returns the id of this process.
pub(super) fn id() -> u32 {
    std::process::id()
}
