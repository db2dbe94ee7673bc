//! A writer killed at any moment, rotations included: this test binary runs itself as the victim.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::line::tests::event;
use super::*;

const DIRECTORY: &str = "HOLDFAST_LOG_CRASH_TEST_DIRECTORY";
const LIMITS: LogLimits = LogLimits { segment_bytes_max: 4_000, segments_kept: 3 };

/// The victim: writes until it is killed and says how far it is. Does nothing when run by hand.
#[test]
#[ignore = "run by `a_killed_writer_leaves_whole_lines_and_goes_on`"]
fn victim() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let mut store = LogStore::open(Path::new(&directory), LIMITS).unwrap();
    loop {
        let mut lines: Vec<_> = (0..5).map(|_| LogLine::from_event(event(&"word ".repeat(30)), None)).collect();
        store.append(&mut lines).unwrap();
        println!("written {}", lines[4].seq);
    }
}

#[test]
fn a_killed_writer_leaves_whole_lines_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::crash_tests::victim", "--ignored", "--nocapture"])
            .env(DIRECTORY, home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let written = |line: String| line.strip_prefix("written ").and_then(|seq| seq.parse::<u64>().ok());
        // A different number of batches each round, so that the kill falls on different moments.
        let mut last = told.by_ref().filter_map(written).nth(20 + round * 7).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        last = told.filter_map(written).last().unwrap_or(last);

        let mut store = LogStore::open(home.path(), LIMITS).unwrap();
        assert!(store.next_seq() > last, "what was written is there: {} after {last}", store.next_seq());
        let mut one = [LogLine::from_event(event("after the kill"), None)];
        store.append(&mut one).unwrap();
        let query = LogQuery { order: LogOrder::OldestFirst, limit: 10_000, ..LogQuery::default() };
        let page = store.reader().query(&query).unwrap();
        assert_eq!(page.lines.last().unwrap().seq, one[0].seq);
        assert_eq!(page.lines.last().unwrap().message, "after the kill");
        // One line torn by each kill at most, and none of them in the middle of what came later.
        assert!(page.unreadable <= round as u64 + 1, "{} unreadable", page.unreadable);
        assert!(store.total_bytes().unwrap() <= 4 * 5_000);
    }
}
