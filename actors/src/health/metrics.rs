//! A report as Prometheus text. Source: the text exposition format 0.0.4, as Prometheus documents it.

use std::fmt::{Display, Write};

use holdfast_protocol::health::{HealthReport, HealthStatus, SurfaceStatus};
use holdfast_protocol::methods::daemon::SurfaceState;

/// The media type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns `report` as Prometheus text. Times are in seconds and sizes in bytes, as Prometheus has them.
pub fn render(report: &HealthReport, version: &str) -> String {
    let mut page = Page::default();
    page.family("holdfast_build_info", "gauge", "The version that runs.");
    page.sample("holdfast_build_info", &[("version", version)], 1);
    page.single("holdfast_ready", "gauge", "Whether the daemon takes work.", u8::from(report.ready));
    page.family("holdfast_status", "gauge", "The status in one word; 1 for the one that holds.");
    for (name, status) in [
        ("ok", HealthStatus::Ok),
        ("degraded", HealthStatus::Degraded),
        ("starting", HealthStatus::Starting),
        ("stopping", HealthStatus::Stopping),
    ] {
        page.sample("holdfast_status", &[("status", name)], u8::from(report.status == status));
    }
    page.single("holdfast_generation", "gauge", "The generation of the tree.", report.generation);
    page.single("process_start_time_seconds", "gauge", "Since when the daemon runs.", seconds(report.started_ms));

    let surfaces = &report.surfaces;
    page.surfaces("holdfast_surface_up", "gauge", "Whether the surface serves.", surfaces, |one| {
        Some(u64::from(matches!(one.state, SurfaceState::Up | SurfaceState::Degraded)))
    });
    page.surfaces("holdfast_surface_degraded", "gauge", "Whether its storage refuses writes.", surfaces, |one| {
        Some(u64::from(one.state == SurfaceState::Degraded))
    });
    page.surfaces("holdfast_surface_generation", "gauge", "The generation it runs.", surfaces, |one| {
        Some(one.generation)
    });
    page.surfaces("holdfast_surface_restarts_total", "counter", "Restarts after a crash.", surfaces, |one| {
        Some(one.restarts)
    });
    page.surfaces("holdfast_surface_in_flight", "gauge", "Messages waiting or being handled.", surfaces, |one| {
        Some(one.queue_depth)
    });
    page.surfaces("holdfast_surface_in_flight_limit", "gauge", "Messages in flight at most.", surfaces, |one| {
        Some(one.in_flight_limit)
    });
    page.surfaces("holdfast_surface_messages_total", "counter", "Messages handled.", surfaces, |one| Some(one.handled));
    page.surfaces("holdfast_surface_commits_total", "counter", "Commits made.", surfaces, |one| Some(one.commits));
    page.surfaces("holdfast_surface_commit_p50_seconds", "gauge", "The median time of a commit.", surfaces, |one| {
        one.commit_p50_us.map(|us| us as f64 / 1e6)
    });
    page.surfaces("holdfast_store_size_bytes", "gauge", "The size of its store.", surfaces, |one| Some(one.size_bytes));

    page.family("holdfast_listener_up", "gauge", "Whether the listener listens.");
    for listener in &report.listeners {
        let up = u8::from(listener.state == "listening");
        page.sample("holdfast_listener_up", &[("listener", &listener.name)], up);
    }
    page.single("holdfast_warnings", "gauge", "Warnings that health shows.", report.warnings.len());
    let process = &report.process;
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Resident memory.", process.resident_bytes),
        ("process_threads", "Threads.", process.threads),
        ("process_open_fds", "Open file descriptors.", process.open_files),
        ("process_max_fds", "File descriptors that may be open.", process.open_files_limit),
    ] {
        if let Some(value) = value {
            page.single(name, "gauge", help, value);
        }
    }
    page.text
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    // Writing into a `String` cannot fail, so the results of `write!` say nothing.

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _infallible = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _infallible = write!(self.text, "{}{label}=\"{text}\"", if index == 0 { "{" } else { "," });
        }
        let _infallible = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn surfaces<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        surfaces: &[SurfaceStatus],
        value: impl Fn(&SurfaceStatus) -> Option<V>,
    ) {
        self.family(name, kind, help);
        for surface in surfaces {
            if let Some(value) = value(surface) {
                self.sample(name, &[("surface", &surface.name)], value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::health::{ListenerHealth, ProcessFacts};

    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let surface = |name: &str, state, commit_p50_us| SurfaceStatus {
            name: name.to_owned(),
            state,
            generation: 3,
            restarts: 1,
            queue_depth: 2,
            in_flight_limit: 4096,
            handled: 77,
            commits: 5,
            commit_p50_us,
            size_bytes: 8192,
            reason: None,
            remedy: None,
            since: None,
            since_ms: None,
        };
        let report = HealthReport {
            status: HealthStatus::Degraded,
            ready: true,
            time_ms: 1_780_000_001_000,
            started_ms: 1_780_000_000_500,
            generation: 3,
            surfaces: vec![
                surface("cron", SurfaceState::Up, Some(2048)),
                surface("o\"d\\d\nname", SurfaceState::Down, None),
            ],
            listeners: vec![ListenerHealth {
                name: "http".to_owned(),
                state: "listening".to_owned(),
                address: None,
                reason: None,
            }],
            process: ProcessFacts {
                pid: 1,
                resident_bytes: Some(1024),
                threads: Some(9),
                open_files: None,
                open_files_limit: Some(64),
            },
            warnings: Vec::new(),
        };
        let text = render(&report, "1.2.3");
        assert_eq!(text, include_str!("metrics.snapshot.txt"), "\n{text}");
    }
}
