//! `daemon/…`

use std::path::PathBuf;
use std::time::Duration;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::health::HealthReport;
use holdfast_protocol::ids::InstanceId;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{
    HttpState, HttpStatus, Ping, Reload, ReloadOutcome, ReloadReport, Shutdown, Status, StatusCounts, StatusReport,
    SurfaceReload, SurfaceStatus,
};
use uuid::Uuid;

use crate::methods::MethodContext;
use crate::root::{self, SurfaceOutcome};
use crate::router::RouterBuilder;
use crate::time::rfc3339_utc;

/// What does not change while a daemon runs.
#[derive(Debug, Clone)]
pub struct DaemonFacts {
    /// The version of the program.
    pub version: &'static str,
    /// The install root.
    pub root: PathBuf,
    /// The socket.
    pub socket: PathBuf,
}

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    builder.on::<Ping>(|_call, value, reply| reply.send(Ok(value)));
    builder.on_async::<Status, _, _>({
        let context = context.clone();
        move |_call, Empty {}| {
            let context = context.clone();
            async move { Ok(status(&context).await) }
        }
    });
    builder.on_async::<Reload, _, _>({
        let context = context.clone();
        move |_call, Empty {}| {
            let context = context.clone();
            async move {
                let kept = context.control.generation();
                let report = context.control.reload().await.map_err(|error| still_running(error.into(), kept))?;
                Ok(ReloadReport { turns_kept: turns_running(&context).await, ..reload_report(report) })
            }
        }
    });
    builder.on::<Shutdown>({
        let control = context.control.clone();
        move |_call, Empty {}, reply| {
            reply.send(Ok(Empty {}));
            control.shutdown();
        }
    });
}

/// Adds to a refused configuration that nothing changed by it.
fn still_running(error: WireError, generation: u64) -> WireError {
    if error.kind != ErrorKind::ConfigInvalid {
        return error;
    }
    let kept = format!("the running configuration is kept (generation {generation})");
    let remedy = error.remedy.as_ref().map_or_else(|| kept.clone(), |remedy| format!("{remedy}; {kept}"));
    error.with_remedy(remedy)
}

/// Says how the daemon stands. Parts that can't be asked are left at what is known without them, so that status answers
/// whatever is down.
async fn status(context: &MethodContext) -> StatusReport {
    let health = context.handles.probe.report();
    // The instance is what ControlPlane keeps; a daemon whose ControlPlane is down can't say who it is.
    let instance = context.handles.control_plane.instance().await;
    let instance_id = instance.map_or(InstanceId(Uuid::nil()), |instance| instance.instance_id);
    let agents = context.handles.config.agents().await.map_or(0, |agents| agents.0.len() as u64);
    let turns_running = turns_running(context).await;
    let adapters = context.handles.leases.unfinished().await.map_or(0, |unfinished| unfinished as u64);
    let config = context.handles.config.snapshot().await;
    let mut warnings: Vec<String> = health.warnings.iter().map(|warning| warning.message.clone()).collect();
    if let Ok(config) = config {
        let file = config.file().to_owned();
        warnings.extend(config.problems().chain(config.warnings()).map(|problem| problem.describe(&file)));
    }
    StatusReport {
        pid: health.process.pid,
        version: context.facts.version.to_owned(),
        instance_id,
        generation: health.generation,
        root: context.facts.root.display().to_string(),
        socket: context.facts.socket.display().to_string(),
        http: http_status(&health),
        started_at: rfc3339_utc(health.started_ms),
        started_at_ms: health.started_ms,
        uptime_ms: u64::try_from(context.clock.now_ms().saturating_sub(health.started_ms)).unwrap_or(0),
        surfaces: health.surfaces.into_iter().map(SurfaceStatus::from).collect(),
        counts: StatusCounts {
            agents,
            turns_running,
            adapters,
            adapters_idle: adapters.saturating_sub(turns_running),
            connections: (context.connections)(),
        },
        warnings,
    }
}

/// A store that is down can't say; the surfaces then show why.
async fn turns_running(context: &MethodContext) -> u64 {
    context.handles.acp_sessions.running_by_agent().await.map_or(0, |running| running.values().sum())
}

fn http_status(health: &HealthReport) -> HttpStatus {
    let Some(listener) = health.listeners.iter().find(|listener| listener.name == "http") else {
        return HttpStatus { state: HttpState::Off, url: None, reason: None };
    };
    let state = match (&listener.reason, &listener.address) {
        (Some(_), _) => HttpState::Failed,
        (None, Some(_)) => HttpState::Listening,
        (None, None) => HttpState::Off,
    };
    HttpStatus { state, url: listener.address.clone(), reason: listener.reason.clone() }
}

/// Returns what a reload did as it goes over the wire.
pub fn reload_report(report: root::ReloadReport) -> ReloadReport {
    let surface = |surface: root::SurfaceReport| {
        let (outcome, down) = match surface.outcome {
            SurfaceOutcome::Restarted => (ReloadOutcome::Restarted, None),
            SurfaceOutcome::Unchanged => (ReloadOutcome::Unchanged, None),
            SurfaceOutcome::Failed(down) => (ReloadOutcome::Failed, Some(down)),
        };
        let (reason, remedy) = down.map_or((None, None), |down| (Some(down.reason), Some(down.remedy)));
        SurfaceReload {
            name: surface.name.to_owned(),
            outcome,
            generation: surface.generation,
            took_ms: whole_ms(surface.took),
            reason,
            remedy,
        }
    };
    ReloadReport {
        generation: report.generation,
        config_revision: report.config_revision,
        surfaces: report.surfaces.into_iter().map(surface).collect(),
        took_ms: whole_ms(report.took),
        turns_kept: 0,
        // Connections live above what a reload restarts.
        connections_cut: 0,
    }
}

fn whole_ms(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
