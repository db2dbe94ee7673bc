//! A disk that is full: what can't be stored is refused as that, status shows it, nothing stored is lost, and it is over
//! when there is space.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Status, SurfaceState, SurfaceStatus};
use holdfast_protocol::methods::session::{Events, EventsParams, List, ListParams};
use holdfast_tests::daemon::{DaemonOptions, TestDaemon, output_within};
use holdfast_tests::eventually::{PATIENCE, eventually};
use serde_json::Value;

/// A file system of 8 MB of its own; gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`: this process may not mount.
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m,mode=700", "holdfast-test"]).arg(at).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }

    /// Writes until nothing fits any more.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        for piece in [vec![0; 64 * 1024], vec![0; 512]] {
            while file.write_all(&piece).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a daemon of a test that failed may still be on it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs a turn whose prompt is long enough to need space that an emptied log does not have for long.
fn turn(daemon: &TestDaemon, text: &str) -> Output {
    let mut command = daemon.program();
    command.args(["run", "demo", "-", "--session", "disk", "--json"]).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let prompt = format!("{text} {}", "x".repeat(100_000));
    child.stdin.take().unwrap().write_all(prompt.as_bytes()).unwrap();
    output_within(child, PATIENCE)
}

fn last_line(output: &Output) -> Value {
    serde_json::from_str(std::str::from_utf8(&output.stdout).unwrap().lines().last().unwrap()).unwrap()
}

fn acp_sessions(daemon: &TestDaemon) -> SurfaceStatus {
    let status = daemon.client().call::<Status>(&Empty {}).unwrap();
    status.surfaces.into_iter().find(|surface| surface.name == "acp-sessions").unwrap()
}

/// The position, kind and body of each event.
fn events(daemon: &TestDaemon) -> Vec<(u64, String, String)> {
    let mut client = daemon.client();
    let session_id = client.call::<List>(&ListParams::default()).unwrap().sessions[0].session_id;
    let params = EventsParams { session_id, after_seq: 0, limit: Some(1_000) };
    let events = client.call::<Events>(&params).unwrap().events.into_iter();
    events.map(|event| (event.seq, event.kind, event.body.get().to_owned())).collect()
}

#[test]
fn a_turn_that_does_not_fit_is_refused_as_that_and_status_shows_it_until_there_is_space() {
    let mut daemon = TestDaemon::prepare(DaemonOptions::default());
    let Some(disk) = SmallDisk::mount(daemon.root.path()) else {
        eprintln!("skipped: needs the right to mount a tmpfs");
        return;
    };
    daemon.boot();
    for _ in 0..3 {
        let output = turn(&daemon, "hello");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let before = events(&daemon);
    assert_eq!(acp_sessions(&daemon).state, SurfaceState::Up);

    disk.fill();
    let refused = turn(&daemon, "does not fit");
    assert_eq!(refused.status.code(), Some(1));
    let error = &last_line(&refused)["error"];
    assert_eq!(error["kind"], "storage_full", "{error}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("the storage is full") && said.contains("free some space"), "{said}");
    let surface = acp_sessions(&daemon);
    assert_eq!(surface.state, SurfaceState::Degraded, "{surface:?}");
    assert!(surface.reason.unwrap().contains("the storage is full"));
    assert!(surface.since.is_some() && surface.since_ms.is_some() && surface.remedy.is_some());
    assert_eq!(events(&daemon), before, "what was stored is as it was");

    disk.free();
    let after = turn(&daemon, "fits again");
    assert_eq!(after.status.code(), Some(0), "{}", String::from_utf8_lossy(&after.stderr));
    eventually(PATIENCE, || acp_sessions(&daemon), |surface| surface.state == SurfaceState::Up);
    assert!(daemon.term().success());
    daemon.boot();
    let loaded = events(&daemon);
    assert_eq!(loaded[..before.len()], before);
    assert!(loaded[before.len()..].iter().any(|(_, _, body)| body.contains("fits again")));
    assert!(!loaded.iter().any(|(_, _, body)| body.contains("does not fit")), "half a turn was kept");
    let session = daemon.client().call::<List>(&ListParams::default()).unwrap().sessions.remove(0);
    assert_eq!(session.turn_count, 4, "what was refused was no turn");
    assert!(daemon.term().success());
    drop(disk);
}
