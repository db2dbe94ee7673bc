//! What the daemon's process is: who may read its files, how it starts children and whose it adopts.

use std::path::Path;

use holdfast_actors::leases::{Adopter, Ownership, SpawnError, Spawner};
use holdfast_actors::tree::Processes;
use rustix::fs::Mode;
use rustix::process::umask;

/// Keeps group and others out of every file made from here on, whatever umask the daemon was started with.
pub(super) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Starts the thread that wrappers are started from, and makes this process the parent of orphans below it: when a wrapper is
/// killed its adapter comes here and is ended, instead of living on under init.
///
/// The daemon starts children in no other way, so a child that the spawner did not start is an orphan of ours.
pub(super) fn processes(executable: &Path) -> Result<Processes, SpawnError> {
    let spawner = Spawner::start(executable)?;
    let adopter = Adopter::install(spawner.clone(), Ownership::SpawnerOnly)?;
    let wrapper_path = spawner.wrapper_path().to_owned();
    Ok(Processes { wrapper_path, spawner: Some(spawner), adopter: Some(adopter) })
}

/// Returns the id of this process.
pub(super) fn id() -> u32 {
    std::process::id()
}
