//! `[logs]` in config.toml.

use holdfast_stores::config::{ConfigSection, SectionProblem};
use holdfast_stores::log::LogLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::levels::{InvalidLevels, Levels};

/// The smallest segment: anything less rotates all the time.
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

/// What the operational log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
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

impl ConfigSection for LogsConfig {
    const NAME: &'static str = "logs";

    fn validate(&self) -> Vec<SectionProblem> {
        let mut problems = Vec::new();
        if self.max_segment_bytes < SEGMENT_BYTES_MIN {
            problems.push(
                SectionProblem::new(["max_segment_bytes"], format!("{} is too small", self.max_segment_bytes))
                    .with_hint(format!("use at least {SEGMENT_BYTES_MIN}")),
            );
        }
        let levels: Result<Levels, InvalidLevels> = self.level.parse();
        if let Err(error) = levels {
            let hint = "write levels as `info` or `info,target=debug`";
            problems.push(SectionProblem::new(["level"], error.to_string()).with_hint(hint));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_problems_name_their_key() {
        assert_eq!(LogsConfig::default().validate(), []);
        let wrong = LogsConfig { max_segment_bytes: 1, level: "loud".to_owned(), ..LogsConfig::default() };
        let keys: Vec<String> = wrong.validate().iter().map(|problem| problem.path.to_string()).collect();
        assert_eq!(keys, ["max_segment_bytes", "level"]);
    }
}
