//! `holdfast status`.

use std::time::Duration;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{HttpState, Status, StatusReport, SurfaceState, SurfaceStatus};

use super::{Place, connect};
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
    let report = connect(place)?.call::<Status>(&Empty {})?;
    show(&report, place, renderer)?;
    Ok(Exit::Ok)
}

/// Writes the report in the format asked for.
pub(super) fn show(report: &StatusReport, place: &Place, renderer: &mut Renderer) -> Result<(), Failure> {
    match renderer.format() {
        Format::Json | Format::Jsonl => return renderer.value(report),
        Format::Tsv => return renderer.listing(&surfaces(report)?),
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
    renderer.listing(&surfaces(report)?)?;
    for surface in &report.surfaces {
        if let Some(remedy) = &surface.remedy {
            renderer.toned_line(&[(&surface.name, Tone::Strong), (&format!(" → {remedy}"), Tone::Plain)])?;
        }
    }
    for warning in &report.warnings {
        renderer.toned_line(&[("warning: ", Tone::Warning), (warning, Tone::Plain)])?;
    }
    renderer.line(&counts(report))
}

fn surfaces(report: &StatusReport) -> Result<Listing, Failure> {
    let mut listing = Listing::new(COLUMNS, "no surfaces");
    for surface in &report.surfaces {
        listing.push(row(surface), surface)?;
    }
    Ok(listing)
}

fn row(surface: &SurfaceStatus) -> Vec<Cell> {
    let serves = matches!(surface.state, SurfaceState::Up | SurfaceState::Starting);
    let when = |shown: bool, cell: Cell| if shown { cell } else { Cell::Missing };
    vec![
        Cell::Text(surface.name.clone()),
        state(surface.state),
        Cell::Count(surface.generation),
        Cell::Count(surface.restarts),
        when(serves, Cell::Count(surface.queue_depth)),
        surface.commit_p50_us.map_or(Cell::Missing, Cell::DurationMicros),
        when(surface.size_bytes > 0, Cell::SizeBytes(surface.size_bytes)),
        surface.reason.clone().map_or(Cell::Missing, Cell::Text),
    ]
}

fn state(state: SurfaceState) -> Cell {
    let (word, tone) = match state {
        SurfaceState::Starting => ("starting", Tone::Warning),
        SurfaceState::Up => ("up", Tone::Good),
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
    let number = |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    [
        number(counts.agents, "agent", "agents"),
        number(counts.turns_running, "running turn", "running turns"),
        format!("{} ({} idle)", number(counts.adapters, "adapter", "adapters"), counts.adapters_idle),
        number(counts.connections, "client", "clients"),
        http,
    ]
    .join(" · ")
}
