//! A store that another process holds: its writes wait, nobody else's do, and nothing is left wedged.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdfast_protocol::client::ClientError;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Ping, PingValue, Status};
use holdfast_protocol::methods::session::{List, ListParams};
use holdfast_tests::crash::{AppendWorker, Extent, Worker};
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::lock_holder::LockHolder;
use holdfast_tests::processes::open_files_at;

fn sessions_file(daemon: &TestDaemon) -> PathBuf {
    daemon.root.sessions_database()
}

/// Makes a worker that has appended once.
fn worker(daemon: &TestDaemon, name: &str) -> AppendWorker {
    let mut worker = AppendWorker::new(name);
    worker.step(&mut daemon.client()).unwrap();
    worker
}

#[test]
fn a_write_waits_for_a_short_lock_and_nobody_else_does() {
    let daemon = TestDaemon::start();
    let mut worker = worker(&daemon, "waits");
    let holder = LockHolder::take(&sessions_file(&daemon));
    std::thread::scope(|scope| {
        let client = daemon.client();
        let writing = scope.spawn(|| {
            let mut client = client;
            let began = Instant::now();
            worker.step(&mut client).map(|()| began.elapsed())
        });
        let until = Instant::now() + Duration::from_secs(2);
        let mut other = daemon.client();
        while Instant::now() < until {
            let began = Instant::now();
            other.call::<Ping>(&PingValue { value: None }).unwrap();
            other.call::<Status>(&Empty {}).unwrap();
            other.call::<List>(&ListParams::default()).unwrap();
            assert!(began.elapsed() < Duration::from_secs(1), "a lock on one store stalls others");
        }
        holder.release();
        let took = writing.join().unwrap().unwrap();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
    });
    worker.verify(&mut daemon.client(), Extent::Whole);
}

#[test]
fn a_long_lock_ends_in_success_or_in_a_retryable_error_and_the_next_write_works() {
    let daemon = TestDaemon::start();
    let mut worker = worker(&daemon, "long");
    let holder = LockHolder::take(&sessions_file(&daemon));
    std::thread::scope(|scope| {
        let client = daemon.client();
        let writing = scope.spawn(|| {
            let mut client = client;
            let began = Instant::now();
            (worker.step(&mut client), began.elapsed())
        });
        let until = Instant::now() + Duration::from_secs(12);
        while Instant::now() < until && !writing.is_finished() {
            daemon.client().call::<Ping>(&PingValue { value: None }).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        holder.release();
        let (outcome, took) = writing.join().unwrap();
        assert!(took < Duration::from_secs(15), "{took:?}");
        match outcome {
            Ok(()) => {}
            Err(ClientError::Refused(error)) => assert!(error.kind.retryable(), "{error:?}"),
            Err(error) => panic!("{error}"),
        }
    });
    let mut client = daemon.client();
    worker.step(&mut client).unwrap();
    worker.verify(&mut client, Extent::Whole);
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
        open_files_at(daemon.pid(), &sessions_file(&daemon))
    };
    // The first round opens what is opened on demand; from then on nothing may be added.
    let before = round(0);
    let after = round(1);
    assert!(after.abs_diff(before) <= 2, "{before} descriptors before, {after} after");
}
