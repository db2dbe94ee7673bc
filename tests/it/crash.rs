//! Kill -9 at random moments while 64 clients append and the turns of 8 sessions stream: what was acknowledged or seen by
//! a client is there, once and in order, no process is left, and no start needs help. `HOLDFAST_SOAK=1` makes 200 rounds.

use std::time::Duration;

use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::crash::{AppendWorker, StreamWorker, Worker, crash_run, rounds, stream};
use holdfast_tests::eventually::eventually;
use holdfast_tests::random::Random;

const APPENDERS: usize = 64;
const SESSIONS: usize = 8;
/// Longer than an agent takes to end with its wrapper.
const GONE_LIMIT: Duration = Duration::from_secs(15);

#[test]
fn what_was_acknowledged_survives_kills_at_random_moments() {
    let mut random = Random::for_test("crash");
    let mut stage = AcpStage::start(|script, _directory| script.prompts = vec![stream(200, 2)]);
    let mut workers: Vec<Box<dyn Worker>> = Vec::new();
    let sessions: Vec<String> = (0..SESSIONS).map(|_| stage.client().open_session().unwrap()).collect();
    for session_id in &sessions {
        workers.push(Box::new(StreamWorker::new(session_id.clone())));
    }
    for index in 0..APPENDERS {
        workers.push(Box::new(AppendWorker::new(format!("appender-{index}"))));
    }
    let report = crash_run(&mut stage.daemon, workers, rounds(8), &mut random);
    // By their mark: in a long run the numbers of ended processes come again.
    eventually(GONE_LIMIT, || stage.daemon.processes(), |left| *left == [stage.daemon.pid().cast_signed()]);
    let streamed: usize = sessions.iter().map(|session_id| stage.stored_updates(session_id).len()).sum();
    println!("{report:?}, {streamed} updates stored");
    assert!(streamed > SESSIONS, "no turn streamed");
    assert!(report.acknowledged > u64::from(report.rounds), "{report:?}");
    assert!(report.slowest_start < Duration::from_secs(5), "{report:?}");
}
