//! What the agent asks a person: one question after the other, answered once.

use std::collections::VecDeque;

use holdfast_protocol::acp::permission::{PermissionOption, parse_permission_request, selected_result};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::jsonrpc::{Id, OwnedId};
use serde_json::value::RawValue;

use super::screen::CHOICES;

/// A permission request that waits for its answer.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: OwnedId,
    pub(super) params: Box<RawValue>,
}

/// The questions that wait, the one on the screen first.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<Question>,
}

/// What a person meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// This option.
    Select(String),
    /// To know more.
    Why,
    /// Nothing that we know.
    Unknown,
}

impl Questions {
    /// Adds a question; says whether it is the one to ask now.
    pub(super) fn add(&mut self, question: Question) -> bool {
        self.waiting.push_back(question);
        self.waiting.len() == 1
    }

    /// Returns the question on the screen.
    pub(super) fn current(&self) -> Option<&Question> {
        self.waiting.front()
    }

    /// Takes the question on the screen, which has been answered.
    pub(super) fn take_current(&mut self) -> Option<Question> {
        self.waiting.pop_front()
    }

    /// Takes all, for a turn that is cancelled or a keyboard that is gone.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Question> {
        std::mem::take(&mut self.waiting).into_iter()
    }

    /// Forgets a question that was answered elsewhere; says whether it was the one on the screen.
    pub(super) fn withdraw(&mut self, id: Id<'_>) -> bool {
        let id = id.to_owned();
        let was_current = self.current().is_some_and(|question| question.id == id);
        self.waiting.retain(|question| question.id != id);
        was_current
    }
}

/// Finds out what a typed line means for a question.
pub(super) fn meaning(line: &str, params: &RawValue) -> Typed {
    let word = line.trim().to_lowercase();
    if word == "?" || word == "why" {
        return Typed::Why;
    }
    let Ok(request) = parse_permission_request(Some(params)) else { return Typed::Unknown };
    let chosen = CHOICES
        .iter()
        .find(|(key, ..)| word == *key || (word == "yes" && *key == "y") || (word == "no" && *key == "n"));
    let Some((_, _, kind)) = chosen else { return Typed::Unknown };
    let of_kind = |option: &&PermissionOption<'_>| option.kind == *kind;
    match request.options.iter().find(of_kind) {
        Some(option) => Typed::Select(option.option_id.clone().into_owned()),
        None => Typed::Unknown,
    }
}

/// Makes the answer that selects an option.
///
/// # Errors
/// If it can't be JSON, which would be a fault of ours.
pub(super) fn selection(option_id: &str) -> Result<Box<RawValue>, serde_json::Error> {
    selected_result(option_id)
}

/// Makes the answer of a client that has nobody to ask: the daemon's rule for unattended turns decides then.
pub(super) fn nobody_to_ask() -> ErrorObject {
    WireError::new(ErrorKind::MethodNotFound, "nobody is at a terminal to be asked").to_object()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(id: i64) -> Question {
        let params = r#"{"sessionId":"s","toolCall":{},"options":[{"optionId":"ok","kind":"allow_once"},{"optionId":"nope","kind":"reject_once"}]}"#;
        Question { id: OwnedId::Integer(id), params: RawValue::from_string(params.to_owned()).unwrap() }
    }

    #[test]
    fn keys_choose_options_that_are_offered() {
        let params = question(1).params;
        for (line, typed) in [
            ("y", Typed::Select("ok".to_owned())),
            (" YES ", Typed::Select("ok".to_owned())),
            ("n", Typed::Select("nope".to_owned())),
            ("a", Typed::Unknown),
            ("", Typed::Unknown),
            ("?", Typed::Why),
        ] {
            assert_eq!(meaning(line, &params), typed, "{line}");
        }
        assert_eq!(nobody_to_ask().code, -32601);
    }

    #[test]
    fn one_is_asked_at_a_time_and_a_withdrawn_one_is_forgotten() {
        let mut questions = Questions::default();
        assert!(questions.add(question(1)));
        assert!(!questions.add(question(2)));
        assert!(!questions.add(question(3)));
        assert!(!questions.withdraw(Id::from_raw("2").unwrap()));
        assert!(questions.withdraw(Id::from_raw("1").unwrap()));
        assert_eq!(questions.take_current().unwrap().id, OwnedId::Integer(3));
        assert!(questions.current().is_none());
    }
}
