//! A log event and the line it becomes. Everything that bounds a line's length lives here.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::redact;

/// The longest message kept, in bytes. Longer ones are cut with a mark: whole bodies belong to the session store.
pub const MESSAGE_BYTES_MAX: usize = 2048;
/// The longest text kept of one field, in bytes.
pub const FIELD_BYTES_MAX: usize = 512;
/// The most fields kept of one event.
pub const FIELDS_MAX: usize = 32;
/// The longest line, in bytes, its newline included. A line that escaping makes longer loses its fields.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// The longest field name, target or span fact, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// How grave an event is, gravest first: `Error < Trace`, as `tracing` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed that someone should look at.
    Error,
    /// Something is wrong but handled.
    Warn,
    /// What an operator wants to know.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Returns the name as the line holds it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A text that names no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a log level: use error, warn, info, debug or trace")]
pub struct InvalidLogLevel {
    /// The text as given.
    pub text: String,
}

impl FromStr for LogLevel {
    type Err = InvalidLogLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLogLevel> {
        match text.to_ascii_lowercase().as_str() {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(InvalidLogLevel { text: text.to_owned() }),
        }
    }
}

/// What the spans around an event say about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpanFacts {
    /// The surface that was at work ("sessions").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surface: Option<String>,
    /// The agent's alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The generation of the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The trace id, 32 hexadecimal digits (W3C Trace Context).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The span id, 16 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
}

