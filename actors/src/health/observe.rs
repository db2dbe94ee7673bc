//! Puts one report together.

use std::sync::Arc;

use holdfast_protocol::health::{HealthReport, HealthStatus, HealthWarning, ListenerHealth, SurfaceStatus};
use holdfast_protocol::methods::daemon::SurfaceState;

use super::process::process_facts;
use crate::ports::Clock;
use crate::supervisor::Observed;

/// Whether the daemon as a whole serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServingPhase {
    /// Not yet.
    Starting,
    /// Yes, also during a reload.
    Serving,
    /// No more.
    Stopping,
}

/// What the root shows without being asked.
#[derive(Clone)]
pub struct Observations {
    /// Whether it serves.
    pub phase: ServingPhase,
    /// The generation of the tree.
    pub generation: u64,
    /// The surfaces, in the order of their start.
    pub surfaces: Arc<[Observed]>,
    /// The listeners.
    pub listeners: Vec<ListenerHealth>,
}

/// Looks at a tree. Cheap to clone; looking disturbs nobody.
#[derive(Clone)]
pub struct HealthProbe {
    version: &'static str,
    started_ms: i64,
    clock: Arc<dyn Clock>,
    look: Arc<dyn Fn() -> Observations + Send + Sync>,
    warnings: Arc<[HealthWarning]>,
}

impl HealthProbe {
    /// Makes a probe that sees what `look` returns, of a daemon of `version` that has run since now. `warnings` are those
    /// that stand for the life of the process ([`super::standing_warnings`]).
    pub fn new(
        version: &'static str,
        clock: Arc<dyn Clock>,
        warnings: Vec<HealthWarning>,
        look: impl Fn() -> Observations + Send + Sync + 'static,
    ) -> Self {
        Self { version, started_ms: clock.now_ms(), clock, look: Arc::new(look), warnings: warnings.into() }
    }

    /// Returns the daemon's version.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Looks now.
    pub fn report(&self) -> HealthReport {
        let seen = (self.look)();
        let surfaces: Vec<SurfaceStatus> = seen.surfaces.iter().map(surface_status).collect();
        let process = process_facts();
        let mut warnings = self.warnings.to_vec();
        warnings.extend(files_warning(process.open_files, process.open_files_limit));
        warnings.extend(seen.surfaces.iter().flat_map(|surface| surface.stats.warnings().to_vec()));
        HealthReport {
            status: status(seen.phase, &surfaces, &seen.listeners),
            ready: ready(seen.phase, &surfaces),
            time_ms: self.clock.now_ms(),
            started_ms: self.started_ms,
            generation: seen.generation,
            surfaces,
            listeners: seen.listeners,
            process,
            warnings,
        }
    }

    /// Says whether the daemon takes work; cheaper than a report.
    pub fn ready(&self) -> bool {
        let seen = (self.look)();
        let surfaces: Vec<SurfaceStatus> = seen.surfaces.iter().map(surface_status).collect();
        ready(seen.phase, &surfaces)
    }
}

fn surface_status(observed: &Observed) -> SurfaceStatus {
    let (state, down, in_flight) = observed.now();
    let stats = &observed.stats;
    let (reason, remedy) = down.map_or((None, None), |down| (Some(down.reason), Some(down.remedy)));
    SurfaceStatus {
        name: observed.name.to_owned(),
        state: match state {
            "starting" => SurfaceState::Starting,
            "up" => SurfaceState::Up,
            "down" => SurfaceState::Down,
            _ => SurfaceState::Stopped,
        },
        generation: stats.generation(),
        restarts: stats.restarts(),
        queue_depth: in_flight as u64,
        in_flight_limit: observed.in_flight_max as u64,
        handled: stats.handled(),
        commits: stats.commits(),
        commit_p50_us: stats.commit_p50_us(),
        size_bytes: stats.size_bytes(),
        reason,
        remedy,
    }
}

/// A surface that is down does not make the daemon unready, as the others serve; all of them down do. One that is being
/// restarted counts as serving, as its callers wait.
fn ready(phase: ServingPhase, surfaces: &[SurfaceStatus]) -> bool {
    let serves = |surface: &SurfaceStatus| matches!(surface.state, SurfaceState::Up | SurfaceState::Starting);
    phase == ServingPhase::Serving && (surfaces.is_empty() || surfaces.iter().any(serves))
}

fn status(phase: ServingPhase, surfaces: &[SurfaceStatus], listeners: &[ListenerHealth]) -> HealthStatus {
    let down = surfaces.iter().any(|surface| surface.state == SurfaceState::Down);
    let failed = listeners.iter().any(|listener| listener.state == "failed");
    match phase {
        ServingPhase::Starting => HealthStatus::Starting,
        ServingPhase::Stopping => HealthStatus::Stopping,
        ServingPhase::Serving if down || failed => HealthStatus::Degraded,
        ServingPhase::Serving => HealthStatus::Ok,
    }
}

/// Accepting connections and opening stores fail together once descriptors run out, so the warning comes before.
fn files_warning(open: Option<u64>, limit: Option<u64>) -> Option<HealthWarning> {
    let (open, limit) = (open?, limit?);
    (open.saturating_mul(10) >= limit.saturating_mul(8)).then(|| HealthWarning {
        kind: "open_files_near_limit".to_owned(),
        message: format!("{open} of {limit} file descriptors are in use"),
        remedy: "raise the limit (`ulimit -n`, or LimitNOFILE= in the service unit)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surface(state: SurfaceState) -> SurfaceStatus {
        SurfaceStatus {
            name: "a".to_owned(),
            state,
            generation: 1,
            restarts: 0,
            queue_depth: 0,
            in_flight_limit: 1,
            handled: 0,
            commits: 0,
            commit_p50_us: None,
            size_bytes: 0,
            reason: None,
            remedy: None,
        }
    }

    #[test]
    fn one_surface_down_degrades_and_all_down_is_not_ready() {
        let serving = ServingPhase::Serving;
        let (up, down, starting) =
            (surface(SurfaceState::Up), surface(SurfaceState::Down), surface(SurfaceState::Starting));
        for (phase, surfaces, expected) in [
            (serving, vec![up.clone(), up.clone()], (HealthStatus::Ok, true)),
            (serving, vec![up.clone(), down.clone()], (HealthStatus::Degraded, true)),
            (serving, vec![starting, down.clone()], (HealthStatus::Degraded, true)),
            (serving, vec![down.clone(), down], (HealthStatus::Degraded, false)),
            (ServingPhase::Starting, vec![up.clone()], (HealthStatus::Starting, false)),
            (ServingPhase::Stopping, vec![up], (HealthStatus::Stopping, false)),
        ] {
            assert_eq!((status(phase, &surfaces, &[]), ready(phase, &surfaces)), expected, "{phase:?} {surfaces:?}");
        }
    }

    #[test]
    fn a_failed_listener_degrades() {
        let failed =
            ListenerHealth { name: "http".to_owned(), state: "failed".to_owned(), address: None, reason: None };
        assert_eq!(status(ServingPhase::Serving, &[surface(SurfaceState::Up)], &[failed]), HealthStatus::Degraded);
    }

    #[test]
    fn few_descriptors_left_are_a_warning() {
        assert!(files_warning(Some(819), Some(1024)).is_none());
        assert!(files_warning(Some(820), Some(1024)).is_some());
        assert!(files_warning(None, Some(1024)).is_none());
    }
}
