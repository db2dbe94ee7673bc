//! A reload of a real daemon under load: nobody is refused, nothing acknowledged is lost or doubled.

use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent;
use holdfast_protocol::methods::daemon::{Reload, ReloadOutcome, Status};
use holdfast_protocol::methods::session::{List, ListParams};
use holdfast_tests::acp_stage::{AcpStage, told};
use holdfast_tests::crash::{AppendWorker, Extent, Worker};
use holdfast_tests::daemon::{TestDaemon, connect};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Script, Step, chunk};
use rustix::process::Signal;

const CLIENTS: usize = 64;
const ACP_CLIENTS: usize = 4;
const TURN_CHUNKS: usize = 20;
const RELOADS: u64 = 12;

/// After so many requests a client connects anew, so that connecting is tested as well.
const REQUESTS_A_CONNECTION: u64 = 40;

/// A script that answers every prompt with so many numbered chunks, `pause_ms` apart.
fn streams(script: &mut Script, chunks: usize, pause_ms: u64) {
    let steps = (0..chunks).flat_map(|number| [Step::Update(chunk(&format!("{number},"))), Step::DelayMs(pause_ms)]);
    script.prompts = vec![steps.collect()];
}

fn streamed(chunks: usize) -> String {
    (0..chunks).map(|number| format!("{number},")).collect()
}

/// Prompts until told to stop; every turn has to run to its end and to be seen whole. Returns how many there were.
fn turns_until_over(stage: &AcpStage, over: &AtomicBool, working: &Barrier) -> usize {
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let mut turns = 0;
    while turns == 0 || !over.load(Ordering::Relaxed) {
        client.received.clear();
        let prompt = client.prompt(&session_id, "count").unwrap();
        if turns == 0 {
            client.wait_for_text("0,").unwrap();
            working.wait();
        }
        let answer = client.wait_for_answer(prompt).unwrap();
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert_eq!(client.text(), streamed(TURN_CHUNKS));
        turns += 1;
    }
    let stored = stage.stored_turns(&session_id);
    assert_eq!(stored.len(), turns);
    assert!(stored.iter().all(|turn| turn.state == "ended"), "{stored:?}");
    // A user's message and the agent's chunks for each turn.
    assert_eq!(stage.stored_updates(&session_id).len(), turns * (TURN_CHUNKS + 1));
    turns
}

#[test]
fn sixty_four_busy_clients_and_running_turns_notice_nothing() {
    let stage = AcpStage::start(|script, _| streams(script, TURN_CHUNKS, 5));
    let daemon = &stage.daemon;
    let pid = daemon.pid();
    let socket = daemon.root.socket();
    let (over, connections, turns) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let working = Barrier::new(CLIENTS + ACP_CLIENTS + 1);
    let work = |index: usize| {
        let mut worker = AppendWorker::new(format!("client-{index}"));
        let mut first = true;
        while !over.load(Ordering::Relaxed) {
            let (mut client, _) = connect(&socket).expect("no connection is refused");
            connections.fetch_add(1, Ordering::Relaxed);
            // Reads go to the stores by other ways than writes.
            let first_of_each = ListParams { limit: Some(1), ..ListParams::default() };
            client.call::<List>(&first_of_each).expect("every request is answered");
            for _ in 0..REQUESTS_A_CONNECTION {
                worker.step(&mut client).expect("every request is answered");
                if std::mem::take(&mut first) {
                    working.wait();
                }
            }
        }
        worker
    };
    let mut reports = Vec::new();
    let workers: Vec<AppendWorker> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|index| scope.spawn(move || work(index))).collect();
        let acp: Vec<_> = (0..ACP_CLIENTS).map(|_| scope.spawn(|| turns_until_over(&stage, &over, &working))).collect();
        working.wait();
        let mut client = daemon.client();
        // Judged only once the clients have stopped: a panic here would leave them running for ever.
        for _ in 0..RELOADS {
            reports.push(client.call::<Reload>(&Empty {}));
        }
        over.store(true, Ordering::Relaxed);
        turns.store(acp.into_iter().map(|thread| thread.join().unwrap()).sum(), Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (report, generation) in reports.into_iter().zip(2..) {
        let report = report.unwrap();
        assert_eq!(report.generation, generation);
        for surface in report.surfaces {
            let expected = match surface.name.as_str() {
                // What lives above the tree.
                "log" | "acp-directory" => ReloadOutcome::Unchanged,
                _ => ReloadOutcome::Restarted,
            };
            assert_eq!(surface.outcome, expected, "{}: {:?}", surface.name, surface.reason);
        }
    }
    assert!(connections.load(Ordering::Relaxed) >= CLIENTS as u64);
    let mut client = daemon.client();
    let mut appended = 0;
    for mut worker in workers {
        assert!(worker.acknowledged() >= REQUESTS_A_CONNECTION);
        appended += worker.acknowledged();
        worker.verify(&mut client, Extent::Whole);
    }
    println!("{appended} appends and {} turns over {RELOADS} reloads", turns.load(Ordering::Relaxed));
    assert_eq!(stage.trace().count("session/new"), ACP_CLIENTS, "an agent was started anew");
    let status = client.call::<Status>(&Empty {}).unwrap();
    assert_eq!((status.pid, status.generation), (pid, RELOADS + 1));
    assert!(status.surfaces.iter().all(|surface| surface.restarts == 0), "reloads are no crashes");
}

#[test]
fn reloads_at_the_same_moment_share_their_answers() {
    let daemon = TestDaemon::start();
    let reload = || daemon.client().call::<Reload>(&Empty {}).unwrap().generation;
    let mut generations: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(reload)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    generations.sort_unstable();
    let last = daemon.client().call::<Status>(&Empty {}).unwrap().generation;
    assert_eq!(*generations.last().unwrap(), last, "the last answer is about the tree that runs");
    generations.dedup();
    assert_eq!(generations, (2..=last).collect::<Vec<_>>(), "one after the other");
    assert!(last <= 17);
}

