//! `holdfast status`.

use std::time::Duration;

use holdfast_actors::at_rest::Report;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{HttpState, Status, StatusCounts, StatusReport, SurfaceState, SurfaceStatus};
use serde::Serialize;

use super::connection::{Reached, reach};
use super::{Place, reading};
use crate::daemon::VERSION;
use crate::render::{Cell, Column, Exit, Failure, Format, Listing, Renderer, Tone, duration};

const COLUMNS: &[Column] = &[
    Column::whole("surface"),
    Column::whole("state"),
    Column::number("gen"),
    Column::number("restarts"),
    Column::number("queue"),
    Column::number("commit p50"),
    Column::number("size"),
    Column::note("note"),
];

pub(super) fn status(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    match reach(place)? {
        Reached::Daemon(mut connection) => {
            let report = connection.call::<Status>(&Empty {})?;
            show(&report, place, renderer)?;
            Ok(Exit::Ok)
        }
        // What is known without a daemon is shown, and scripts still see that none answers.
        Reached::Nobody(_) => {
            show_at_rest(&reading::report(place)?, place, renderer)?;
            Ok(Exit::DaemonUnreachable)
        }
    }
}

/// What `--json` says without a daemon: the parts of a daemon's report that its files know.
#[derive(Serialize)]
struct AtRest<'a> {
    pid: Option<u32>,
    version: &'static str,
    root: String,
    socket: String,
    surfaces: &'a [SurfaceStatus],
    counts: StatusCounts,
    warnings: &'a [String],
}

/// Writes how an install root lies there without a daemon.
pub(super) fn show_at_rest(report: &Report, place: &Place, renderer: &mut Renderer) -> Result<(), Failure> {
    match renderer.format() {
        Format::Json | Format::Jsonl => {
            return renderer.value(&AtRest {
                pid: None,
                version: VERSION,
                root: place.root.path().display().to_string(),
                socket: place.root.socket().display().to_string(),
                surfaces: &report.surfaces,
                counts: StatusCounts { agents: report.agents, ..StatusCounts::default() },
                warnings: &report.warnings,
            });
        }
        Format::Tsv => return renderer.listing(&surfaces(&report.surfaces, renderer)?),
        Format::Table => {}
    }
    let (word, next) = match &report.owner {
        Some(owner) => (
            format!("does not answer ({owner})"),
            "it may be starting or ending: try again · holdfast daemon says who owns the root",
        ),
        None => ("not running".to_owned(), "holdfast daemon runs it · holdfast run demo \"hello\" starts it by itself"),
    };
    renderer.toned_line(&[
        (&format!("holdfast {VERSION}"), Tone::Strong),
        (" · ", Tone::Plain),
        (&word, Tone::Warning),
        (&format!(" · {}", place.shown()), Tone::Plain),
    ])?;
    if place.root.path().exists() {
        show_surfaces(&report.surfaces, &report.warnings, renderer)?;
        renderer.line(&number(report.agents, "agent", "agents"))?;
    } else {
        renderer.line("there is nothing there yet")?;
    }
    renderer.hint(next);
    Ok(())
}

fn show_surfaces(list: &[SurfaceStatus], warnings: &[String], renderer: &mut Renderer) -> Result<(), Failure> {
    renderer.listing(&surfaces(list, renderer)?)?;
    for surface in list {
        if let Some(remedy) = &surface.remedy {
            renderer.toned_line(&[(&surface.name, Tone::Strong), (&format!(" → {remedy}"), Tone::Plain)])?;
        }
    }
    for warning in warnings {
        renderer.toned_line(&[("warning: ", Tone::Warning), (warning, Tone::Plain)])?;
    }
    Ok(())
}

/// Writes the report in the format asked for.
pub(super) fn show(report: &StatusReport, place: &Place, renderer: &mut Renderer) -> Result<(), Failure> {
    match renderer.format() {
        Format::Json | Format::Jsonl => return renderer.value(report),
        Format::Tsv => return renderer.listing(&surfaces(&report.surfaces, renderer)?),
        Format::Table => {}
    }
    renderer.toned_line(&[
        (&format!("holdfast {}", report.version), Tone::Strong),
        (
            &format!(
                " · pid {} · up {} · generation {} · {}",
                report.pid,
                duration(Duration::from_millis(report.uptime_ms)),
                report.generation,
                place.shown()
            ),
            Tone::Plain,
        ),
    ])?;
    show_surfaces(&report.surfaces, &report.warnings, renderer)?;
    renderer.line(&counts(report))
}

fn surfaces(list: &[SurfaceStatus], renderer: &Renderer) -> Result<Listing, Failure> {
    let mut listing = Listing::new(COLUMNS, "no surfaces");
    for surface in list {
        listing.push(row(surface, renderer), surface)?;
    }
    Ok(listing)
}

fn row(surface: &SurfaceStatus, renderer: &Renderer) -> Vec<Cell> {
    let ran = surface.generation > 0;
    let serves = matches!(surface.state, SurfaceState::Up | SurfaceState::Degraded | SurfaceState::Starting);
    let note = surface.reason.as_ref().map(|reason| match surface.since_ms {
        Some(since_ms) => format!("since {}: {reason}", renderer.near(since_ms)),
        None => reason.clone(),
    });
    let when = |shown: bool, cell: Cell| if shown { cell } else { Cell::Missing };
    vec![
        Cell::Text(surface.name.clone()),
        state(surface.state),
        when(ran, Cell::Count(surface.generation)),
        when(ran, Cell::Count(surface.restarts)),
        when(serves, Cell::Count(surface.queue_depth)),
        surface.commit_p50_us.map_or(Cell::Missing, Cell::DurationMicros),
        when(surface.size_bytes > 0, Cell::SizeBytes(surface.size_bytes)),
        note.map_or(Cell::Missing, Cell::Text),
    ]
}

fn state(state: SurfaceState) -> Cell {
    let (word, tone) = match state {
        SurfaceState::Starting => ("starting", Tone::Warning),
        SurfaceState::Up => ("up", Tone::Good),
        SurfaceState::Degraded => ("degraded", Tone::Bad),
        SurfaceState::Down => ("down", Tone::Bad),
        SurfaceState::Stopped => ("stopped", Tone::Dim),
    };
    Cell::State(word.to_owned(), tone)
}

fn counts(report: &StatusReport) -> String {
    let counts = &report.counts;
    let http = match report.http.state {
        HttpState::Listening => report.http.url.clone().unwrap_or_else(|| "http listening".to_owned()),
        HttpState::Off => "http off".to_owned(),
        HttpState::Failed => {
            format!("http failed: {}", report.http.reason.as_deref().unwrap_or("no reason was given"))
        }
    };
    [
        number(counts.agents, "agent", "agents"),
        number(counts.turns_running, "running turn", "running turns"),
        format!("{} ({} idle)", number(counts.adapters, "adapter", "adapters"), counts.adapters_idle),
        number(counts.connections, "client", "clients"),
        http,
    ]
    .join(" · ")
}

fn number(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
