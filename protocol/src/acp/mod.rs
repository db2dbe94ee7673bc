//! The Agent Client Protocol as a carrier sees it: raw frames, of which only what is routed on is looked at.
//!
//! Typed round trips would drop unknown updates, fields and enum values, so nothing here turns a whole message into a
//! struct. Wire version 1; source: the protocol's documents and its schema, release 1.20.

pub mod capabilities;
pub mod edit;
pub mod envelope;
pub mod errors;
pub mod initialize;
pub mod method;
pub mod open_calls;
pub mod permission;
pub mod prompt;
pub mod rewrite;
pub mod update;

/// The protocol version we speak on both sides. 2 is a preview that some agents already answer when asked for it.
pub const PROTOCOL_VERSION: u16 = 1;

/// The most bytes of one frame: what acpx, the most used client, caps a message at.
pub const FRAME_MAX_BYTES: usize = 64 * 1024 * 1024;

/// The key of our own data under `_meta`.
pub const META_KEY: &str = "holdfast";
