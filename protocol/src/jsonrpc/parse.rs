//! From one line to what it asks.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Id;
use crate::error::{ErrorKind, ErrorObject, WireError};
use crate::raw;

/// The most messages in one batch. A frame of 16 MiB could otherwise hold eight million, each with an answer.
pub const BATCH_MAX: usize = 1024;

/// One line of the stream.
#[derive(Debug)]
pub enum Frame<'a> {
    /// One message.
    Single(Message<'a>),
    /// A batch of one or more; those that expect an answer are answered in one array.
    Batch(Vec<Message<'a>>),
    /// Nothing that could be answered by id: not JSON, not UTF-8, no object, an empty or oversized batch. Answered once,
    /// with id null.
    Invalid(WireError),
}

/// One message. Raw params and results keep every byte, white space inside included.
#[derive(Debug)]
pub enum Message<'a> {
    /// Expects exactly one answer, also when `id` is null.
    Request {
        /// To be echoed as it is.
        id: Id<'a>,
        /// The method's name.
        method: Cow<'a, str>,
        /// Any JSON value: a wrong type is the method's to refuse (invalid params), after an unknown method is refused.
        params: Option<&'a RawValue>,
    },
    /// Has no id and never gets an answer, not even an error.
    Notification {
        /// The method's name.
        method: Cow<'a, str>,
        /// As for a request.
        params: Option<&'a RawValue>,
    },
    /// The peer's answer to a request of ours.
    Response {
        /// The id of our request.
        id: Id<'a>,
        /// The raw result, or the error. An error that is no JSON-RPC error object comes as code -32603 with the raw
        /// text as data, since the request it answers has to end all the same.
        outcome: Result<&'a RawValue, ErrorObject>,
    },
    /// An object that is no JSON-RPC 2.0 message.
    Invalid {
        /// The id to answer with, if there was a usable one; else null.
        id: Option<Id<'a>>,
        /// What to answer.
        error: WireError,
    },
}

/// Reads one line, without its newline.
///
/// Choices the standard leaves open: a fractional id is a number like any other; of a key that comes twice the last
/// one counts; a message with a `method` is a request whatever else it holds; nested batches are refused.
pub fn parse_frame(line: &[u8]) -> Frame<'_> {
    // First, over everything: serde_json checks only the strings that it decodes.
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("frame is not UTF-8: invalid byte at offset {}", error.valid_up_to());
            return Frame::Invalid(WireError::new(ErrorKind::ParseError, message));
        }
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed =
        FrameSeed::for_text(text).deserialize(&mut deserializer).and_then(|frame| deserializer.end().map(|()| frame));
    parsed.unwrap_or_else(|error| {
        Frame::Invalid(WireError::new(ErrorKind::ParseError, format!("frame is not JSON: {error}")))
    })
}

fn invalid_request(message: impl Into<String>) -> WireError {
    WireError::new(ErrorKind::InvalidRequest, message)
}

fn not_an_object() -> Message<'static> {
    Message::Invalid { id: None, error: invalid_request("message is not a JSON object") }
}

/// Reads any JSON value as a frame, told apart by its first byte; fails only where the text is not JSON.
enum FrameSeed {
    Object,
    Array,
    Scalar,
}

impl FrameSeed {
    fn for_text(text: &str) -> Self {
        match text.trim_ascii_start().as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            _ => Self::Scalar,
        }
    }
}

impl<'de> DeserializeSeed<'de> for FrameSeed {
    type Value = Frame<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Frame<'de>, D::Error> {
        match self {
            Self::Object => deserializer.deserialize_map(self),
            Self::Array => deserializer.deserialize_seq(self),
            // Ignored, not read: a number too large for a float and half a surrogate pair are JSON all the same.
            Self::Scalar => IgnoredAny::deserialize(deserializer).map(|_| Frame::Single(not_an_object())),
        }
    }
}