#[test]
fn a_file_with_an_error_is_refused_with_its_line_and_nothing_else_happens() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let good = fs::read_to_string(daemon.root.config_file()).unwrap();
    let lines = good.lines().count();
    let bad = format!("{good}\n[gateway]\nport = = 7420\n");
    fs::write(daemon.root.config_file(), &bad).unwrap();
    let before = client.call::<Status>(&Empty {}).unwrap();
    let error = client.call::<Reload>(&Empty {}).unwrap_err().to_string();
    assert!(error.contains(&format!("config.toml line {}, column 8", lines + 3)), "{error}");
    let output = daemon.program().arg("reload").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("port = = 7420"), "{said}");
    let after = client.call::<Status>(&Empty {}).unwrap();
    assert_eq!(after.generation, before.generation);
    assert_eq!(fs::read_to_string(daemon.root.config_file()).unwrap(), bad);
    fs::write(daemon.root.config_file(), good).unwrap();
    assert_eq!(client.call::<Reload>(&Empty {}).unwrap().generation, before.generation + 1);
}

#[test]
fn a_changed_http_address_moves_and_a_taken_one_refuses_the_reload() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let url = |status: &holdfast_protocol::methods::daemon::StatusReport| status.http.url.clone().unwrap();
    let before = client.call::<Status>(&Empty {}).unwrap();
    let good = fs::read_to_string(daemon.root.config_file()).unwrap();
    let with_port = |port: u16| fs::write(daemon.root.config_file(), format!("{good}\n[gateway]\nport = {port}\n"));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    with_port(taken.local_addr().unwrap().port()).unwrap();
    let error = client.call::<Reload>(&Empty {}).unwrap_err().to_string();
    assert!(error.contains("http"), "{error}");
    let same = client.call::<Status>(&Empty {}).unwrap();
    assert_eq!((same.generation, url(&same)), (before.generation, url(&before)));

    let port = taken.local_addr().unwrap().port();
    drop(taken);
    with_port(port).unwrap();
    client.call::<Reload>(&Empty {}).unwrap();
    let moved = client.call::<Status>(&Empty {}).unwrap();
    assert_eq!(url(&moved), format!("http://127.0.0.1:{port}"));
    let old = url(&before);
    std::net::TcpStream::connect(old.trim_start_matches("http://")).unwrap_err();
}

#[test]
fn a_streaming_turn_its_viewers_and_an_idle_client_outlive_reloads_of_every_kind() {
    const CHUNKS: usize = 50;
    let stage = AcpStage::start(|script, _| streams(script, CHUNKS, 20));
    let daemon = &stage.daemon;
    let (mut asker, mut viewer, mut idle) = (stage.client(), stage.client(), stage.client());
    let idle_session = idle.open_session().unwrap();
    let session_id = asker.open_session().unwrap();
    viewer.load(&session_id).unwrap();
    let agents = stage.trace().pids();
    let pid = daemon.pid();
    let generation = || daemon.client().call::<Status>(&Empty {}).unwrap().generation;
    let known = |alias: &str| {
        let listed = daemon.client().call::<agent::List>(&Empty {}).unwrap();
        listed.agents.iter().any(|agent| agent.agent_id.as_str() == alias)
    };
    let config = daemon.root.config_file();
    let good = fs::read_to_string(&config).unwrap() + "\n[agents.added]\nbuiltin = \"demo\"\n";
    let prompt = asker.prompt(&session_id, "count").unwrap();

    // A valid change of one value, once the turn streams.
    asker.wait_for_text("4,").unwrap();
    assert!(!known("added"));
    fs::write(&config, &good).unwrap();
    assert_eq!(daemon.client().call::<Reload>(&Empty {}).unwrap().generation, 2);
    assert!(known("added"));

    // Two at once, one of them from the command line.
    asker.wait_for_text("14,").unwrap();
    let command = std::thread::scope(|scope| {
        let command = scope.spawn(|| daemon.program().arg("reload").output().unwrap());
        daemon.client().call::<Reload>(&Empty {}).unwrap();
        command.join().unwrap()
    });
    assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
    let shared = generation();
    assert!((3..=4).contains(&shared), "{shared}");

    asker.wait_for_text("24,").unwrap();
    daemon.signal(Signal::HUP);
    let after_signal = eventually(PATIENCE, generation, |now| *now > shared);

    // A bad file changes nothing.
    asker.wait_for_text("34,").unwrap();
    fs::write(&config, format!("{good}[gateway]\nport = = 1\n")).unwrap();
    let error = daemon.client().call::<Reload>(&Empty {}).unwrap_err().to_string();
    assert!(error.contains(&format!("line {}", good.lines().count() + 2)), "{error}");
    assert_eq!(generation(), after_signal);
    assert!(known("added"));

    assert_eq!(asker.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(asker.text(), streamed(CHUNKS));
    viewer.wait_for_text(&format!("{},", CHUNKS - 1)).unwrap();
    assert_eq!(told(&viewer.updates()), ["user: count".to_owned(), format!("agent: {}", streamed(CHUNKS))]);
    let (updates, _) = stage.client().load(&session_id).unwrap();
    assert_eq!(told(&updates), ["user: count".to_owned(), format!("agent: {}", streamed(CHUNKS))]);
    // Whoever did nothing all the while is served as before.
    assert_eq!(idle.turn(&idle_session, "count").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(daemon.client().call::<Status>(&Empty {}).unwrap().pid, pid);
    assert_eq!(stage.trace().pids(), agents, "an agent was started anew");
}
