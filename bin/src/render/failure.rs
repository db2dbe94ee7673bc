//! How a command ends when it does not end well: what failed, why, and what to type next.

use std::error::Error;
use std::io;

use holdfast_protocol::error::WireError;

use super::exit::Exit;
use super::short_id::ResolveError;

/// The end of a command that has no answer.
#[derive(Debug)]
pub enum Failure {
    /// Something to tell the user.
    Fault(Box<Fault>),
    /// The reader of standard output has gone (`| head`): nothing to say and nobody to say it to.
    PipeClosed,
}

/// What is told to the user on standard error.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// The exit code.
    pub exit: Exit,
    /// What failed and why, one sentence, without a full stop.
    pub message: String,
    /// Lines that belong to the message: a piece of a file with a caret under it, a list of candidates.
    pub detail: Option<String>,
    /// What to type next.
    pub hints: Vec<String>,
}

impl Failure {
    /// Makes a failure of a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Fault(Box::new(Fault { exit, message: message.into(), detail: None, hints: Vec::new() }))
    }

    /// Makes a failure of an error and all that caused it: `reading a: permission denied`.
    pub fn caused(exit: Exit, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            // Some libraries repeat their source in their own text.
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = inner.source();
        }
        Self::new(exit, message)
    }

    /// Adds what to type next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Fault(fault) = &mut self {
            fault.hints.push(hint.into());
        }
        self
    }

    /// Adds lines that belong to the message.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        if let Self::Fault(fault) = &mut self {
            fault.detail = Some(detail.into());
        }
        self
    }

    /// Makes a failure of a write to standard output.
    pub(super) fn of_output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::PipeClosed,
            _ => Self::new(Exit::Failed, format!("could not write the answer: {error}")),
        }
    }
}

impl From<WireError> for Failure {
    /// The first line of a message is the sentence; the rest (a piece of `config.toml`) is its detail.
    fn from(error: WireError) -> Self {
        let exit = Exit::of_kind(error.kind);
        let (sentence, detail) = match error.message.split_once('\n') {
            Some((sentence, rest)) => (sentence.to_owned(), Some(rest.trim_end().to_owned())),
            None => (error.message, None),
        };
        let sentence = match error.path {
            Some(path) => format!("{sentence} (at {path})"),
            None => sentence,
        };
        Self::Fault(Box::new(Fault { exit, message: sentence, detail, hints: error.remedy.into_iter().collect() }))
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        let message = error.to_string();
        match error {
            ResolveError::Unknown { .. } => Self::new(Exit::NotFound, message),
            ResolveError::Ambiguous { mut examples, count, .. } => {
                if let Some(more) = count.checked_sub(examples.len()).filter(|more| *more > 0) {
                    examples.push(format!("… and {more} more"));
                }
                Self::new(Exit::Usage, message).detail(examples.join("\n")).hint("give more characters of it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::error::ErrorKind;

    use super::*;

    fn fault(failure: Failure) -> Fault {
        match failure {
            Failure::Fault(fault) => *fault,
            Failure::PipeClosed => panic!("expected a fault"),
        }
    }

    #[test]
    fn the_chain_is_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("could not read `config.toml`")]
        struct Outer(#[source] io::Error);
        let failure = Failure::caused(Exit::Failed, &Outer(io::Error::other("device gone")));
        assert_eq!(fault(failure).message, "could not read `config.toml`: device gone");
    }

    #[test]
    fn a_wire_error_becomes_sentence_detail_and_hint() {
        let error = WireError::new(ErrorKind::ConfigInvalid, "line 31: found `=`\n31 | port = = 7420\n   |        ^\n")
            .with_remedy("holdfast status");
        assert_eq!(
            fault(error.into()),
            Fault {
                exit: Exit::Failed,
                message: "line 31: found `=`".to_owned(),
                detail: Some("31 | port = = 7420\n   |        ^".to_owned()),
                hints: vec!["holdfast status".to_owned()],
            }
        );
        let error = WireError::new(ErrorKind::InvalidParams, "expected a string").at_path("events[0].kind");
        assert_eq!(fault(error.into()).message, "expected a string (at events[0].kind)");
    }
}
