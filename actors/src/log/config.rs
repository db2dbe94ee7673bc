//! `[logs]` in config.toml.

use holdfast_stores::log::LogLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The smallest segment: anything less rotates all the time.
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

/// What the operational log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogsConfig {
    /// Whether lines are stored. Subscribers get them either way.
    pub mode: LogsMode,
    /// A segment is full at this size, in bytes; at least 65536.
    pub max_segment_bytes: u64,
    /// Older segments kept beside the current one.
    pub keep_segments: u32,
    /// What is logged: a level (`error`, `warn`, `info`, `debug`, `trace`, `off`), then levels of single targets:
    /// `info,holdfast_actors::cron=debug`.
    pub level: String,
}

/// Whether log lines are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogsMode {
    /// In segments of a fixed size, the oldest removed.
    #[default]
    Rolling,
    /// Not at all.
    None,
}

impl LogsMode {
    /// Returns the name as the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rolling => "rolling",
            Self::None => "none",
        }
    }
}

impl Default for LogsConfig {
    fn default() -> Self {
        let limits = LogLimits::default();
        Self {
            mode: LogsMode::default(),
            max_segment_bytes: limits.segment_bytes_max,
            keep_segments: 3,
            level: "info".to_owned(),
        }
    }
}

impl LogsConfig {
    /// Returns the store's limits.
    pub fn limits(&self) -> LogLimits {
        LogLimits {
            segment_bytes_max: self.max_segment_bytes.max(SEGMENT_BYTES_MIN),
            segments_kept: usize::try_from(self.keep_segments).unwrap_or(usize::MAX),
        }
    }
}
