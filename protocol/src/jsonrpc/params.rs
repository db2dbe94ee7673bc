//! Typed params out of raw ones, with the place of the fault when they do not fit.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{ErrorKind, WireError};

/// Parses a method's params. Missing and null params count as `{}`, so that methods without needed fields may omit them.
///
/// # Errors
/// [`ErrorKind::InvalidParams`] with the JSON path of the first value that does not fit.
pub fn parse_params<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, WireError> {
    let text = match params.map(RawValue::get) {
        None | Some("null") => "{}",
        Some(text) => text,
    };
    // Keeping track of the path costs on every field, so only params that do not fit pay for it.
    serde_json::from_str(text).or_else(|_| parse_with_path(text))
}

fn parse_with_path<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, WireError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let reason = without_position(error.inner());
        if path == "." {
            WireError::new(ErrorKind::InvalidParams, format!("params do not fit the method: {reason}"))
        } else {
            WireError::new(ErrorKind::InvalidParams, format!("params do not fit the method at `{path}`: {reason}"))
                .at_path(path)
        }
    })
}

/// Line and column count inside the params, which the sender never sees as a text of their own.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(position) => text[..position].to_owned(),
        None => text,
    }
}