impl<'de> Visitor<'de> for FrameSeed {
    type Value = Frame<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON-RPC message or batch")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Frame<'de>, A::Error> {
        Ok(Frame::Single(Fields::read(map)?.into_message()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Frame<'de>, A::Error> {
        let mut messages = Vec::new();
        while messages.len() < BATCH_MAX {
            match sequence.next_element::<&'de RawValue>()? {
                Some(element) => messages.push(parse_element(element)),
                None if messages.is_empty() => return Ok(Frame::Invalid(invalid_request("batch is empty"))),
                None => return Ok(Frame::Batch(messages)),
            }
        }
        if sequence.next_element::<IgnoredAny>()?.is_none() {
            return Ok(Frame::Batch(messages));
        }
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Frame::Invalid(invalid_request(format!("batch holds more than {BATCH_MAX} messages"))))
    }
}

fn parse_element(element: &RawValue) -> Message<'_> {
    let text = element.get();
    if !text.starts_with('{') {
        return not_an_object();
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match deserializer.deserialize_map(FieldsVisitor) {
        Ok(fields) => fields.into_message(),
        // Raw values are checked JSON; what is left are keys that cannot be decoded, such as half a surrogate pair.
        Err(error) => Message::Invalid { id: None, error: invalid_request(format!("message is not valid: {error}")) },
    }
}

/// The members we route on, raw.
#[derive(Default)]
struct Fields<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fields<'de>, A::Error> {
        Fields::read(map)
    }
}

enum Key {
    JsonRpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    Other,
}

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Key;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            "jsonrpc" => Key::JsonRpc,
            "id" => Key::Id,
            "method" => Key::Method,
            "params" => Key::Params,
            "result" => Key::Result,
            "error" => Key::Error,
            _ => Key::Other,
        })
    }
}

impl<'a> Fields<'a> {
    fn read<A: MapAccess<'a>>(mut map: A) -> Result<Self, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key_seed(Key::Other)? {
            match key {
                Key::JsonRpc => fields.jsonrpc = Some(map.next_value()?),
                Key::Id => fields.id = Some(map.next_value()?),
                Key::Method => fields.method = Some(map.next_value()?),
                Key::Params => fields.params = Some(map.next_value()?),
                Key::Result => fields.result = Some(map.next_value()?),
                Key::Error => fields.error = Some(map.next_value()?),
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }

    fn into_message(self) -> Message<'a> {
        let id = match self.id.map(|raw| Id::from_raw(raw.get())) {
            None => None,
            Some(Some(id)) => Some(id),
            Some(None) => return invalid(None, "id is neither a string nor a number nor null"),
        };
        match self.jsonrpc.map(|version| raw::string(version.get())) {
            Some(Some(version)) if version == "2.0" => {}
            None => return invalid(id, "member `jsonrpc` is missing; it must be \"2.0\""),
            Some(_) => return invalid(id, "member `jsonrpc` is not \"2.0\""),
        }
        if let Some(method) = self.method {
            let Some(method) = raw::string(method.get()) else {
                return invalid(id, "member `method` is not a string");
            };
            return match id {
                Some(id) => Message::Request { id, method, params: self.params },
                None => Message::Notification { method, params: self.params },
            };
        }
        // Some peers send `"error": null` beside a result.
        let outcome = match (self.result, self.error.filter(|raw| raw.get() != "null")) {
            (_, Some(error)) => Err(error_object(error)),
            (Some(result), None) => Ok(result),
            (None, None) => return invalid(id, "message has neither `method` nor `result` nor `error`"),
        };
        match id {
            Some(id) => Message::Response { id, outcome },
            None => invalid(None, "response has no id"),
        }
    }
}

fn invalid<'a>(id: Option<Id<'a>>, message: &str) -> Message<'a> {
    Message::Invalid { id, error: invalid_request(message) }
}

fn error_object(error: &RawValue) -> ErrorObject {
    serde_json::from_str(error.get()).unwrap_or_else(|_| ErrorObject {
        code: ErrorKind::Internal.code(),
        message: "the peer answered with an error that is no JSON-RPC error object".to_owned(),
        data: Some(error.to_owned()),
    })
}
