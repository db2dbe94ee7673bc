//! A damaged store is said to be damaged: never emptied, never served as if nothing were there, and alone.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Status, StatusReport, SurfaceState};
use holdfast_protocol::methods::session::{List, ListParams};
use holdfast_tests::crash::{AppendWorker, Extent};
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::random::Random;

const SESSIONS: usize = 220;

/// Makes a root with sessions and stops its daemon.
fn with_sessions() -> TestDaemon {
    let mut daemon = TestDaemon::start();
    let mut client = daemon.client();
    for index in 0..SESSIONS {
        AppendWorker::new(format!("session-{index}")).step(&mut client).unwrap();
    }
    assert!(daemon.term().success());
    daemon
}

fn status(daemon: &TestDaemon) -> StatusReport {
    daemon.client().call::<Status>(&Empty {}).unwrap()
}

fn surface<'a>(status: &'a StatusReport, name: &str) -> &'a holdfast_protocol::methods::daemon::SurfaceStatus {
    status.surfaces.iter().find(|surface| surface.name == name).unwrap()
}

/// Checks that `sessions` is down because of its file, that the file is as it was left, and that the others serve.
fn check_sessions_are_down_alone(daemon: &TestDaemon, left: &[u8]) {
    let file = daemon.root.sessions_database();
    let down =
        eventually(PATIENCE, || status(daemon), |status| surface(status, "sessions").state == SurfaceState::Down);
    let sessions = surface(&down, "sessions");
    let reason = sessions.reason.clone().unwrap();
    assert!(reason.contains("sessions.db"), "{reason}");
    assert!(sessions.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()));
    for other in down.surfaces.iter().filter(|surface| surface.name != "sessions") {
        assert_eq!(other.state, SurfaceState::Up, "{}: {:?}", other.name, other.reason);
    }
    match daemon.client().call::<List>(&ListParams::default()) {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.kind, ErrorKind::Damaged, "{error:?}");
            assert!(error.remedy.is_some());
        }
        other => panic!("sessions of a damaged file were answered: {other:?}"),
    }
    assert_eq!(fs::read(&file).unwrap(), left, "the damaged bytes are kept");
    let trace = || fs::read_to_string(daemon.root.trace_file()).unwrap();
    eventually(PATIENCE, trace, |text| text.contains("sessions.db"));
}

fn damage(path: &Path, random: &mut Random, offset: u64, length: usize) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(length).collect();
    file.write_all_at(&bytes, offset).unwrap();
}

#[test]
fn a_damaged_page_a_truncated_and_an_emptied_file_down_their_surface_alone() {
    let mut random = Random::for_test("damaged_store");
    let mut daemon = with_sessions();
    let file = daemon.root.sessions_database();
    let good = fs::read(&file).unwrap();

    // The second page: the root of a table or an index, so the damage is met at once.
    damage(&file, &mut random, 4096, 4096);
    let left = fs::read(&file).unwrap();
    daemon.boot();
    check_sessions_are_down_alone(&daemon, &left);
    assert!(daemon.term().success());

    fs::write(&file, &good[..1000]).unwrap();
    daemon.boot();
    check_sessions_are_down_alone(&daemon, &good[..1000]);
    assert!(daemon.term().success());

    // A file without a byte is not a first run: there were sessions.
    fs::write(&file, b"").unwrap();
    daemon.boot();
    check_sessions_are_down_alone(&daemon, b"");
    assert!(daemon.term().success());

    fs::write(&file, &good).unwrap();
    daemon.boot();
    assert_eq!(surface(&status(&daemon), "sessions").state, SurfaceState::Up);
    let listed = daemon.client().call::<List>(&ListParams { limit: Some(1_000), ..ListParams::default() }).unwrap();
    assert_eq!(listed.sessions.len(), SESSIONS);
}

#[test]
fn a_damaged_control_plane_leaves_the_sessions_readable_and_writable() {
    let mut daemon = with_sessions();
    let file = daemon.root.control_plane_database();
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..1000]).unwrap();
    daemon.boot();
    let seen = status(&daemon);
    let control_plane = surface(&seen, "control-plane");
    assert_eq!(control_plane.state, SurfaceState::Down);
    assert!(control_plane.reason.as_ref().unwrap().contains("control_plane.db"), "{:?}", control_plane.reason);
    let mut client = daemon.client();
    let mut worker = AppendWorker::new("beside");
    worker.step(&mut client).unwrap();
    worker.verify(&mut client, Extent::Whole);
    assert_eq!(fs::read(&file).unwrap(), &good[..1000]);
}

#[test]
fn a_damaged_file_that_is_put_right_comes_back_with_a_reload() {
    let mut daemon = with_sessions();
    let file = daemon.root.sessions_database();
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..1000]).unwrap();
    daemon.boot();
    assert_eq!(surface(&status(&daemon), "sessions").state, SurfaceState::Down);
    fs::write(&file, &good).unwrap();
    let mut client = daemon.client();
    client.call::<holdfast_protocol::methods::daemon::Reload>(&Empty {}).unwrap();
    let listed = client.call::<List>(&ListParams { limit: Some(1_000), ..ListParams::default() }).unwrap();
    assert_eq!(listed.sessions.len(), SESSIONS);
}
