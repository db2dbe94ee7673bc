//! JSON-RPC 2.0 messages, read without copying and written without building trees.
//!
//! Params and results stay raw text: whoever owns the method parses them, and what is only passed on is passed on
//! byte for byte. Source: the JSON-RPC 2.0 specification; the choices it leaves open are stated at each item.

mod id;
mod params;
mod parse;
mod write;

pub use id::{Id, IdText, OwnedId};
pub use params::parse_params;
pub use parse::{BATCH_MAX, Frame, Message, parse_frame};
pub use write::{
    write_batch, write_error, write_error_object, write_notification, write_raw_notification, write_raw_request,
    write_raw_result, write_request, write_result,
};

#[cfg(test)]
mod tests;
