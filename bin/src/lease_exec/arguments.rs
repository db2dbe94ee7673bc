//! The wrapper's arguments. Parsed by hand: an argument parser would be most of its memory.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_actors::leases::wrapper::{
    COMMAND_SEPARATOR, DIRECTORY_ARGUMENT, KILL_GRACE_ARGUMENT, PARENT_PID_ARGUMENT, STATUS_FD_ARGUMENT,
};

/// How the wrapper was called.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    /// The process whose death ends the tree.
    pub(super) parent_pid: i32,
    /// Where status lines go; the number is above 2.
    pub(super) status_fd: Option<RawFd>,
    /// Time between TERM and KILL.
    pub(super) kill_grace: Duration,
    /// The adapter's working directory.
    pub(super) directory: Option<PathBuf>,
    /// The adapter.
    pub(super) program: OsString,
    /// The adapter's arguments.
    pub(super) program_arguments: Vec<OsString>,
}

impl Arguments {
    /// Reads everything after `lease-exec`.
    pub(super) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut parent_pid = None;
        let mut status_fd = None;
        let mut kill_grace_ms = 5_000;
        let mut directory = None;
        loop {
            let Some(name) = arguments.next() else {
                return Err(format!("no command: expected `{COMMAND_SEPARATOR} PROGRAM [ARGUMENT]...`"));
            };
            if name == COMMAND_SEPARATOR {
                break;
            }
            let Some(value) = arguments.next() else {
                return Err(format!("{} needs a value", name.display()));
            };
            if name == PARENT_PID_ARGUMENT {
                parent_pid = Some(number::<i32>(PARENT_PID_ARGUMENT, &value)?);
            } else if name == STATUS_FD_ARGUMENT {
                status_fd = Some(number::<RawFd>(STATUS_FD_ARGUMENT, &value)?);
            } else if name == KILL_GRACE_ARGUMENT {
                kill_grace_ms = number::<u32>(KILL_GRACE_ARGUMENT, &value)?;
            } else if name == DIRECTORY_ARGUMENT {
                directory = Some(PathBuf::from(value));
            } else {
                return Err(format!("unknown argument `{}`", name.display()));
            }
        }
        let Some(parent_pid) = parent_pid else {
            return Err(format!("{PARENT_PID_ARGUMENT} is required"));
        };
        if status_fd.is_some_and(|fd| fd <= 2) {
            return Err(format!("{STATUS_FD_ARGUMENT} must be above 2: 0 to 2 belong to the command"));
        }
        let Some(program) = arguments.next() else {
            return Err(format!("no program after `{COMMAND_SEPARATOR}`"));
        };
        Ok(Self {
            parent_pid,
            status_fd,
            kill_grace: Duration::from_millis(u64::from(kill_grace_ms)),
            directory,
            program,
            program_arguments: arguments.collect(),
        })
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &OsString) -> Result<T, String> {
    value
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{name} needs a whole number, not `{}`", value.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn everything_after_the_separator_belongs_to_the_command() {
        let arguments =
            parse("--parent-pid 7 --status-fd 3 --kill-grace-ms 250 --directory /tmp -- agent --status-fd -- x")
                .unwrap();
        let expected = Arguments {
            parent_pid: 7,
            status_fd: Some(3),
            kill_grace: Duration::from_millis(250),
            directory: Some(PathBuf::from("/tmp")),
            program: "agent".into(),
            program_arguments: vec!["--status-fd".into(), "--".into(), "x".into()],
        };
        assert_eq!(arguments, expected);
    }

    #[test]
    fn a_wrong_call_says_what_is_wrong() {
        for (line, part) in [
            ("--parent-pid 7", "no command"),
            ("--parent-pid 7 --", "no program"),
            ("-- agent", "--parent-pid is required"),
            ("--parent-pid x -- agent", "whole number"),
            ("--parent-pid", "needs a value"),
            ("--parent-pid 7 --status-fd 1 -- agent", "above 2"),
            ("--colour red -- agent", "unknown argument"),
        ] {
            let text = parse(line).unwrap_err();
            assert!(text.contains(part), "{line:?} gave {text:?}");
        }
    }
}
