//! `holdfast reload` and `holdfast stop`.

use std::time::Duration;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Reload, ReloadOutcome, ReloadReport, Shutdown};
use serde_json::json;

use super::connection::{Reached, reach};
use super::{Place, connect};
use crate::render::{Exit, Failure, Renderer, Tone, duration};

/// How long an orderly end may take: agents get their grace, stores flush and close.
const END_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn reload(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let report = connect(place)?.call::<Reload>(&Empty {})?;
    show_reload(&report, renderer)
}

/// Writes the report; a surface that did not come back makes the command fail.
pub(super) fn show_reload(report: &ReloadReport, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let count = |outcome| report.surfaces.iter().filter(|surface| surface.outcome == outcome).count();
    let failed = count(ReloadOutcome::Failed);
    if renderer.is_for_programs() {
        renderer.value(report)?;
    } else {
        renderer.line(&format!(
            "reloaded in {} · generation {} · {} surfaces restarted · {} turns kept running · {} connections cut",
            duration(Duration::from_millis(report.took_ms)),
            report.generation,
            count(ReloadOutcome::Restarted),
            report.turns_kept,
            report.connections_cut,
        ))?;
        for surface in report.surfaces.iter().filter(|surface| surface.outcome == ReloadOutcome::Failed) {
            let reason = surface.reason.as_deref().unwrap_or("no reason was given");
            renderer.toned_line(&[
                (&surface.name, Tone::Strong),
                (" down", Tone::Bad),
                (&format!(": {reason}"), Tone::Plain),
            ])?;
            if let Some(remedy) = &surface.remedy {
                renderer.line(&format!("  → {remedy}"))?;
            }
        }
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Failed })
}

pub(super) fn stop(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let mut connection = match reach(place)? {
        Reached::Daemon(connection) => connection,
        Reached::Nobody(_) => {
            return Err(Failure::new(
                Exit::DaemonUnreachable,
                format!("no daemon runs at {}: there is nothing to stop", place.shown()),
            ));
        }
    };
    connection.call::<Shutdown>(&Empty {})?;
    if !connection.wait_for_end(END_LIMIT) {
        return Err(Failure::new(
            Exit::Failed,
            format!("the daemon at {} is still stopping after {} s", place.shown(), END_LIMIT.as_secs()),
        )
        .hint("holdfast status"));
    }
    if renderer.is_for_programs() {
        renderer.value(&json!({ "stopped": true }))?;
    } else {
        renderer.done(&format!("daemon stopped ({})", place.shown()));
    }
    Ok(Exit::Ok)
}
