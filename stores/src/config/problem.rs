//! What can be wrong in a configuration, where, and how it reads.

use std::fmt;
use std::path::{Path, PathBuf};

use holdfast_protocol::error::{ErrorKind, WireError};

use super::path::KeyPath;
use super::source::Position;

/// Where a problem is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the file.
    File(Position),
    /// In an environment variable of this name.
    Variable(String),
    /// Nowhere in particular: something is missing.
    Unknown,
}

/// One thing wrong. Never holds the value of anything that may be secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key it is about; empty for the file as a whole.
    pub path: KeyPath,
    /// Where it is.
    pub place: Place,
    /// What is wrong, without place and path.
    pub message: String,
    /// What would have been right, where that is known.
    pub expected: Option<String>,
    /// What was there instead.
    pub found: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    /// Makes a problem with a message only.
    pub fn new(path: KeyPath, place: Place, message: impl Into<String>) -> Self {
        Self { path, place, message: message.into(), expected: None, found: None, hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Returns the line, counted from 1.
    pub fn line(&self) -> Option<usize> {
        match &self.place {
            Place::File(position) => Some(position.line),
            Place::Variable(_) | Place::Unknown => None,
        }
    }

    /// Returns the column, counted from 1.
    pub fn column(&self) -> Option<usize> {
        match &self.place {
            Place::File(position) => Some(position.column),
            Place::Variable(_) | Place::Unknown => None,
        }
    }

    /// Returns the offending line with a caret below it.
    pub fn picture(&self) -> Option<String> {
        match &self.place {
            Place::File(position) => Some(position.picture()),
            Place::Variable(_) | Place::Unknown => None,
        }
    }

    /// Shows the problem on one line: `config.toml line 31, column 8: expected a value, found …`.
    pub fn describe(&self, file: &Path) -> String {
        let name = file.file_name().map_or_else(|| file.display().to_string(), |name| name.display().to_string());
        let place = match &self.place {
            Place::File(position) => format!("{name} line {}, column {}", position.line, position.column),
            Place::Variable(variable) => format!("environment variable {variable}"),
            Place::Unknown => name,
        };
        match self.path.0.is_empty() {
            true => format!("{place}: {}", self.message),
            false => format!("{place}: `{}`: {}", self.path, self.message),
        }
    }
}

/// A section that can't be used. At least one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionError {
    /// The section.
    pub section: &'static str,
    /// The file.
    pub file: PathBuf,
    /// The first problem.
    pub first: Box<Problem>,
    /// The others.
    pub others: Vec<Problem>,
}

impl SectionError {
    /// Makes the error of a list of problems, or nothing of an empty list.
    pub(super) fn of(section: &'static str, file: &Path, problems: Vec<Problem>) -> Option<Self> {
        let mut problems = problems.into_iter();
        let first = Box::new(problems.next()?);
        Some(Self { section, file: file.to_owned(), first, others: problems.collect() })
    }

    /// Returns all problems.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        std::iter::once(self.first.as_ref()).chain(&self.others)
    }

    /// Returns the kind; there is one.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::ConfigInvalid
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        let fix = match &self.first.place {
            Place::Variable(variable) => format!("correct or unset {variable} and restart"),
            Place::File(position) => {
                format!("correct line {} of {}, then `holdfast reload`", position.line, self.file.display())
            }
            Place::Unknown => {
                format!("correct `[{}]` in {}, then `holdfast reload`", self.section, self.file.display())
            }
        };
        match &self.first.hint {
            Some(hint) => format!("{hint}; {fix}"),
            None => fix,
        }
    }
}

impl fmt::Display for SectionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems().enumerate() {
            if index > 0 {
                formatter.write_str("; ")?;
            }
            formatter.write_str(&problem.describe(&self.file))?;
        }
        Ok(())
    }
}

impl std::error::Error for SectionError {}

impl From<&SectionError> for WireError {
    fn from(error: &SectionError) -> Self {
        WireError::new(error.kind(), error.to_string())
            .with_remedy(error.remedy())
            .at_path(error.first.path.to_string())
    }
}

/// What a serde message says, for people: (message, expected, found).
///
/// serde's own texts name Rust types; these name TOML's. The value found is dropped where it may be secret.
pub(super) fn explain(message: &str, secret: bool) -> (String, Option<String>, Option<String>) {
    let message = message.trim();
    for prefix in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, expected)) = message.strip_prefix(prefix).and_then(|rest| rest.rsplit_once(", expected ")) {
            let (expected, found) = (name_expected(expected), name_found(found, secret));
            return (format!("expected {expected}, found {found}"), Some(expected), Some(found));
        }
    }
    if let Some((found, expected)) =
        message.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        let found = if secret { "something else".to_owned() } else { shorten(found) };
        return (format!("expected {expected}, found {found}"), Some(expected.to_owned()), Some(found));
    }
    if secret && !message.starts_with("missing field") {
        return ("the value is not valid".to_owned(), None, None);
    }
    (shorten(message), None, None)
}

/// Names what serde expected.
fn name_expected(expected: &str) -> String {
    match expected {
        "a boolean" => "true or false".to_owned(),
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a map" => "a table".to_owned(),
        "a sequence" => "a list".to_owned(),
        _ if expected.starts_with("struct ") => "a table".to_owned(),
        _ => expected.to_owned(),
    }
}

/// Names what serde found: `string "x"`, "integer `5`", `map`.
fn name_found(found: &str, secret: bool) -> String {
    let kind = found.split(' ').next().unwrap_or_default();
    match kind {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        "integer" if secret => "an integer".to_owned(),
        _ if secret => format!("a {kind}"),
        _ => shorten(found),
    }
}

/// Keeps a message to one readable line.
fn shorten(text: &str) -> String {
    const LIMIT_CHARACTERS: usize = 160;
    let line = text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ");
    match line.char_indices().nth(LIMIT_CHARACTERS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serdes_texts_are_put_into_tomls_words() {
        for (message, secret, expected) in [
            ("invalid type: boolean `true`, expected struct Cron", false, "expected a table, found boolean `true`"),
            (
                "invalid value: integer `70000`, expected u16",
                false,
                "expected a whole number from 0 to 65535, found integer `70000`",
            ),
            ("invalid type: string \"marker\", expected a sequence", true, "expected a list, found a string"),
            ("invalid type: map, expected a string", false, "expected a string, found a table"),
            ("unknown variant `x`, expected `a` or `b`", false, "expected `a` or `b`, found `x`"),
            ("unknown variant `marker`, expected `a` or `b`", true, "expected `a` or `b`, found something else"),
            ("marker is no good", true, "the value is not valid"),
            ("missing field `url`", true, "missing field `url`"),
        ] {
            assert_eq!(explain(message, secret).0, expected);
        }
    }
}
