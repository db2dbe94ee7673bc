//! Changes to raw JSON that leave every other byte as it was.

use std::ops::Range;

use serde_json::value::RawValue;

use crate::raw;

/// A raw message that cannot be edited as asked.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// Members can be set in objects only.
    #[error("expected a JSON object to set `{path}` in")]
    NotAnObject {
        /// The path of the member, dotted.
        path: String,
    },
    /// A new value was no JSON, or the edited text was none before.
    #[error("edited text is not JSON")]
    NotJson(#[from] serde_json::Error),
}

/// Replacements of byte ranges in one text, in ascending order and not overlapping.
#[derive(Debug, Default)]
pub(super) struct Splices {
    edits: Vec<(Range<usize>, String)>,
}

impl Splices {
    pub(super) fn push(&mut self, range: Range<usize>, replacement: String) {
        self.edits.push((range, replacement));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    pub(super) fn apply(&self, text: &str) -> Result<Box<RawValue>, EditError> {
        let grown: usize = self.edits.iter().map(|(_, replacement)| replacement.len()).sum();
        let mut edited = String::with_capacity(text.len() + grown);
        let mut position = 0;
        for (range, replacement) in &self.edits {
            edited.push_str(&text[position..range.start]);
            edited.push_str(replacement);
            position = range.end;
        }
        edited.push_str(&text[position..]);
        Ok(RawValue::from_string(edited)?)
    }
}

/// Sets the member at `path` to the JSON text `value`; missing objects on the way are made, other values there
/// (null, for one) are replaced by objects. A new member goes first into its object.
///
/// # Errors
/// [`EditError`] if `object` is no object or `value` no JSON.
pub fn set_member(object: &RawValue, path: &[&str], value: &str) -> Result<Box<RawValue>, EditError> {
    let not_an_object = || EditError::NotAnObject { path: path.join(".") };
    let mut text = object.get();
    let mut offset = 0;
    let mut splices = Splices::default();
    for (depth, name) in path.iter().enumerate() {
        let members = raw::members(text).ok_or_else(not_an_object)?;
        let is_last = depth + 1 == path.len();
        match members.clone().filter(|member| member.is(name)).last() {
            Some(member) if !is_last && raw::members(member.value).is_some() => {
                offset += member.value_range().start;
                text = member.value;
            }
            Some(member) => {
                let range = member.value_range();
                splices.push(offset + range.start..offset + range.end, nested(&path[depth + 1..], value));
                break;
            }
            None => {
                let comma = if members.clone().next().is_some() { "," } else { "" };
                let first = offset + text.len() - text.trim_start().len() + 1;
                splices
                    .push(first..first, format!("{}:{}{comma}", raw::quote(name), nested(&path[depth + 1..], value)));
                break;
            }
        }
    }
    splices.apply(object.get())
}

/// Removes every member at the end of `path`, with one comma. An absent member is no error.
///
/// # Errors
/// [`EditError::NotAnObject`] if `object` is no object.
pub fn remove_member(object: &RawValue, path: &[&str]) -> Result<Box<RawValue>, EditError> {
    let mut text = object.get();
    let mut offset = 0;
    let Some((name, parents)) = path.split_last() else { return Ok(object.to_owned()) };
    if raw::members(text).is_none() {
        return Err(EditError::NotAnObject { path: path.join(".") });
    }
    for parent in parents {
        let found = raw::members(text).and_then(|members| members.filter(|member| member.is(parent)).last());
        let Some(member) = found.filter(|member| raw::members(member.value).is_some()) else {
            return Ok(object.to_owned());
        };
        offset += member.value_range().start;
        text = member.value;
    }
    let mut splices = Splices::default();
    let mut kept_before: Option<usize> = None;
    let mut members = raw::members(text).into_iter().flatten().peekable();
    while let Some(member) = members.next() {
        let range = member.range();
        if !member.is(name) {
            kept_before = Some(range.end);
            continue;
        }
        // A comma goes with it: the one before if something stays before, else the one behind.
        let start = kept_before.unwrap_or(range.start);
        let end = match (kept_before, members.peek()) {
            (None, Some(next)) => next.range().start,
            _ => range.end,
        };
        // Two in a row: the ranges would touch or overlap, so they grow into one.
        match splices.edits.last_mut() {
            Some((last, _)) if last.end >= offset + start => last.end = offset + end,
            _ => splices.push(offset + start..offset + end, String::new()),
        }
    }
    splices.apply(object.get())
}

fn nested(path: &[&str], value: &str) -> String {
    path.iter().rev().fold(value.to_owned(), |inner, name| format!("{{{}:{inner}}}", raw::quote(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn setting_makes_what_is_missing_and_touches_nothing_else() {
        for (before, path, after) in [
            ("{}", &["a"][..], r#"{"a":1}"#),
            ("{}", &["a", "b", "c"], r#"{"a":{"b":{"c":1}}}"#),
            (r#"{ "x" : 1.50 }"#, &["a"], r#"{"a":1, "x" : 1.50 }"#),
            (r#"{"a":null,"x":1}"#, &["a", "b"], r#"{"a":{"b":1},"x":1}"#),
            (r#"{"x":1, "a" : {"y":2}}"#, &["a", "b"], r#"{"x":1, "a" : {"b":1,"y":2}}"#),
            (r#"{"a":{"b":{"c":7}}}"#, &["a", "b"], r#"{"a":{"b":1}}"#),
            (r#"{"a":2,"a":3}"#, &["a"], r#"{"a":2,"a":1}"#),
        ] {
            assert_eq!(set_member(&raw(before), path, "1").unwrap().get(), after);
        }
        assert!(matches!(set_member(&raw("[]"), &["a"], "1"), Err(EditError::NotAnObject { .. })));
        assert!(matches!(set_member(&raw("{}"), &["a"], "}"), Err(EditError::NotJson(_))));
    }

    #[test]
    fn removing_takes_one_comma() {
        for (before, path, after) in [
            (r#"{"a":1}"#, &["a"][..], "{}"),
            (r#"{"a":1,"b":2}"#, &["a"], r#"{"b":2}"#),
            (r#"{"b":2 , "a":1 }"#, &["a"], r#"{"b":2 }"#),
            (r#"{"x":1,"a":1,"b":2}"#, &["a"], r#"{"x":1,"b":2}"#),
            (r#"{"a":1,"a":2,"b":3,"a":4}"#, &["a"], r#"{"b":3}"#),
            (r#"{"x":1,"a":1,"a":2}"#, &["a"], r#"{"x":1}"#),
            (r#"{"a":1,"a":2}"#, &["a"], "{}"),
            (r#"{"x":{"a":1,"y":2},"a":3}"#, &["x", "a"], r#"{"x":{"y":2},"a":3}"#),
            (r#"{"x":1}"#, &["x", "a"], r#"{"x":1}"#),
        ] {
            assert_eq!(remove_member(&raw(before), path).unwrap().get(), after, "{before}");
        }
    }
}
