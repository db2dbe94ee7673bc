//! `[leases]` in config.toml.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest grace period: past an hour nobody waits for an adapter any more.
const KILL_GRACE_MS_MAX: u32 = 3_600_000;
/// The same as a duration.
pub(super) const KILL_GRACE_MAX: Duration = Duration::from_secs(3_600);

/// How long adapters may take to end, and how many may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesConfig {
    /// Time between SIGTERM and SIGKILL when an adapter tree is ended, in milliseconds; at most 3600000.
    pub kill_grace_ms: u32,
    /// How long ended leases are kept, in days.
    pub retention_days: u32,
    /// Adapter processes that may run at once, over all agents. Past it the longest idle one is retired, or the caller
    /// gets `busy`.
    pub max_processes: u32,
}

impl Default for LeasesConfig {
    fn default() -> Self {
        Self { kill_grace_ms: 5_000, retention_days: 30, max_processes: 64 }
    }
}

impl LeasesConfig {
    /// Says what is wrong with the values, with the key, if anything is.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn check(&self) -> Result<(), String> {
        if self.kill_grace_ms > KILL_GRACE_MS_MAX {
            return Err(format!("leases.kill_grace_ms is {}, more than {KILL_GRACE_MS_MAX}", self.kill_grace_ms));
        }
        if self.max_processes == 0 {
            return Err("leases.max_processes is 0: no agent could ever run".to_owned());
        }
        Ok(())
    }

    /// Returns the time between TERM and KILL.
    pub fn kill_grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.kill_grace_ms))
    }
}
