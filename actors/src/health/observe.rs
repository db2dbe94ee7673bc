//! Puts one report together.

use std::path::Path;
use std::sync::Arc;

use holdfast_protocol::health::{HealthReport, HealthStatus, HealthWarning, ListenerHealth, SurfaceStatus};
use holdfast_protocol::methods::daemon::SurfaceState;

use super::process::process_facts;
use crate::ports::Clock;
use crate::supervisor::Observed;
use crate::time::rfc3339_utc;

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
    data_dir: Option<Arc<Path>>,
}

/// With less than this many bytes left, the next write may be refused.
const SPACE_FULL_BYTES: u64 = 1024 * 1024;
/// With less than this many bytes left, a busy day may fill the rest.
const SPACE_LOW_BYTES: u64 = 256 * 1024 * 1024;
/// The kind of the warning that there is no space.
const SPACE_FULL: &str = "storage_full";

impl HealthProbe {
    /// Makes a probe that sees what `look` returns, of a daemon of `version` that has run since now. `warnings` are those
    /// that stand for the life of the process ([`super::standing_warnings`]).
    pub fn new(
        version: &'static str,
        clock: Arc<dyn Clock>,
        warnings: Vec<HealthWarning>,
        look: impl Fn() -> Observations + Send + Sync + 'static,
    ) -> Self {
        Self {
            version,
            started_ms: clock.now_ms(),
            clock,
            look: Arc::new(look),
            warnings: warnings.into(),
            data_dir: None,
        }
    }

    /// Looks also at how much space is left where the stores lie.
    #[must_use]
    pub fn watching(mut self, data_dir: &Path) -> Self {
        self.data_dir = Some(data_dir.into());
        self
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
        let space = self.space_warning();
        let status = status(seen.phase, &surfaces, &seen.listeners, space.as_ref());
        warnings.extend(space);
        HealthReport {
            status,
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

    /// Returns the status in one word; cheaper than a report.
    pub fn status(&self) -> HealthStatus {
        let seen = (self.look)();
        let surfaces: Vec<SurfaceStatus> = seen.surfaces.iter().map(surface_status).collect();
        status(seen.phase, &surfaces, &seen.listeners, self.space_warning().as_ref())
    }

    /// What can't be told is no warning: the stores say themselves when they are refused.
    fn space_warning(&self) -> Option<HealthWarning> {
        let data_dir = self.data_dir.as_deref()?;
        let space = rustix::fs::statvfs(data_dir).ok()?;
        space_warning(data_dir, space.f_bavail.saturating_mul(space.f_frsize))
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
    let state = match state {
        "starting" => SurfaceState::Starting,
        "up" => SurfaceState::Up,
        "down" => SurfaceState::Down,
        _ => SurfaceState::Stopped,
    };
    // One that is down says why itself, and one that starts has not written yet.
    let trouble = stats.storage_trouble().filter(|_| state == SurfaceState::Up);
    let (reason, remedy) = match (down, &trouble) {
        (Some(down), _) => (Some(down.reason), Some(down.remedy)),
        (None, Some(trouble)) => (Some(trouble.reason.clone()), Some(trouble.remedy.clone())),
        (None, None) => (None, None),
    };
    let since_ms = trouble.map(|trouble| trouble.since_ms);
    SurfaceStatus {
        name: observed.name.to_owned(),
        state: if since_ms.is_some() { SurfaceState::Degraded } else { state },
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
        since: since_ms.map(rfc3339_utc),
        since_ms,
    }
}

/// A surface that is down does not make the daemon unready, as the others serve; all of them down do. One that is being
/// restarted counts as serving, as its callers wait.
fn ready(phase: ServingPhase, surfaces: &[SurfaceStatus]) -> bool {
    let serves = |surface: &SurfaceStatus| {
        matches!(surface.state, SurfaceState::Up | SurfaceState::Degraded | SurfaceState::Starting)
    };
    phase == ServingPhase::Serving && (surfaces.is_empty() || surfaces.iter().any(serves))
}

fn status(
    phase: ServingPhase,
    surfaces: &[SurfaceStatus],
    listeners: &[ListenerHealth],
    space: Option<&HealthWarning>,
) -> HealthStatus {
    let full = space.is_some_and(|warning| warning.kind == SPACE_FULL);
    let down = surfaces.iter().any(|one| matches!(one.state, SurfaceState::Down | SurfaceState::Degraded));
    let failed = listeners.iter().any(|listener| listener.state == "failed");
    match phase {
        ServingPhase::Starting => HealthStatus::Starting,
        ServingPhase::Stopping => HealthStatus::Stopping,
        ServingPhase::Serving if down || failed || full => HealthStatus::Degraded,
        ServingPhase::Serving => HealthStatus::Ok,
    }
}

/// Said before a store is refused, and until there is space again.
fn space_warning(data_dir: &Path, free_bytes: u64) -> Option<HealthWarning> {
    let kind = match free_bytes {
        0..SPACE_FULL_BYTES => SPACE_FULL,
        SPACE_FULL_BYTES..SPACE_LOW_BYTES => "storage_nearly_full",
        _ => return None,
    };
    let free = if free_bytes < SPACE_FULL_BYTES {
        format!("{} KB are", free_bytes / 1_000)
    } else {
        format!("{} MB are", free_bytes / 1_000_000)
    };
    Some(HealthWarning {
        kind: kind.to_owned(),
        message: format!("only {free} free where {} lies: writes may be refused", data_dir.display()),
        remedy: "free some space".to_owned(),
    })
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
            since: None,
            since_ms: None,
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
            (serving, vec![surface(SurfaceState::Degraded)], (HealthStatus::Degraded, true)),
            (serving, vec![starting, down.clone()], (HealthStatus::Degraded, true)),
            (serving, vec![down.clone(), down], (HealthStatus::Degraded, false)),
            (ServingPhase::Starting, vec![up.clone()], (HealthStatus::Starting, false)),
            (ServingPhase::Stopping, vec![up], (HealthStatus::Stopping, false)),
        ] {
            assert_eq!(
                (status(phase, &surfaces, &[], None), ready(phase, &surfaces)),
                expected,
                "{phase:?} {surfaces:?}"
            );
        }
    }

    #[test]
    fn a_failed_listener_degrades() {
        let failed =
            ListenerHealth { name: "http".to_owned(), state: "failed".to_owned(), address: None, reason: None };
        assert_eq!(
            status(ServingPhase::Serving, &[surface(SurfaceState::Up)], &[failed], None),
            HealthStatus::Degraded
        );
    }

    #[test]
    fn little_space_is_a_warning_and_none_degrades() {
        let at = Path::new("/data");
        assert_eq!(space_warning(at, 1_000_000_000), None);
        let low = space_warning(at, 20_000_000).unwrap();
        assert_eq!(
            (low.kind.as_str(), low.message.as_str()),
            ("storage_nearly_full", "only 20 MB are free where /data lies: writes may be refused")
        );
        let full = space_warning(at, 4_096).unwrap();
        let up = [surface(SurfaceState::Up)];
        assert_eq!(status(ServingPhase::Serving, &up, &[], Some(&low)), HealthStatus::Ok);
        assert_eq!(status(ServingPhase::Serving, &up, &[], Some(&full)), HealthStatus::Degraded);
    }

    #[test]
    fn few_descriptors_left_are_a_warning() {
        assert!(files_warning(Some(819), Some(1024)).is_none());
        assert!(files_warning(Some(820), Some(1024)).is_some());
        assert!(files_warning(None, Some(1024)).is_none());
    }
}
