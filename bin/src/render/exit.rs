//! What a command says to the shell.

use std::process::ExitCode;

use holdfast_protocol::error::ErrorKind;

/// The exit codes. They are a contract with scripts: numbers are never given a new meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It failed, and none of the other codes says it better.
    Failed = 1,
    /// The command line or the params are wrong.
    Usage = 2,
    /// No such thing, or not visible to the caller.
    NotFound = 3,
    /// Refused or denied.
    Refused = 4,
    /// It contradicts what is there: a name is taken, another daemon owns the root.
    Conflict = 5,
    /// No daemon answers.
    DaemonUnreachable = 6,
    /// A store is damaged, or of a version that this program can't read.
    DamagedStore = 7,
    /// Interrupted by the user (128 + SIGINT).
    Interrupted = 130,
}

impl Exit {
    /// All codes with their meaning, in the order of their numbers. The reference page is made from this.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Ok, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "wrong command line or params"),
        (Self::NotFound, "no such thing, or not visible to you"),
        (Self::Refused, "refused or denied"),
        (Self::Conflict, "contradicts what is there (name taken, root owned by another daemon)"),
        (Self::DaemonUnreachable, "no daemon answers"),
        (Self::DamagedStore, "a store is damaged or of a newer version"),
        (Self::Interrupted, "interrupted"),
    ];

    /// Returns the number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Chooses the code for an error of the daemon.
    ///
    /// `Timeout` and `Interrupted` are plain failures here: 130 is kept for the user's own interruption, and a script
    /// that wants to retry reads `data.kind` from `--json`.
    pub fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::MethodNotFound | ErrorKind::InvalidParams => Self::Usage,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Denied | ErrorKind::AuthRequired => Self::Refused,
            ErrorKind::Conflict | ErrorKind::Locked => Self::Conflict,
            ErrorKind::Stopping => Self::DaemonUnreachable,
            ErrorKind::Damaged | ErrorKind::NewerSchema => Self::DamagedStore,
            ErrorKind::Cancelled => Self::Interrupted,
            ErrorKind::ParseError
            | ErrorKind::InvalidRequest
            | ErrorKind::Internal
            | ErrorKind::NotInitialized
            | ErrorKind::TooLarge
            | ErrorKind::Busy
            | ErrorKind::Timeout
            | ErrorKind::Interrupted
            | ErrorKind::Down
            | ErrorKind::StorageFull
            | ErrorKind::ReadOnly
            | ErrorKind::ConfigInvalid
            | ErrorKind::AgentFailed => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_documented_ones() {
        let numbers: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 130]);
    }

    #[test]
    fn kinds_map_to_what_a_script_would_branch_on() {
        for (kind, exit) in [
            (ErrorKind::NotFound, Exit::NotFound),
            (ErrorKind::InvalidParams, Exit::Usage),
            (ErrorKind::Denied, Exit::Refused),
            (ErrorKind::Locked, Exit::Conflict),
            (ErrorKind::NewerSchema, Exit::DamagedStore),
            (ErrorKind::Cancelled, Exit::Interrupted),
            (ErrorKind::Stopping, Exit::DaemonUnreachable),
            (ErrorKind::Busy, Exit::Failed),
        ] {
            assert_eq!(Exit::of_kind(kind), exit, "{}", kind.name());
        }
    }
}
