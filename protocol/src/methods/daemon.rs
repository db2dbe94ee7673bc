//! The daemon as a whole: status, reload, shutdown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Empty;
use crate::ids::InstanceId;
use crate::method;

method!(
    Status = "daemon/status", false, Empty => StatusReport,
    "Returns what runs: the process, its surfaces, its counts and what is wrong."
);
method!(
    Reload = "daemon/reload", true, Empty => ReloadReport,
    "Reads config.toml again and restarts every surface in order; turns and connections survive."
);
method!(
    Shutdown = "daemon/shutdown", true, Empty => Empty,
    "Begins an orderly end; answered before it happens."
);
method!(
    Ping = "daemon/ping", false, PingValue => PingValue,
    "Does nothing and returns its params: for measuring."
);

/// Params and result of `daemon/ping`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PingValue {
    /// Returned as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<i64>,
}

/// Result of `daemon/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// The daemon's process id.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// The install.
    pub instance_id: InstanceId,
    /// The generation of the tree, raised by each reload.
    pub generation: u64,
    /// The install root.
    pub root: String,
    /// The path of the socket.
    pub socket: String,
    /// The HTTP listener.
    pub http: HttpStatus,
    /// When the daemon started, RFC 3339 in UTC.
    pub started_at: String,
    /// When the daemon started.
    pub started_at_ms: i64,
    /// How long it has run.
    pub uptime_ms: u64,
    /// The surfaces, in the order in which they start.
    pub surfaces: Vec<SurfaceStatus>,
    /// What there is of what.
    pub counts: StatusCounts,
    /// What is not as it should be though it works, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The HTTP listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpStatus {
    /// Whether it listens.
    pub state: HttpState,
    /// Where, when it listens: `http://127.0.0.1:7420`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Why not, when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether the HTTP listener listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HttpState {
    /// It listens.
    Listening,
    /// The configuration turned it off.
    Off,
    /// It could not listen; the rest of the daemon runs.
    Failed,
}

/// One surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurfaceStatus {
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub state: SurfaceState,
    /// The generation it runs.
    pub generation: u64,
    /// How often a crash restarted it.
    pub restarts: u64,
    /// Messages in flight.
    pub queue_depth: u64,
    /// Messages in flight at most; past it callers get `busy`.
    pub in_flight_max: u64,
    /// Median time of a commit in microseconds, once there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_p50_us: Option<u64>,
    /// The size of its store in bytes; 0 for a surface without one.
    pub size_bytes: u64,
    /// Why it is down or degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Since when it is degraded, RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Since when it is degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
}

/// Whether a surface serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SurfaceState {
    /// Not yet, or between two incarnations; calls wait.
    Starting,
    /// It does.
    Up,
    /// It does, but its storage refused the last write; reads go on, and a write that succeeds ends it.
    Degraded,
    /// Not until the next reload; `reason` says why.
    Down,
    /// No more.
    Stopped,
}

/// What there is of what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusCounts {
    /// Configured agents.
    pub agents: u64,
    /// Turns in flight.
    pub turns_running: u64,
    /// Adapter processes.
    pub adapters: u64,
    /// Of them, those without a turn.
    pub adapters_idle: u64,
    /// Clients on the socket.
    pub connections: u64,
}

/// Result of `daemon/reload`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// The generation that now runs.
    pub generation: u64,
    /// The revision of the configuration that now runs.
    pub config_revision: String,
    /// How each surface came out of it.
    pub surfaces: Vec<SurfaceReload>,
    /// How long it took.
    pub took_ms: u64,
    /// Turns that went on across the reload.
    pub turns_kept: u64,
    /// Connections that ended because of it.
    pub connections_cut: u64,
}

/// How one surface came out of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurfaceReload {
    /// Its name.
    pub name: String,
    /// How.
    pub outcome: ReloadOutcome,
    /// The generation it now runs.
    pub generation: u64,
    /// How long its end and its start took.
    pub took_ms: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a surface came out of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// It runs the new configuration.
    Restarted,
    /// It lives above the tree and was not touched.
    Unchanged,
    /// It is down.
    Failed,
}
