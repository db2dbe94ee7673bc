//! The life of process leases in a real daemon: whoever is killed, and whenever, no process of ours is left, and none of
//! others is touched.

use std::fs;
use std::process::Command;
use std::time::Duration;

use holdfast_tests::acp_stage::{AcpStage, is_alive};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Step, chunk};
use holdfast_tests::family::{
    Bystander, family, family_stage, forge_leases, signal, stored_leases, with_family, wrappers,
};
use holdfast_tests::random::Random;
use rustix::process::Signal;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(20);
/// Short, so that what ignores SIGTERM does not hold the test up.
const SHORT_GRACE: &str = "\n[leases]\nkill_grace_ms = 300\n";

/// Says whether every lease is over, with what is there for the message of a failure.
fn all_over(stage: &AcpStage) {
    let open = || stored_leases(stage).into_iter().filter(|lease| !matches!(lease.state.as_str(), "closed" | "lost"));
    eventually(LIMIT, || open().collect::<Vec<_>>(), Vec::is_empty);
}

/// Boots again after a kill and waits until nothing of before is left.
fn boots_clean(stage: &mut AcpStage, pids: &[u32]) {
    stage.daemon.boot();
    stage.wait_until_gone(pids, LIMIT);
    all_over(stage);
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_spawn_leaves_nothing() {
    let mut bystander = Bystander::start();
    let mut stage = AcpStage::start_with(SHORT_GRACE, |script, directory| {
        with_family(script, directory, true);
        // The agent runs and has not introduced itself.
        script.on_start = vec![Step::Touch(directory.join("started")), Step::WaitForFile(directory.join("never"))];
    });
    let socket = stage.daemon.root.socket();
    let client = std::thread::spawn(move || holdfast_tests::acp_socket::AcpSocket::attach(&socket, "fake").map(drop));
    eventually(PATIENCE, || stage.path("started").exists(), |started| *started);
    let pids = eventually(PATIENCE, || wrappers(&stage), |pids| !pids.is_empty());
    stage.daemon.kill9();
    assert!(client.join().unwrap().is_err(), "the daemon answered an agent that never did");
    boots_clean(&mut stage, &pids);
    assert!(bystander.lives());
}

#[test]
fn a_daemon_killed_at_any_moment_of_a_start_leaves_nothing() {
    let mut random = Random::for_test("a daemon killed at any moment of a start");
    let mut stage = family_stage(SHORT_GRACE, true);
    for round in 0..6 {
        let mut client = stage.client();
        client.request("session/new", &json!({ "cwd": "/", "mcpServers": [] })).unwrap();
        let pause = Duration::from_micros(random.between(0, 60_000));
        std::thread::sleep(pause);
        let before = stage.daemon.processes();
        stage.daemon.kill9();
        stage.daemon.boot();
        let daemon = i32::try_from(stage.daemon.pid()).unwrap();
        let left = || {
            let now = stage.daemon.processes();
            before.iter().copied().filter(|pid| *pid != daemon && now.contains(pid)).collect::<Vec<_>>()
        };
        eventually(LIMIT, left, Vec::is_empty);
        all_over(&stage);
        println!("round {round}: killed after {pause:?}, {} leases so far", stored_leases(&stage).len());
    }
    let strays = fs::read_to_string(stage.path("stray")).ok().and_then(|text| text.trim().parse::<u32>().ok());
    assert!(strays.is_none_or(|pid| !is_alive(pid)));
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_turn_leaves_nothing_and_the_session_goes_on() {
    let mut bystander = Bystander::start();
    let mut stage = AcpStage::start_with(SHORT_GRACE, |script, directory| {
        with_family(script, directory, true);
        script.prompts = vec![vec![Step::Update(chunk("begun")), Step::WaitForFile(directory.join("never"))]];
    });
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    client.prompt(&session_id, "work").unwrap();
    client.wait_for_text("begun").unwrap();
    let pids = family(&stage);
    stage.daemon.kill9();
    boots_clean(&mut stage, &pids);
    assert_eq!(stage.stored_turns(&session_id)[0].state, "interrupted");
    assert!(bystander.lives());
    stage.script.prompts = Vec::new();
    stage.write_script();
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_close_leaves_nothing() {
    // Long enough to be met while it waits.
    let mut stage = family_stage("\n[leases]\nkill_grace_ms = 3000\n", true);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    client.request("session/close", &json!({ "sessionId": session_id })).unwrap();
    let closing = || stored_leases(&stage).iter().any(|lease| lease.state == "closing");
    eventually(PATIENCE, closing, |closing| *closing);
    stage.daemon.kill9();
    boots_clean(&mut stage, &pids);
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
}

#[test]
fn a_reload_in_the_middle_of_a_turn_keeps_processes_and_lease() {
    let stage = AcpStage::start_with(SHORT_GRACE, |script, directory| {
        with_family(script, directory, false);
        script.prompts = vec![vec![Step::Update(chunk("begun")), Step::WaitForFile(directory.join("go"))]];
    });
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "work").unwrap();
    client.wait_for_text("begun").unwrap();
    let (pids, leases) = (family(&stage), stored_leases(&stage));
    let reloaded = stage.daemon.program().arg("reload").output().unwrap();
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    assert_eq!(stored_leases(&stage), leases);
    stage.touch("go");
    assert_eq!(client.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    // What began before the reload is ended after it, and its end is recorded.
    let closed = client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    assert!(closed["result"].is_object(), "{closed}");
    stage.wait_until_gone(&pids, LIMIT);
    all_over(&stage);
}

#[test]
fn a_killed_wrapper_takes_its_tree_along_and_the_session_goes_on() {
    let mut bystander = Bystander::start();
    let stage = family_stage(SHORT_GRACE, true);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    let wrapper = wrappers(&stage);
    assert_eq!(wrapper.len(), 1);
    signal(wrapper[0], Signal::KILL);
    stage.wait_until_gone(&pids, LIMIT);
    all_over(&stage);
    assert!(bystander.lives());
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count("session/new"), 1, "the session was resumed, not made anew");
}

#[test]
fn a_start_ends_a_whole_orphaned_tree() {
    let mut bystander = Bystander::start();
    let mut stage = family_stage(SHORT_GRACE, true);
    stage.client().open_session().unwrap();
    let (mut pids, wrapper) = (family(&stage), wrappers(&stage));
    // A wrapper that is stopped can't see its daemon die, so the whole tree is there at the next start.
    signal(wrapper[0], Signal::STOP);
    stage.daemon.kill9();
    pids.extend(&wrapper);
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    boots_clean(&mut stage, &pids);
    assert_eq!(stored_leases(&stage)[0].state, "closed", "it was verified, and it was seen to go");
    assert!(bystander.lives());
}

#[test]
fn a_tree_that_lost_daemon_and_wrapper_at_once_is_found_in_its_cgroup() {
    let mut bystander = Bystander::start();
    let mut stage = family_stage(SHORT_GRACE, true);
    stage.client().open_session().unwrap();
    let pids = family(&stage);
    let lease = stored_leases(&stage).remove(0);
    let wrapper = wrappers(&stage);
    // Stopped, it does not take its tree along when the daemon dies; then it dies too.
    signal(wrapper[0], Signal::STOP);
    stage.daemon.kill9();
    signal(wrapper[0], Signal::KILL);
    if lease.cgroup.is_none() {
        println!("skipped, as trees get no cgroup of their own here: nothing is left that proves whose they are");
        for pid in pids {
            signal(pid, Signal::KILL);
        }
        return;
    }
    boots_clean(&mut stage, &pids);
    assert!(bystander.lives());
}

#[test]
fn a_lease_without_a_process_is_given_up() {
    let mut stage = family_stage(SHORT_GRACE, false);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    stage.wait_until_gone(&pids, LIMIT);
    assert!(stage.daemon.term().success());
    // As if the daemon had died before it could say that the tree has gone.
    let pid = stored_leases(&stage)[0].root_pid.unwrap();
    forge_leases(&stage, "open", pid, pid);
    boots_clean(&mut stage, &[]);
    assert_eq!(stored_leases(&stage)[0].state, "lost");
}

/// A process that writes down every signal it gets.
struct Stranger {
    child: std::process::Child,
    log: std::path::PathBuf,
}

impl Stranger {
    fn start(directory: &std::path::Path) -> Self {
        let log = directory.join("stranger.log");
        let script = "for name in TERM INT HUP QUIT; do trap \"echo $name >> $LOG\" $name; done
            echo ready > $LOG.ready; while :; do sleep 0.05; done";
        let child = Command::new("setsid").args(["sh", "-c", script]).env("LOG", &log).spawn().unwrap();
        eventually(PATIENCE, || directory.join("stranger.log.ready").exists(), |ready| *ready);
        Self { child, log }
    }

    fn is_untouched(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none() && !self.log.exists()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_stored_number_that_is_somebody_elses_earns_no_signal_and_the_session_goes_on() {
    let mut stage = family_stage(SHORT_GRACE, false);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    stage.daemon.kill9();
    stage.wait_until_gone(&pids, LIMIT);
    let place = tempfile::tempdir().unwrap();
    let mut stranger = Stranger::start(place.path());
    let own = stored_leases(&stage)[0].root_pid.unwrap();
    let pid = i64::from(stranger.child.id());
    for (root_pid, group) in
        [(pid, own), (pid, pid), (own, pid), (1, 1), (0, 0), (-1, -1), (-pid, -pid), (i64::MAX, pid)]
    {
        forge_leases(&stage, "open", root_pid, group);
        stage.daemon.boot();
        all_over(&stage);
        assert_eq!(stored_leases(&stage)[0].state, "lost", "pid {root_pid}, group {group}");
        assert!(stranger.is_untouched(), "pid {root_pid}, group {group}");
        stage.daemon.kill9();
    }
    stage.daemon.boot();
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    assert!(stranger.is_untouched());
}

#[test]
fn a_stop_closes_every_lease_before_the_daemon_ends() {
    let mut stage = family_stage(SHORT_GRACE, true);
    stage.client().open_session().unwrap();
    let pids = family(&stage);
    assert!(stage.daemon.term().success());
    stage.wait_until_gone(&pids, Duration::ZERO);
    let states: Vec<String> = stored_leases(&stage).into_iter().map(|lease| lease.state).collect();
    assert!(states.iter().all(|state| state == "closed"), "{states:?}");
}
