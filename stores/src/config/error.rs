//! What reading the configuration as a whole can fail with.

use std::io;
use std::path::{Path, PathBuf};

use holdfast_protocol::error::{ErrorKind, WireError};

use super::problem::Problem;

/// Why there is no configuration. A file is never changed on the way to one of these.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is neither a file nor a backup: a root that was never set up.
    #[error("`{file}` does not exist")]
    Missing {
        /// The file.
        file: PathBuf,
    },
    /// The file is gone or empty, but the version before the last save is there and good.
    #[error("`{file}` is {found}, but `{backup}` holds the version before the last save")]
    Lost {
        /// The file.
        file: PathBuf,
        /// `missing` or `empty`.
        found: &'static str,
        /// The good backup.
        backup: PathBuf,
    },
    /// A directory, pipe or device.
    #[error("`{file}` is {found}, not a file")]
    NotAFile {
        /// The file.
        file: PathBuf,
        /// What is there, with its article.
        found: &'static str,
    },
    /// More than any configuration needs.
    #[error("`{file}` has {size_bytes} bytes; a configuration may have {limit_bytes}")]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Bytes that are no text.
    #[error("`{file}` line {line}, column {column}: not valid UTF-8")]
    NotUtf8 {
        /// The file.
        file: PathBuf,
        /// The line of the first bad byte.
        line: usize,
        /// Its column.
        column: usize,
    },
    /// The operating system refused.
    #[error("failed to read `{file}`")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The text is no TOML.
    #[error("{}{}", problem.describe(file), backup_note(backup.as_deref()))]
    Syntax {
        /// The file.
        file: PathBuf,
        /// What and where.
        problem: Box<Problem>,
        /// The version before the last save, when it is good.
        backup: Option<PathBuf>,
    },
    /// `schema_version` is nothing we can go by.
    #[error("{}", problem.describe(file))]
    SchemaVersion {
        /// The file.
        file: PathBuf,
        /// What and where.
        problem: Box<Problem>,
    },
    /// The text is TOML, but sections in it can't be used.
    #[error("{}{}", first.describe(file), others_note(others.len()))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The first problem.
        first: Box<Problem>,
        /// The others.
        others: Vec<Problem>,
    },
}

fn backup_note(backup: Option<&Path>) -> String {
    backup
        .map_or_else(String::new, |backup| format!(" (`{}` holds the version before the last save)", backup.display()))
}

fn others_note(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and 1 more problem)".to_owned(),
        _ => format!(" (and {count} more problems)"),
    }
}

impl ConfigError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::Lost { .. } => ErrorKind::NotFound,
            Self::NotAFile { .. }
            | Self::NotUtf8 { .. }
            | Self::Syntax { .. }
            | Self::SchemaVersion { .. }
            | Self::Invalid { .. } => ErrorKind::ConfigInvalid,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Unreadable { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Internal,
            },
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Missing { .. } => "holdfast init".to_owned(),
            Self::Lost { file, backup, .. } => restore_command(file, backup),
            Self::NotAFile { file, .. } => format!("move `{}` away, then `holdfast init`", file.display()),
            Self::TooLarge { file, .. } => format!("look at what is in `{}`", file.display()),
            Self::NotUtf8 { file, .. } => format!("save `{}` as UTF-8", file.display()),
            Self::Unreadable { file, .. } => {
                format!("let this user read it: chmod 600 {}", shell_quoted(file))
            }
            Self::Syntax { file, backup: Some(backup), .. } => {
                format!("correct the line, or go back to the version before: {}", restore_command(file, backup))
            }
            Self::Syntax { .. } | Self::SchemaVersion { .. } => "correct the line".to_owned(),
            Self::Invalid { first, .. } => first.hint.clone().unwrap_or_else(|| "correct the value".to_owned()),
        }
    }

    /// Returns the first problem that has a place.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Syntax { problem, .. } | Self::SchemaVersion { problem, .. } => Some(problem),
            Self::Invalid { first, .. } => Some(first),
            Self::Missing { .. }
            | Self::Lost { .. }
            | Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::NotUtf8 { .. }
            | Self::Unreadable { .. } => None,
        }
    }

    /// Returns all problems, for listing.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let others: &[Problem] = match self {
            Self::Invalid { others, .. } => others,
            _ => &[],
        };
        self.problem().into_iter().chain(others)
    }

    /// Returns the offending line with a caret below it, where there is one.
    pub fn picture(&self) -> Option<String> {
        self.problem()?.picture()
    }
}

impl From<&ConfigError> for WireError {
    fn from(error: &ConfigError) -> Self {
        let message = match error.picture() {
            Some(picture) => format!("{error}\n{picture}"),
            None => error.to_string(),
        };
        let wire = WireError::new(error.kind(), message).with_remedy(error.remedy());
        match error.problem() {
            Some(problem) if !problem.path.0.is_empty() => wire.at_path(problem.path.to_string()),
            _ => wire,
        }
    }
}

/// The one command that brings the backup back.
fn restore_command(file: &Path, backup: &Path) -> String {
    format!("cp -p -- {} {}", shell_quoted(backup), shell_quoted(file))
}

/// Quotes a path for a POSIX shell.
fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
