//! The daemon as a process: start, idle size, reload; and the command line against it.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::Reload;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection};

use super::report::Row;
use super::socket::{Lines, append_line, new_session};
use super::{Options, median, status_field};
use crate::daemon::{DaemonOptions, TestDaemon};

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let mut daemon = TestDaemon::prepare(DaemonOptions::default());
    // A used root: every file is there.
    daemon.boot();
    daemon.term();
    let (mut starts, mut opens) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        opens.push(open_all(&databases(&daemon)) * 1e3);
        let began = Instant::now();
        daemon.boot();
        starts.push(began.elapsed().as_secs_f64() * 1e3);
        daemon.term();
    }
    daemon.boot();
    let mut rows = vec![Row::at_most("cold start of a used root", "ms", median(starts), median(opens.clone()), 2.0)];
    rows.push(Row::bounded("idle daemon: memory", "MB", status_field(daemon.pid(), "VmRSS:") / 1024.0, 25.0));
    rows.push(Row::bounded("idle daemon: threads", "", status_field(daemon.pid(), "Threads:"), 30.0));
    let mut client = daemon.client();
    let mut reloads = Vec::new();
    for _ in 0..options.rounds * 3 {
        let began = Instant::now();
        client.call::<Reload>(&Empty {}).unwrap();
        reloads.push(began.elapsed().as_secs_f64() * 1e3);
    }
    rows.push(Row::at_most("reload, idle", "ms", median(reloads), median(opens), 3.0));
    rows.push(reload_under_load(options, &daemon));
    rows
}

/// Reloads while 64 clients append, each waiting for its answers. One that is refused or cut ends the benchmark.
fn reload_under_load(options: &Options, daemon: &TestDaemon) -> Row {
    const CLIENTS: usize = 64;
    let over = AtomicBool::new(false);
    let mut reloads = Vec::new();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let line = append_line(&new_session(daemon), "{\"text\":\"busy\"}");
            let mut lines = Lines::introduced(&daemon.root.socket());
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    lines.exchange(line.as_bytes(), 1);
                }
            });
        }
        let mut client = daemon.client();
        for _ in 0..options.rounds * 3 {
            let began = Instant::now();
            let reloaded = client.call::<Reload>(&Empty {});
            reloads.push(began.elapsed().as_secs_f64() * 1e3);
            if reloaded.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            reloaded.unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    Row::bounded("reload under 64 busy clients", "ms", median(reloads), 100.0)
}

fn databases(daemon: &TestDaemon) -> Vec<PathBuf> {
    let data = daemon.root.data_dir();
    let mut found = Vec::new();
    for directory in [data.clone(), data.join("sessions")] {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "db")));
    }
    assert!(found.len() >= 4, "{found:?}");
    found
}

/// Opens all files at once with the driver, reads one row of each and closes them; returns the seconds.
fn open_all(paths: &[PathBuf]) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let began = Instant::now();
        let opening: Vec<_> = paths
            .iter()
            .map(|path| {
                let options = SqliteConnectOptions::new().filename(path).journal_mode(SqliteJournalMode::Wal);
                tokio::spawn(async move {
                    let mut connection = options.connect().await.unwrap();
                    sqlx::query("SELECT count(*) FROM schema_meta").execute(&mut connection).await.unwrap();
                    connection
                })
            })
            .collect();
        let mut open = Vec::new();
        for one in opening {
            open.push(one.await.unwrap());
        }
        let took = began.elapsed().as_secs_f64();
        for connection in open {
            connection.close().await.unwrap();
        }
        took
    })
}

pub(super) fn command_line_rows(options: &Options) -> Vec<Row> {
    let daemon = TestDaemon::start();
    let mut rows = Vec::new();
    for words in [&["status"][..], &["session", "list"][..]] {
        let (mut times, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds * 3 {
            let mut command = daemon.program();
            command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
            let began = Instant::now();
            let (ok, kilobytes) = wait_with_usage(command.spawn().unwrap());
            assert!(ok, "`{}` failed", words.join(" "));
            times.push(began.elapsed().as_secs_f64() * 1e3);
            sizes.push(kilobytes / 1024.0);
        }
        let name = format!("holdfast {}", words.join(" "));
        rows.push(Row::bounded(format!("{name}: wall"), "ms", median(times), 15.0));
        rows.push(Row::bounded(format!("{name}: memory"), "MB", median(sizes), 12.0));
    }
    rows
}

/// Waits for a child; returns whether it ended well and its largest size in kilobytes.
fn wait_with_usage(child: std::process::Child) -> (bool, f64) {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to our own memory, which the call fills; zeroes are a valid rusage if it does not.
    let usage = unsafe {
        libc::wait4(i32::try_from(child.id()).unwrap(), &mut status, 0, usage.as_mut_ptr());
        usage.assume_init()
    };
    (status == 0, usage.ru_maxrss as f64)
}
