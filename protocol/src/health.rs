//! What is observed of a running daemon. Never stored: each report is made when it is asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::methods::daemon::{self, SurfaceState};

/// How the daemon is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Everything serves.
    Ok,
    /// It serves, but a surface or a listener does not, or not all that it should.
    Degraded,
    /// It does not serve yet.
    Starting,
    /// It is ending.
    Stopping,
}

/// One look at the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthReport {
    /// In one word.
    pub status: HealthStatus,
    /// Whether it takes work: it serves and not every surface is down. A reload does not change it, as requests wait.
    pub ready: bool,
    /// When this was observed, UTC milliseconds.
    pub time_ms: i64,
    /// Since when the daemon runs, UTC milliseconds.
    pub started_ms: i64,
    /// The generation of the tree.
    pub generation: u64,
    /// Every surface, in the order of their start.
    pub surfaces: Vec<SurfaceStatus>,
    /// Every listener.
    pub listeners: Vec<ListenerHealth>,
    /// What the operating system says of the process.
    pub process: ProcessFacts,
    /// What works but should be put right.
    pub warnings: Vec<HealthWarning>,
}

/// How one surface stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurfaceStatus {
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub state: SurfaceState,
    /// The generation it runs.
    pub generation: u64,
    /// How often a crash restarted it; reloads do not count.
    pub restarts: u64,
    /// Messages in flight: waiting or being handled.
    pub queue_depth: u64,
    /// Past this many messages in flight callers get `busy`.
    pub in_flight_limit: u64,
    /// Messages handled.
    pub handled: u64,
    /// Commits made.
    pub commits: u64,
    /// The median time of a commit in microseconds, to a power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_p50_us: Option<u64>,
    /// The size of its store in bytes, as last recorded.
    pub size_bytes: u64,
    /// Why it is down or degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Since when it is degraded, RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Since when it is degraded, UTC milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
}

/// How one listener stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListenerHealth {
    /// Its name.
    pub name: String,
    /// `listening`, `failed` or `off`.
    pub state: String,
    /// Where clients reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why it does not listen though it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What the operating system says of the process. What it does not say is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFacts {
    /// The process id.
    pub pid: u32,
    /// Resident memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// Open file descriptors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// How many file descriptors may be open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files_limit: Option<u64>,
}

/// What works but should be put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthWarning {
    /// For programs: stable, snake case.
    pub kind: String,
    /// For people.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl HealthStatus {
    /// Returns the word for it, as on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Starting => "starting",
            Self::Stopping => "stopping",
        }
    }
}

impl From<SurfaceStatus> for daemon::SurfaceStatus {
    /// Leaves out the counters, which `daemon/status` does not show.
    fn from(seen: SurfaceStatus) -> Self {
        Self {
            name: seen.name,
            state: seen.state,
            generation: seen.generation,
            restarts: seen.restarts,
            queue_depth: seen.queue_depth,
            in_flight_max: seen.in_flight_limit,
            commit_p50_us: seen.commit_p50_us,
            size_bytes: seen.size_bytes,
            reason: seen.reason,
            remedy: seen.remedy,
            since: seen.since,
            since_ms: seen.since_ms,
        }
    }
}
