//! Kill -9 at random moments while 64 clients append: every acknowledged event is there, once and in order, and no start
//! needs help. `HOLDFAST_SOAK=1` makes 200 rounds.

use std::time::Duration;

use holdfast_tests::crash::{AppendWorker, Worker, crash_run, rounds};
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::random::Random;

const APPENDERS: usize = 64;

#[test]
fn what_was_acknowledged_survives_kills_at_random_moments() {
    let mut random = Random::for_test("crash");
    let mut daemon = TestDaemon::start();
    let workers = (0..APPENDERS)
        .map(|index| Box::new(AppendWorker::new(format!("appender-{index}"))) as Box<dyn Worker>)
        .collect();
    let report = crash_run(&mut daemon, workers, rounds(10), &mut random);
    println!("{report:?}");
    assert!(report.acknowledged > u64::from(report.rounds), "{report:?}");
    assert!(report.slowest_start < Duration::from_secs(5), "{report:?}");
}
