//! The operational log: `data/state/runtime-trace.jsonl` and its older segments.
//!
//! One JSON object a line, written once and never rewritten. When the current segment is full it is renamed to
//! `runtime-trace.<number>.jsonl` and the oldest segment beyond the limit is removed, so the log's size has a bound and
//! logging never stops. Lines are redacted ([`redact`]) and cut ([`line`]) before they are stored, and repeats of one
//! message are folded ([`repeat`]).
//!
//! The log is not fsynced: a crash of the process loses nothing that was written, a power cut may lose the last
//! seconds. It holds nothing that another store relies on.

mod error;
pub mod line;
pub mod query;
pub mod redact;
pub mod repeat;
pub mod segments;
pub mod writer;

#[cfg(test)]
mod crash_tests;

pub use error::LogError;
pub use line::{LogEvent, LogLevel, LogLine, SpanFacts};
pub use query::{LogCursor, LogFilter, LogOrder, LogPage, LogQuery, LogReader};
pub use repeat::{Folded, RepeatLimits, Repeats};
pub use writer::{LogLimits, LogStore};
