//! `[leases]` in config.toml.

use std::time::Duration;

use holdfast_stores::config::{ConfigSection, SectionProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest grace period: past an hour nobody waits for an adapter any more.
const KILL_GRACE_MS_MAX: u32 = 3_600_000;
/// The same as a duration.
pub(super) const KILL_GRACE_MAX: Duration = Duration::from_secs(3_600);

/// How long adapters may take to end, and how many may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LeasesConfig {
    /// Time between SIGTERM and SIGKILL when an adapter tree is ended, in milliseconds; at most 3600000.
    pub kill_grace_ms: u32,
    /// How long ended leases are kept, in days.
    pub retention_days: u32,
    /// Adapter processes that may run at once, over all agents. Past it the caller gets `busy`.
    pub max_processes: u32,
}

impl Default for LeasesConfig {
    fn default() -> Self {
        Self { kill_grace_ms: 5_000, retention_days: 30, max_processes: 64 }
    }
}

impl LeasesConfig {
    /// Returns the time between TERM and KILL.
    pub fn kill_grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.kill_grace_ms))
    }
}

impl ConfigSection for LeasesConfig {
    const NAME: &'static str = "leases";

    fn validate(&self) -> Vec<SectionProblem> {
        let mut problems = Vec::new();
        if self.kill_grace_ms > KILL_GRACE_MS_MAX {
            problems.push(
                SectionProblem::new(["kill_grace_ms"], format!("{} is more than an hour", self.kill_grace_ms))
                    .with_hint(format!("use at most {KILL_GRACE_MS_MAX}")),
            );
        }
        if self.max_processes == 0 {
            problems.push(
                SectionProblem::new(["max_processes"], "0 lets no agent run".to_owned()).with_hint("use 1 or more"),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_problems_name_their_key() {
        assert_eq!(LeasesConfig::default().validate(), []);
        let wrong = LeasesConfig { kill_grace_ms: u32::MAX, max_processes: 0, ..LeasesConfig::default() };
        let keys: Vec<String> = wrong.validate().iter().map(|problem| problem.path.to_string()).collect();
        assert_eq!(keys, ["kill_grace_ms", "max_processes"]);
    }
}
