//! A reload of a real daemon under load: nobody is refused, nothing acknowledged is lost or doubled.

use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Reload, ReloadOutcome, Status};
use holdfast_tests::crash::{AppendWorker, Extent, Worker};
use holdfast_tests::daemon::{TestDaemon, connect};

const CLIENTS: usize = 64;
const RELOADS: u64 = 12;

/// After so many requests a client connects anew, so that connecting is tested as well.
const REQUESTS_A_CONNECTION: u64 = 40;

#[test]
fn sixty_four_busy_clients_notice_nothing() {
    let daemon = TestDaemon::start();
    let pid = daemon.pid();
    let socket = daemon.root.socket();
    let (over, connections) = (AtomicBool::new(false), AtomicU64::new(0));
    let working = Barrier::new(CLIENTS + 1);
    let work = |index: usize| {
        let mut worker = AppendWorker::new(format!("client-{index}"));
        let mut first = true;
        while !over.load(Ordering::Relaxed) {
            let (mut client, _) = connect(&socket).expect("no connection is refused");
            connections.fetch_add(1, Ordering::Relaxed);
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
        working.wait();
        let mut client = daemon.client();
        // Judged only once the clients have stopped: a panic here would leave them running for ever.
        for _ in 0..RELOADS {
            reports.push(client.call::<Reload>(&Empty {}));
        }
        over.store(true, Ordering::Relaxed);
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
    println!("{appended} appends over {RELOADS} reloads");
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