/// An event on its way to the log: as its author wrote it, neither redacted nor cut.
///
/// Not `Debug`: nothing should print what has not been redacted.
#[derive(Clone)]
pub struct LogEvent {
    /// When it happened, UTC milliseconds.
    pub time_ms: i64,
    /// How grave it is.
    pub level: LogLevel,
    /// Where it comes from, usually a module path.
    pub target: Cow<'static, str>,
    /// What the spans around it say.
    pub facts: SpanFacts,
    /// What happened.
    pub message: String,
    /// The event's own fields, in order.
    pub fields: Vec<(Cow<'static, str>, Value)>,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// The position in the log: rises by one a line, over all segments and restarts.
    pub seq: u64,
    /// When it happened, UTC milliseconds.
    pub time_ms: i64,
    /// How grave it is.
    pub level: LogLevel,
    /// Where it comes from.
    pub target: String,
    /// What the spans around it say.
    #[serde(flatten)]
    pub facts: SpanFacts,
    /// What happened.
    pub message: String,
    /// How many more events like this one were held back since the last line of their kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// The event's own fields.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl LogLine {
    /// Redacts and cuts `event`. The line gets its `seq` (here 0) from the store that writes it.
    pub fn from_event(event: LogEvent, repeated: Option<u64>) -> Self {
        let mut fields = Map::new();
        let total = event.fields.len();
        for (name, value) in event.fields.into_iter().take(FIELDS_MAX) {
            let value = bounded_value(redact::redact_value(&name, value));
            fields.insert(cut(name.into_owned(), NAME_BYTES_MAX), value);
        }
        if total > FIELDS_MAX {
            fields.insert("fields_cut".to_owned(), Value::from(total - FIELDS_MAX));
        }
        Self {
            seq: 0,
            time_ms: event.time_ms,
            level: event.level,
            target: cut(event.target.into_owned(), NAME_BYTES_MAX),
            facts: bounded_facts(event.facts),
            message: cut(redact::redact_text(&event.message).into_owned(), MESSAGE_BYTES_MAX),
            repeated,
            fields,
        }
    }

    /// Appends the line as JSON with its newline: at most [`LINE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Those of `serde_json`, which a line of strings, numbers and a map with string keys never meets.
    pub fn encode_into(&mut self, buffer: &mut Vec<u8>) -> serde_json::Result<()> {
        let start = buffer.len();
        serde_json::to_writer(&mut *buffer, self)?;
        if buffer.len() - start >= LINE_BYTES_MAX {
            buffer.truncate(start);
            let count = self.fields.len();
            self.fields = Map::from_iter([("fields_cut".to_owned(), Value::from(count))]);
            // JSON writes a control character as six bytes, so this bounds the text at 6 KiB.
            self.message = cut(std::mem::take(&mut self.message), 1024);
            serde_json::to_writer(&mut *buffer, self)?;
        }
        buffer.push(b'\n');
        Ok(())
    }
}

/// What stands where text was cut off.
const CUT_MARK: &str = "… [cut]";

/// Cuts `text` to `limit` bytes, mark included, at a character boundary.
pub fn cut(mut text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit.saturating_sub(CUT_MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(CUT_MARK);
    text
}

fn bounded_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(cut(text, FIELD_BYTES_MAX)),
        Value::Array(_) | Value::Object(_) => {
            let text = value.to_string();
            if text.len() > FIELD_BYTES_MAX { Value::String(cut(text, FIELD_BYTES_MAX)) } else { value }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn bounded_facts(facts: SpanFacts) -> SpanFacts {
    let bounded = |text: Option<String>| text.map(|text| cut(redact::redact_text(&text).into_owned(), NAME_BYTES_MAX));
    SpanFacts {
        surface: bounded(facts.surface),
        agent: bounded(facts.agent),
        session: bounded(facts.session),
        task: bounded(facts.task),
        generation: facts.generation,
        trace_id: bounded(facts.trace_id),
        span_id: bounded(facts.span_id),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn event(message: &str) -> LogEvent {
        LogEvent {
            time_ms: 1_780_000_000_000,
            level: LogLevel::Info,
            target: "holdfast::test".into(),
            facts: SpanFacts::default(),
            message: message.to_owned(),
            fields: Vec::new(),
        }
    }

    #[test]
    fn a_line_has_the_agreed_shape() {
        let mut event = event("turn ended");
        event.facts.surface = Some("acp".to_owned());
        event.facts.generation = Some(3);
        event.fields.push(("stop_reason".into(), "end_turn".into()));
        event.fields.push(("token".into(), "abc".into()));
        let mut line = LogLine::from_event(event, Some(7));
        line.seq = 12;
        let mut bytes = Vec::new();
        line.encode_into(&mut bytes).unwrap();
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            "{\"seq\":12,\"time_ms\":1780000000000,\"level\":\"info\",\"target\":\"holdfast::test\",\"surface\":\"acp\",\
             \"generation\":3,\"message\":\"turn ended\",\"repeated\":7,\"fields\":{\"stop_reason\":\"end_turn\",\
             \"token\":\"[redacted]\"}}\n"
        );
        assert_eq!(serde_json::from_slice::<LogLine>(&bytes).unwrap(), line);
    }

    #[test]
    fn a_long_body_is_cut_with_a_mark() {
        let body = "word ".repeat(2048);
        let mut event = event(&body);
        event.fields.push(("body".into(), body.clone().into()));
        let mut bytes = Vec::new();
        LogLine::from_event(event, None).encode_into(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.len() < MESSAGE_BYTES_MAX + FIELD_BYTES_MAX + 300, "{} bytes", text.len());
        assert_eq!(text.matches(CUT_MARK).count(), 2);
    }

    #[test]
    fn no_line_is_longer_than_the_limit() {
        let mut event = event(&"\u{1}".repeat(10_000));
        for _ in 0..100 {
            event.fields.push(("name".into(), "\u{1}".repeat(10_000).into()));
        }
        for index in 0..100 {
            event.fields.push((format!("name{index}").into(), "\u{1}é".repeat(10_000).into()));
        }
        event.fields.rotate_left(100);
        let mut bytes = Vec::new();
        LogLine::from_event(event, None).encode_into(&mut bytes).unwrap();
        assert!(bytes.len() <= LINE_BYTES_MAX, "{}", bytes.len());
        assert!(serde_json::from_slice::<LogLine>(&bytes).unwrap().fields.contains_key("fields_cut"));
    }

    #[test]
    fn cutting_respects_characters_and_is_stable() {
        for limit in 10..30 {
            let once = cut("é".repeat(100), limit);
            assert!(once.len() <= limit, "{limit}: {}", once.len());
            assert_eq!(cut(once.clone(), limit), once);
        }
    }
}
