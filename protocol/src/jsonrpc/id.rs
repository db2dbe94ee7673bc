//! Request ids: kept as the text they came in, since `1`, `1.0` and `"1"` are three ids and 2^53 is no limit.

use std::fmt;

/// A request id as it stands in the frame: a JSON string, number or null, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id<'a>(&'a str);

impl<'a> Id<'a> {
    /// The id `null`. A request with it is answered, unlike one without an id.
    pub const NULL: Id<'static> = Id("null");

    /// Takes the raw JSON text of an id; `None` if it is neither string, number nor null.
    ///
    /// `raw` must be one JSON value without white space around it, as [`serde_json::value::RawValue`] holds it.
    pub fn from_raw(raw: &'a str) -> Option<Self> {
        match raw.as_bytes().first() {
            Some(b'"' | b'-' | b'0'..=b'9') => Some(Self(raw)),
            Some(b'n') => Some(Self(raw)),
            _ => None,
        }
    }

    /// Returns the id's JSON text.
    pub fn as_raw(self) -> &'a str {
        self.0
    }

    /// Returns the number, if the id is one that fits; ids that we gave out ourselves do.
    pub fn as_u64(self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// Copies the id out of its frame. Does not allocate for integers and null.
    pub fn to_owned(self) -> OwnedId {
        if self.0 == "null" {
            return OwnedId::Null;
        }
        match self.0.parse::<i64>() {
            // `-0` parses to 0 and would come back as another text.
            Ok(number) if self.0 != "-0" => OwnedId::Integer(number),
            _ => OwnedId::Other(self.0.into()),
        }
    }
}

/// A request id that outlives its frame and is written back exactly as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OwnedId {
    /// `null`.
    Null,
    /// A number whose text is the plain decimal form.
    Integer(i64),
    /// Anything else, as JSON text: strings with their quotes, `1.5`, `1e3`, integers past 64 bits.
    Other(Box<str>),
}

/// Something that can stand as `id` in a frame.
pub trait IdText {
    /// Appends the id's JSON text.
    fn write_id(&self, buffer: &mut Vec<u8>);
}

impl IdText for Id<'_> {
    fn write_id(&self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(self.0.as_bytes());
    }
}

impl IdText for OwnedId {
    fn write_id(&self, buffer: &mut Vec<u8>) {
        match self {
            Self::Null => buffer.extend_from_slice(b"null"),
            Self::Integer(number) => {
                // Writing into a Vec does not fail.
                let _ = std::io::Write::write_fmt(buffer, format_args!("{number}"));
            }
            Self::Other(raw) => buffer.extend_from_slice(raw.as_bytes()),
        }
    }
}

impl IdText for u64 {
    fn write_id(&self, buffer: &mut Vec<u8>) {
        // Writing into a Vec does not fail.
        let _ = std::io::Write::write_fmt(buffer, format_args!("{self}"));
    }
}

/// `None` is written as null, which is what an answer to an unreadable request carries.
impl<T: IdText> IdText for Option<T> {
    fn write_id(&self, buffer: &mut Vec<u8>) {
        match self {
            Some(id) => id.write_id(buffer),
            None => buffer.extend_from_slice(b"null"),
        }
    }
}

impl<T: IdText> IdText for &T {
    fn write_id(&self, buffer: &mut Vec<u8>) {
        (**self).write_id(buffer);
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl fmt::Display for OwnedId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => formatter.write_str("null"),
            Self::Integer(number) => number.fmt(formatter),
            Self::Other(raw) => formatter.write_str(raw),
        }
    }
}
