//! The careful path: rows that were imported, or written without a lease, know a pid and a command and nothing that proves
//! anything. A process is taken for theirs only when it lives, shows exactly the stored command, and came from the wrapper's
//! directory where one is expected. A stored pid alone never earns a signal; in doubt the process is left alone.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::stat::descendants_of;
use super::table::{ProcessTable, TableError};
use super::verify::{OwnedProcess, take_hold};
use crate::leases::command::is_same_command;

/// What a row without a lease knows of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProcess {
    /// Its pid, as stored: any number.
    pub pid: i64,
    /// Its process group, if that was stored.
    pub process_group_id: Option<i64>,
    /// What it was started as, if that was stored.
    pub command: Option<StoredCommand>,
    /// The directory its wrapper lies in, where it was started through one.
    pub wrapper_root: Option<PathBuf>,
}

/// A command as a row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredCommand {
    /// One line, with shell quotes or without.
    Line(String),
    /// Program and arguments.
    Words(Vec<OsString>),
}

/// What the careful look found.
pub enum CarefulVerdict {
    /// Everything that was stored holds of a live process.
    Owned(StoredTree),
    /// No process with that pid lives.
    Gone,
    /// Something is missing or differs: left alone.
    LeftAlone {
        /// What.
        why: &'static str,
    },
    /// A question could not be answered: left alone.
    CannotTell {
        /// Which, and why.
        why: String,
    },
}

/// A process that answers to its row, and what descends from it.
pub struct StoredTree {
    /// The process.
    pub root: OwnedProcess,
    /// All others, children before their parents.
    pub members: Vec<OwnedProcess>,
}

/// Looks for the process of a row without a lease.
///
/// Makes blocking system calls; not for an async task.
pub fn verify_stored(stored: &StoredProcess, table: &dyn ProcessTable) -> CarefulVerdict {
    match verify(stored, table) {
        Ok(verdict) => verdict,
        Err(error) => CarefulVerdict::CannotTell { why: error.to_string() },
    }
}

fn verify(stored: &StoredProcess, table: &dyn ProcessTable) -> Result<CarefulVerdict, TableError> {
    let left_alone = |why| Ok(CarefulVerdict::LeftAlone { why });
    let own = table.own_pid();
    let Some(pid) = i32::try_from(stored.pid).ok().filter(|pid| *pid > 1 && *pid != own) else {
        return left_alone("the stored pid is none that an agent can have");
    };
    let Some(command) = stored.command.as_ref().filter(|command| !command.is_empty()) else {
        return left_alone("no command was stored, and a pid alone proves nothing");
    };
    // Hold, ask, confirm: as for leases.
    let Some(handle) = table.open(pid)? else { return Ok(CarefulVerdict::Gone) };
    if handle.wait_ended(Duration::ZERO)? {
        return Ok(CarefulVerdict::Gone);
    }
    let (Some(stat), Some(words)) = (table.stat(pid)?, table.command_line(pid)?) else {
        return left_alone("the process is not shown");
    };
    if !command.is(&words) {
        return left_alone("the process with that pid runs another command");
    }
    if stored.wrapper_root.as_deref().is_some_and(|root| !words.iter().any(|word| is_below(Path::new(word), root))) {
        return left_alone("the process did not come from the expected wrapper directory");
    }
    if stored.process_group_id.is_some_and(|group| group != i64::from(stat.process_group_id)) {
        return left_alone("the process is in another group than was stored");
    }
    let processes = table.list()?;
    let below = descendants_of(pid, &processes);
    if below.iter().any(|(descendant, _)| *descendant == own) {
        return left_alone("this program itself runs below it");
    }
    let leads_group = stat.process_group_id == pid;
    let in_group = processes
        .iter()
        .filter(|process| leads_group && process.process_group_id == pid && process.pid != pid)
        .map(|process| (process.pid, 1));
    let mut members: Vec<OwnedProcess> = Vec::new();
    for (descendant, _) in below.iter().copied().chain(in_group) {
        let listed = processes.iter().find(|process| process.pid == descendant && !process.is_dead());
        let is_new = !members.iter().any(|member| member.stat.pid == descendant);
        if let Some(listed) = listed.filter(|_| is_new && descendant > 1 && descendant != own)
            && let Some(member) = take_hold(listed, pid, table)?
        {
            members.push(member);
        }
    }
    if handle.wait_ended(Duration::ZERO)? {
        return Ok(CarefulVerdict::Gone);
    }
    Ok(CarefulVerdict::Owned(StoredTree { root: OwnedProcess { stat, handle }, members }))
}

impl StoredCommand {
    fn is_empty(&self) -> bool {
        match self {
            Self::Line(line) => line.trim().is_empty(),
            Self::Words(words) => words.iter().all(|word| word.is_empty()),
        }
    }

    fn is(&self, live: &[OsString]) -> bool {
        match self {
            Self::Line(line) => is_same_command(line, live),
            Self::Words(words) => words == live,
        }
    }
}

/// By its text: what a path meant when the process was started can't be told any more.
fn is_below(path: &Path, root: &Path) -> bool {
    let plain = |path: &Path| path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    root.is_absolute() && root != Path::new("/") && plain(root) && plain(path) && path != root && path.starts_with(root)
}
