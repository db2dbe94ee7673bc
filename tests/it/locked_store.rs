//! A store that another process holds: its writes wait, nobody else's do, and nothing is left wedged.

use std::time::{Duration, Instant};

use holdfast_protocol::client::ClientError;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Ping, PingValue, Status};
use holdfast_protocol::methods::session::{List, ListParams, SessionKind};
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::crash::{AppendWorker, Extent, Worker};
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::lock_holder::LockHolder;
use holdfast_tests::processes::open_files_at;
use holdfast_tests::stores::{STORES, Store};
use serde_json::json;

/// Writes to the store, or does what writes to it: appends to a chat; makes an ACP session, which needs an agent, and a
/// turn in it. An error is one that says to try again.
fn write(stage: &AcpStage, store: &Store, worker: &mut AppendWorker) -> Result<(), String> {
    let name = store.surface;
    if name == "sessions" {
        return match worker.step(&mut stage.daemon.client()) {
            Ok(()) => Ok(()),
            Err(ClientError::Refused(error)) if error.kind.retryable() => Err(format!("{error:?}")),
            Err(error) => panic!("{name}: {error}"),
        };
    }
    let mut client = stage.client();
    let answer = client.call("session/new", &json!({ "cwd": "/", "mcpServers": [] })).unwrap();
    let Some(session_id) = answer["result"]["sessionId"].as_str() else {
        assert_eq!(answer["error"]["code"], -32010, "{name}: {answer}");
        assert!(answer["error"]["data"]["retry_after_ms"].is_number(), "{name}: {answer}");
        return Err(answer.to_string());
    };
    assert_eq!(client.turn(session_id, "hello").unwrap()["result"]["stopReason"], "end_turn", "{name}");
    Ok(())
}

/// Asks what no locked store may hold up.
fn look(stage: &AcpStage, session_id: &str) {
    let quick = |what: &str, ask: &dyn Fn()| {
        let began = Instant::now();
        ask();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{what} took {took:?}: a lock on one store stalls others");
    };
    quick("daemon/ping", &|| assert!(stage.daemon.client().call::<Ping>(&PingValue { value: None }).is_ok()));
    quick("daemon/status", &|| drop(stage.daemon.client().call::<Status>(&Empty {}).unwrap()));
    quick("session/list", &|| drop(stage.daemon.client().call::<List>(&ListParams::default()).unwrap()));
    quick("session/load", &|| assert!(stage.client().load(session_id).unwrap().1["result"].is_object()));
}

/// Writes while a stranger holds the store, `held` at most, and once more when it is free. Returns how the first write
/// went and how long it took.
fn write_while_locked(store: &Store, held: Duration) -> (Result<(), String>, Duration) {
    let stage = AcpStage::start(|_, _| {});
    let mut worker = AppendWorker::new("worker");
    worker.step(&mut stage.daemon.client()).unwrap();
    let session_id = stage.client().open_session().unwrap();
    let holder = LockHolder::take(&store.path(&stage.daemon.root));
    let first = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let began = Instant::now();
            (write(&stage, store, &mut worker), began.elapsed())
        });
        let until = Instant::now() + held;
        while Instant::now() < until && !writing.is_finished() {
            look(&stage, &session_id);
            std::thread::sleep(Duration::from_millis(100));
        }
        holder.release();
        writing.join().unwrap()
    });
    write(&stage, store, &mut worker).unwrap();
    worker.verify(&mut stage.daemon.client(), Extent::Whole);
    if store.surface != "sessions" {
        let acp = ListParams { kind: Some(SessionKind::Acp), ..ListParams::default() };
        let listed = stage.daemon.client().call::<List>(&acp).unwrap().sessions;
        assert_eq!(listed.len(), 2 + usize::from(first.0.is_ok()), "{}: {first:?}, {listed:?}", store.surface);
        assert!(listed.iter().all(|row| row.session_id.to_string() == session_id || row.turn_count == 1));
    }
    first
}

/// Does it with every store at once, each in a root of its own.
fn each_store(check: impl Fn(&'static Store) + Sync) {
    std::thread::scope(|scope| {
        for store in &STORES {
            scope.spawn(|| check(store));
        }
    });
}

#[test]
fn a_write_waits_for_a_short_lock_and_nobody_else_does() {
    each_store(|store| {
        let (outcome, took) = write_while_locked(store, Duration::from_secs(3));
        assert_eq!(outcome, Ok(()), "{}", store.surface);
        assert!(took < Duration::from_secs(10), "{}: {took:?}", store.surface);
    });
}

#[test]
fn a_long_lock_ends_in_success_or_in_a_retryable_error_and_the_next_write_works() {
    each_store(|store| {
        let (outcome, took) = write_while_locked(store, Duration::from_secs(12));
        assert!(took < Duration::from_secs(15), "{}: {took:?}, {outcome:?}", store.surface);
    });
}

#[test]
fn parallel_writers_get_all_their_rows_in_order_and_no_descriptor_leaks() {
    const CLIENTS: usize = 20;
    const WRITES: usize = 50;
    let daemon = TestDaemon::start();
    let round = |round: usize| {
        std::thread::scope(|scope| {
            for index in 0..CLIENTS {
                let daemon = &daemon;
                scope.spawn(move || {
                    let mut client = daemon.client();
                    let mut worker = AppendWorker::new(format!("writer-{round}-{index}"));
                    for _ in 0..WRITES {
                        worker.step(&mut client).unwrap();
                    }
                    assert_eq!(worker.acknowledged(), WRITES as u64);
                    worker.verify(&mut client, Extent::Whole);
                });
            }
        });
        open_files_at(daemon.pid(), &daemon.root.sessions_database())
    };
    // The first round opens what is opened on demand; from then on nothing may be added.
    let before = round(0);
    let after = round(1);
    assert!(after.abs_diff(before) <= 2, "{before} descriptors before, {after} after");
}
