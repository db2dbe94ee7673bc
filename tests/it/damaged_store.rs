//! A damaged store is said to be damaged: never emptied, never served as if nothing were there, and alone.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Reload, Status, StatusReport, SurfaceState, SurfaceStatus};
use holdfast_protocol::methods::session::{List, ListParams, SessionKind};
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::crash::{AppendWorker, Extent};
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::random::Random;
use holdfast_tests::stores::{STORES, Store};
use serde_json::json;

const CHATS: usize = 200;
const ACP_SESSIONS: usize = 3;

/// Makes a root with something in every store and stops its daemon.
fn stage() -> AcpStage {
    let mut stage = AcpStage::start(|_, _| {});
    let mut client = stage.daemon.client();
    for index in 0..CHATS {
        AppendWorker::new(format!("session-{index}")).step(&mut client).unwrap();
    }
    let mut client = stage.client();
    for _ in 0..ACP_SESSIONS {
        let session_id = client.open_session().unwrap();
        client.turn(&session_id, "hello").unwrap();
    }
    assert!(stage.daemon.term().success());
    stage
}

fn status(daemon: &TestDaemon) -> StatusReport {
    daemon.client().call::<Status>(&Empty {}).unwrap()
}

fn surface<'a>(status: &'a StatusReport, name: &str) -> &'a SurfaceStatus {
    status.surfaces.iter().find(|surface| surface.name == name).unwrap()
}

fn listed(daemon: &TestDaemon, kind: SessionKind) -> Result<usize, ClientError> {
    let params = ListParams { kind: Some(kind), limit: Some(1_000), ..ListParams::default() };
    daemon.client().call::<List>(&params).map(|page| page.sessions.len())
}

/// Makes an ACP session and a turn in it; an error is what the client is told.
fn acp_turn(stage: &AcpStage) -> Result<(), String> {
    // Already who the agent is can't be told when nothing was kept of it and it can't be started.
    let mut client = stage.try_client().map_err(|error| format!("{error:?}"))?;
    let answer = client.call("session/new", &json!({ "cwd": "/", "mcpServers": [] })).unwrap();
    let Some(session_id) = answer["result"]["sessionId"].as_str() else { return Err(answer.to_string()) };
    assert_eq!(client.turn(session_id, "hello").unwrap()["result"]["stopReason"], "end_turn");
    Ok(())
}

/// Checks that what needs the store is refused as damaged, and that all else is served.
fn check_calls(stage: &AcpStage, damaged: &Store) {
    let refused = |outcome: Result<usize, ClientError>| match outcome {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.kind, ErrorKind::Damaged, "{error:?}");
            assert!(error.remedy.is_some(), "{error:?}");
        }
        other => panic!("{} is damaged and was answered from: {other:?}", damaged.surface),
    };
    let (chats, acp) = (listed(&stage.daemon, SessionKind::Chat), listed(&stage.daemon, SessionKind::Acp));
    match damaged.surface {
        "sessions" => {
            refused(chats);
            // A list of both is not half a list.
            let both = stage.daemon.client().call::<List>(&ListParams::default());
            refused(both.map(|page| page.sessions.len()));
        }
        _ => {
            assert!(chats.unwrap() >= CHATS);
            let mut client = stage.daemon.client();
            let mut worker = AppendWorker::new(uuid::Uuid::new_v4().to_string());
            worker.step(&mut client).unwrap();
            worker.verify(&mut client, Extent::Whole);
        }
    }
    match damaged.surface {
        "acp-sessions" => refused(acp),
        _ => assert!(acp.unwrap() >= ACP_SESSIONS),
    }
    match damaged.surface {
        "acp-sessions" | "leases" | "control-plane" => {
            let error = acp_turn(stage).unwrap_err();
            let error = error.replace('\\', "");
            assert!(error.contains("\"code\":-32010") && error.contains("\"kind\":\"damaged\""), "{error}");
        }
        _ => acp_turn(stage).unwrap(),
    }
}

/// Checks that the store's surface is down because of its file, that the file is as it was left, and that the others
/// serve.
fn check_down_alone(stage: &AcpStage, store: &Store, left: &[u8]) {
    let name = store.surface;
    let look = || status(&stage.daemon);
    let down = eventually(PATIENCE, look, |status| surface(status, name).state == SurfaceState::Down);
    let damaged = surface(&down, name);
    let path = store.path(&stage.daemon.root);
    let file = path.file_name().unwrap().to_str().unwrap();
    let reason = damaged.reason.clone().unwrap();
    assert!(reason.contains(file), "{reason}");
    assert!(damaged.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()));
    for other in down.surfaces.iter().filter(|surface| surface.name != name) {
        // Without knowing which install this is, nobody can say which processes are its own.
        let depends = (name, other.name.as_str()) == ("control-plane", "leases");
        let expected = if depends { SurfaceState::Down } else { SurfaceState::Up };
        assert_eq!(other.state, expected, "{}: {:?}", other.name, other.reason);
        assert!(!depends || other.reason.as_ref().is_some_and(|reason| reason.contains(file)), "{:?}", other.reason);
    }
    check_calls(stage, store);
    assert!(fs::read(&path).unwrap() == left, "{file}: the damaged bytes are not kept");
    let trace = || fs::read_to_string(stage.daemon.root.trace_file()).unwrap();
    eventually(PATIENCE, trace, |text| text.contains(file));
}

fn damage(path: &Path, random: &mut Random, offset: u64, length: usize) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(length).collect();
    file.write_all_at(&bytes, offset).unwrap();
}

#[test]
fn a_damaged_page_a_truncated_and_an_emptied_file_down_their_surface_alone() {
    let mut random = Random::for_test("damaged_store");
    let mut stage = stage();
    for store in &STORES {
        println!("{}", store.surface);
        let file = store.path(&stage.daemon.root);
        let good = fs::read(&file).unwrap();

        // The second page: the root of a table or an index, so the damage is met at once.
        damage(&file, &mut random, 4096, 4096);
        let left = fs::read(&file).unwrap();
        stage.daemon.boot();
        check_down_alone(&stage, store, &left);
        assert!(stage.daemon.term().success());

        fs::write(&file, &good[..1000]).unwrap();
        stage.daemon.boot();
        check_down_alone(&stage, store, &good[..1000]);
        assert!(stage.daemon.term().success());

        // A file without a byte is not a first run: there was something in it.
        fs::write(&file, b"").unwrap();
        stage.daemon.boot();
        check_down_alone(&stage, store, b"");
        // Put right, it is served again after a reload.
        fs::write(&file, &good).unwrap();
        stage.daemon.client().call::<Reload>(&Empty {}).unwrap();
        assert_eq!(surface(&status(&stage.daemon), store.surface).state, SurfaceState::Up);
        assert!(listed(&stage.daemon, SessionKind::Chat).unwrap() >= CHATS);
        assert!(listed(&stage.daemon, SessionKind::Acp).unwrap() >= ACP_SESSIONS);
        acp_turn(&stage).unwrap();
        assert!(stage.daemon.term().success());
    }
}
