//! One daemon an install root: who wins, what the losers say, and that nothing is left to clean by hand.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Ping, PingValue, Status};
use holdfast_tests::daemon::{DaemonOptions, TestDaemon, output_within, read_lines};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::private::assert_private;
use holdfast_tests::stores::STORES;

/// How long anybody waits for a daemon that starts or is refused. The machine may be busy with other tests, so it is more
/// than the second it takes.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns every file below the data directory that a loser could have written, with size and time. Without the log, which
/// the owner goes on writing.
fn stores(daemon: &TestDaemon) -> Vec<(String, u64, i64, i64)> {
    let mut found = Vec::new();
    let mut directories = vec![daemon.root.data_dir()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                directories.push(entry.path());
            } else if metadata.is_file() && entry.path() != daemon.root.trace_file() {
                let path = entry.path().display().to_string();
                found.push((path, metadata.len(), metadata.mtime(), metadata.mtime_nsec()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn of_eight_started_at_once_one_serves_and_the_others_name_it() {
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    let mut children: Vec<_> = (0..8)
        .map(|_| {
            let mut command = daemon.command();
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    // The winner is the one that has not ended once seven have.
    let mut running = || {
        let runs = children.iter_mut().map(|child| child.try_wait().unwrap().is_none());
        runs.enumerate().filter_map(|(index, runs)| runs.then_some(index)).collect::<Vec<_>>()
    };
    let winner = eventually(PATIENCE, &mut running, |running| running.len() == 1)[0];
    let mut winner = children.swap_remove(winner);
    let line = read_lines(winner.stdout.take().unwrap()).recv_timeout(PATIENCE).unwrap();
    assert!(line.contains("\"ready\":true"), "{line}");
    for loser in children {
        let output = output_within(loser, LIMIT);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains(&format!("another daemon owns {}", daemon.root.path().display())), "{said}");
        assert!(said.contains(&format!("pid {}", winner.id())), "{said}");
        assert!(output.stdout.is_empty());
    }
    winner.kill().unwrap();
    winner.wait().unwrap();
}

#[test]
fn a_refused_daemon_says_who_owns_the_root_and_touches_nothing() {
    let daemon = TestDaemon::start();
    let inode = fs::metadata(daemon.root.socket()).unwrap().ino();
    let mut client = daemon.client();
    let before = stores(&daemon);
    let began = Instant::now();
    let output = daemon.command().output().unwrap();
    assert!(began.elapsed() < LIMIT);
    assert_eq!(output.status.code(), Some(5));
    let said = String::from_utf8(output.stderr).unwrap();
    let (first, hint) = said.split_once('\n').unwrap();
    let expected =
        format!("error: another daemon owns {}: pid {}, started ", daemon.root.path().display(), daemon.pid());
    assert!(first.starts_with(&expected), "{said}");
    assert!(first.ends_with(&format!(", holdfast {}", env!("CARGO_PKG_VERSION"))), "{said}");
    assert_eq!(hint, "hint: holdfast status · holdfast stop · or choose another root with --root\n");
    assert_eq!(stores(&daemon), before);
    assert_eq!(fs::metadata(daemon.root.socket()).unwrap().ino(), inode);
    let value = PingValue { value: Some(7) };
    assert_eq!(client.call::<Ping>(&value).unwrap(), value);
}

#[test]
fn after_a_kill_the_next_start_needs_no_help() {
    let mut daemon = TestDaemon::start();
    let instance = daemon.try_client().unwrap().1.instance_id;
    for _ in 0..3 {
        daemon.kill9();
        let began = Instant::now();
        daemon.boot();
        assert!(began.elapsed() < LIMIT);
        assert_eq!(daemon.try_client().unwrap().1.instance_id, instance);
    }
}

#[test]
fn what_the_lock_file_says_keeps_nobody_out() {
    let mut daemon = TestDaemon::start();
    let mut foreign = Command::new("sleep").arg("60").spawn().unwrap();
    let garbage = b"\x00\xff not a record {\"pid\":".to_vec();
    for text in [foreign.id().to_string().into_bytes(), garbage, Vec::new(), vec![b'x'; 1 << 20]] {
        assert!(daemon.term().success());
        fs::write(daemon.root.lock_file(), &text).unwrap();
        let began = Instant::now();
        daemon.boot();
        assert!(began.elapsed() < LIMIT);
    }
    assert!(daemon.term().success());
    fs::remove_file(daemon.root.lock_file()).unwrap();
    daemon.boot();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_anything_else_in_its_place_is_left() {
    let mut daemon = TestDaemon::start();
    assert!(daemon.term().success());
    let socket = daemon.root.socket();
    assert!(!socket.exists(), "an orderly end removes the socket");

    drop(UnixListener::bind(&socket).unwrap());
    daemon.boot();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    daemon.client();
    assert!(daemon.term().success());

    let mut refuse = |what: &str| {
        let refused = daemon.try_boot().unwrap_err();
        assert_eq!(refused.status.code(), Some(5), "{what}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(&socket.display().to_string()), "{what}: {said}");
    };
    fs::write(&socket, "text").unwrap();
    refuse("a file");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "text");
    fs::remove_file(&socket).unwrap();

    fs::create_dir(&socket).unwrap();
    refuse("a directory");
    assert!(socket.is_dir());
    fs::remove_dir(&socket).unwrap();

    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), "mine").unwrap();
    symlink(outside.path(), &socket).unwrap();
    refuse("a link");
    assert_eq!(fs::read_link(&socket).unwrap(), outside.path());
    assert_eq!(fs::read_to_string(outside.path()).unwrap(), "mine");
    fs::remove_file(&socket).unwrap();

    daemon.boot();
    daemon.client();
}

#[test]
fn modes_are_private_whatever_the_umask() {
    for umask in [0o000, 0o022, 0o277] {
        let mut daemon = TestDaemon::prepare(DaemonOptions { umask: Some(umask), ..DaemonOptions::default() });
        daemon.boot();
        let mut client = daemon.client();
        client.call::<Status>(&Empty {}).unwrap();
        println!("umask {umask:o}");
        let seen = assert_private(daemon.root.path());
        for wanted in [
            daemon.root.socket(),
            daemon.root.config_file(),
            daemon.root.secret_key(),
            daemon.root.lock_file(),
            daemon.root.trace_file(),
        ]
        .into_iter()
        .chain(STORES.iter().map(|store| store.path(&daemon.root)))
        {
            assert!(seen.contains(&wanted), "{} is missing", wanted.display());
        }
    }
}
