//! `holdfast rpc`: any method, as JSON.

use std::io::{self, Read};

use holdfast_actors::at_rest;
use serde_json::value::RawValue;

use super::{Answers, Place, answers, connect};
use crate::cli::RpcArguments;
use crate::render::{Exit, Failure, Renderer};

pub(super) fn rpc(arguments: &RpcArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let text = match arguments.params.as_deref() {
        None => "{}".to_owned(),
        Some("-") => read_standard_input()?,
        Some(text) => text.to_owned(),
    };
    let params: &RawValue = serde_json::from_str(&text).map_err(|error| {
        Failure::new(Exit::Usage, format!("the params are not JSON: {error}"))
            .hint("put them in single quotes: holdfast rpc session/list '{\"limit\": 5}'")
    })?;
    let method = arguments.method.as_str();
    let mut answers = match at_rest::METHODS.contains(&method) {
        true => answers(place, renderer)?,
        false => Answers::Daemon(connect(place)?),
    };
    let result = answers.call_raw(method, params)?;
    // As the daemon wrote it: reading it into a tree would reorder keys and round large numbers.
    renderer.json_line(&result)?;
    Ok(Exit::Ok)
}

/// Reads all of standard input as text.
pub(super) fn read_standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::new(Exit::Usage, format!("could not read standard input: {error}")))?;
    Ok(text)
}
