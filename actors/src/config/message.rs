//! What Config can be asked.

use std::path::PathBuf;

use holdfast_stores::config::{ConfigSnapshot, Problem, Revision};

use crate::reply::Reply;

/// What Config can be asked. All are requests.
pub enum ConfigMessage {
    /// Returns the configuration in force.
    Snapshot {
        /// The snapshot.
        reply: Reply<ConfigSnapshot>,
    },
    /// Returns what is in force and what is in the file.
    Status {
        /// The answer.
        reply: Reply<ConfigStatus>,
    },
}

/// What is in force and what is in the file: saved is not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigStatus {
    /// The file.
    pub file: PathBuf,
    /// The revision in force.
    pub applied: Revision,
    /// The generation of the tree that runs with it.
    pub generation: u64,
    /// The revision of the file on disk now, or why it can't be read. Differs from `applied` until a reload.
    pub saved: Result<Revision, String>,
    /// The environment variables that override the file.
    pub overrides: Vec<String>,
    /// What works but should be looked at.
    pub warnings: Vec<Problem>,
    /// What keeps sections from being used.
    pub problems: Vec<Problem>,
}

impl ConfigStatus {
    /// Says whether the file holds something else than what is in force.
    pub fn reload_pending(&self) -> bool {
        self.saved.as_ref().is_ok_and(|saved| *saved != self.applied)
    }
}
