//! From answers to lines. Every function appends exactly one line, with its newline, to a buffer the caller reuses.

use serde::Serialize;
use serde_json::value::RawValue;

use super::IdText;
use crate::error::{ErrorKind, ErrorObject, WireError};

/// Appends an answer with a result.
///
/// # Errors
/// When `result` cannot be JSON (a fault of ours). An internal error is then appended as the answer, so that the
/// request is not left waiting; the error is returned for the log.
pub fn write_result(
    buffer: &mut Vec<u8>,
    id: impl IdText,
    result: &(impl Serialize + ?Sized),
) -> Result<(), serde_json::Error> {
    let start = buffer.len();
    begin_answer(buffer, &id, b",\"result\":");
    match serde_json::to_writer(&mut *buffer, result) {
        Ok(()) => {
            end_line(buffer, start);
            Ok(())
        }
        Err(error) => {
            buffer.truncate(start);
            write_error(buffer, id, &WireError::new(ErrorKind::Internal, "failed to write the result as JSON"));
            Err(error)
        }
    }
}

/// Appends an answer with a result that is JSON text already.
pub fn write_raw_result(buffer: &mut Vec<u8>, id: impl IdText, result: &RawValue) {
    let start = buffer.len();
    begin_answer(buffer, &id, b",\"result\":");
    buffer.extend_from_slice(result.get().as_bytes());
    end_line(buffer, start);
}

/// Appends an answer with an error of ours. An id of `None` is written as null.
pub fn write_error(buffer: &mut Vec<u8>, id: impl IdText, error: &WireError) {
    write_error_object(buffer, id, &error.to_object());
}

/// Appends an answer with any JSON-RPC error.
pub fn write_error_object(buffer: &mut Vec<u8>, id: impl IdText, error: &ErrorObject) {
    let start = buffer.len();
    begin_answer(buffer, &id, b",\"error\":{\"code\":");
    // An integer and a string always serialise, and writing into a Vec does not fail.
    let _ = serde_json::to_writer(&mut *buffer, &error.code);
    buffer.extend_from_slice(b",\"message\":");
    let _ = serde_json::to_writer(&mut *buffer, &error.message);
    if let Some(data) = &error.data {
        buffer.extend_from_slice(b",\"data\":");
        buffer.extend_from_slice(data.get().as_bytes());
    }
    buffer.extend_from_slice(b"}");
    end_line(buffer, start);
}

/// Appends a request.
///
/// # Errors
/// When `params` cannot be JSON; nothing is appended then.
pub fn write_request(
    buffer: &mut Vec<u8>,
    id: impl IdText,
    method: &str,
    params: &(impl Serialize + ?Sized),
) -> Result<(), serde_json::Error> {
    let start = buffer.len();
    begin_answer(buffer, &id, b",\"method\":");
    write_call(buffer, start, method, params)
}

/// Appends a request whose params are JSON text already, or that has none.
pub fn write_raw_request(buffer: &mut Vec<u8>, id: impl IdText, method: &str, params: Option<&RawValue>) {
    let start = buffer.len();
    begin_answer(buffer, &id, b",\"method\":");
    write_raw_call(buffer, start, method, params);
}

/// Appends a notification.
///
/// # Errors
/// When `params` cannot be JSON; nothing is appended then.
pub fn write_notification(
    buffer: &mut Vec<u8>,
    method: &str,
    params: &(impl Serialize + ?Sized),
) -> Result<(), serde_json::Error> {
    let start = buffer.len();
    buffer.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    write_call(buffer, start, method, params)
}

/// Appends a notification whose params are JSON text already, or that has none.
pub fn write_raw_notification(buffer: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
    let start = buffer.len();
    buffer.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    write_raw_call(buffer, start, method, params);
}

/// Appends the answer to a batch: one array of the answers, each a line that a function of this module wrote. Appends
/// nothing when there are none, as for a batch of notifications.
pub fn write_batch<'a>(buffer: &mut Vec<u8>, answers: impl IntoIterator<Item = &'a [u8]>) {
    let start = buffer.len();
    for answer in answers {
        buffer.push(if buffer.len() == start { b'[' } else { b',' });
        buffer.extend_from_slice(answer.trim_ascii_end());
    }
    if buffer.len() > start {
        buffer.extend_from_slice(b"]\n");
    }
}

fn begin_answer(buffer: &mut Vec<u8>, id: &impl IdText, member: &[u8]) {
    buffer.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    id.write_id(buffer);
    buffer.extend_from_slice(member);
}

fn write_call(
    buffer: &mut Vec<u8>,
    start: usize,
    method: &str,
    params: &(impl Serialize + ?Sized),
) -> Result<(), serde_json::Error> {
    let written = serde_json::to_writer(&mut *buffer, method).and_then(|()| {
        buffer.extend_from_slice(b",\"params\":");
        serde_json::to_writer(&mut *buffer, params)
    });
    match written {
        Ok(()) => end_line(buffer, start),
        Err(_) => buffer.truncate(start),
    }
    written
}

fn write_raw_call(buffer: &mut Vec<u8>, start: usize, method: &str, params: Option<&RawValue>) {
    // A string always serialises, and writing into a Vec does not fail.
    let _ = serde_json::to_writer(&mut *buffer, method);
    if let Some(params) = params {
        buffer.extend_from_slice(b",\"params\":");
        buffer.extend_from_slice(params.get().as_bytes());
    }
    end_line(buffer, start);
}

/// Closes the object and keeps it on one line: raw JSON may hold line breaks, but only as white space between tokens,
/// where a space means the same.
fn end_line(buffer: &mut Vec<u8>, start: usize) {
    let mut from = start;
    while let Some(offset) = memchr::memchr2(b'\n', b'\r', &buffer[from..]) {
        buffer[from + offset] = b' ';
        from += offset + 1;
    }
    buffer.extend_from_slice(b"}\n");
}
