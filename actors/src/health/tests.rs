//! Health beside a surface that is up and one that is down.

use std::time::Duration;

use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::health::{HealthReport, HealthStatus};
use holdfast_protocol::methods::daemon::SurfaceState;

use super::*;
use crate::ports::Ports;
use crate::supervisor::{Child, Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};

struct Probe(Option<Down>);

impl Surface for Probe {
    type Message = ();
    type State = ();

    async fn start(&self, context: &Context<()>) -> Result<(), Down> {
        context.stats.set_size_bytes(4096);
        context.stats.commit_took(Duration::from_micros(100));
        self.0.clone().map_or(Ok(()), Err)
    }

    async fn handle(&self, _: &Context<()>, (): (), (): &mut ()) -> Result<(), Fault> {
        Ok(())
    }

    async fn stop(&self, _: &Context<()>, (): ()) {}
}

#[tokio::test]
async fn a_report_shows_each_surface_and_why_one_is_down() {
    let ports = Ports::system();
    let down = Down {
        kind: ErrorKind::Damaged,
        reason: "page 7 of cost.db is damaged".to_owned(),
        remedy: "restore a backup".to_owned(),
    };
    let (good, _) = child("sessions", Limits::default(), &ports, Probe(None));
    let (bad, _) = child("cost", Limits::default(), &ports, Probe(Some(down)));
    let surfaces: std::sync::Arc<[_]> = vec![good.observed(), bad.observed()].into();
    let probe = HealthProbe::new("1.2.3", ports.clock.clone(), Vec::new(), move || Observations {
        phase: ServingPhase::Serving,
        generation: 5,
        surfaces: surfaces.clone(),
        listeners: Vec::new(),
    });
    let (health, address) = child("health", Limits::default(), &ports, HealthSurface::new(probe.clone()));
    let stages: Vec<Stage> = vec![vec![Box::new(good)], vec![Box::new(bad)], vec![Box::new(health)]];
    let spec = SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
    let (supervisor, _) = Supervisor::start(spec, 5, None).await.unwrap();

    let limit = Duration::from_secs(10);
    let report: HealthReport = address.call(limit, |reply| HealthMessage::Report { reply }).await.unwrap();
    assert_eq!((report.status, report.ready, report.generation), (HealthStatus::Degraded, true, 5));
    let (up, down) = (&report.surfaces[0], &report.surfaces[1]);
    assert_eq!((up.name.as_str(), up.state, up.generation), ("sessions", SurfaceState::Up, 5));
    assert_eq!((up.size_bytes, up.commits, up.commit_p50_us), (4096, 1, Some(128)));
    assert_eq!((down.state, down.reason.as_deref()), (SurfaceState::Down, Some("page 7 of cost.db is damaged")));
    assert_eq!(down.remedy.as_deref(), Some("restore a backup"));
    let text = address.call(limit, |reply| HealthMessage::Metrics { reply }).await.unwrap();
    assert!(text.contains("holdfast_surface_up{surface=\"cost\"} 0\n"), "{text}");

    // The probe answers also when the actor does not run.
    supervisor.stop().await;
    assert!(!probe.ready(), "everything has stopped");
}
