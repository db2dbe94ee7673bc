//! The daemon's log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method;

method!(
    Query = "log/query", false, QueryParams => QueryResult,
    "Returns the log lines that meet all conditions, a page at a time."
);

/// Params of `log/query`. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueryParams {
    /// Not earlier than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<i64>,
    /// Earlier than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// At least this grave: `error`, `warn`, `info`, `debug`, `trace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Of this surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surface: Option<String>,
    /// Of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Target starts with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Message or fields contain this, upper and lower case alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Which end the page starts at.
    #[serde(default)]
    pub order: LogOrder,
    /// Goes on from `next` of an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Lines at most; 100 when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Which end a page starts at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogOrder {
    /// The latest line first.
    #[default]
    NewestFirst,
    /// The earliest line first; going on from `next` follows the log.
    OldestFirst,
}

/// Result of `log/query`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueryResult {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Whether lines after the cursor were removed before they were read.
    pub missed: bool,
    /// Lines that are no log lines, as after a power cut.
    pub unreadable: u64,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// The position in the log.
    pub seq: u64,
    /// When it happened.
    pub time_ms: i64,
    /// How grave it is.
    pub level: String,
    /// Where it comes from.
    pub target: String,
    /// What happened.
    pub message: String,
    /// How many more like it were held back since the last line of their kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// The event's own fields.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
    /// What the spans around it say: `surface`, `agent`, `session`, `task`, `generation`, `trace_id`, `span_id`.
    #[serde(flatten)]
    pub facts: Map<String, Value>,
}
