//! Agents that leave processes behind: whatever ends first, nothing of ours lives on, and nothing of others is touched.

use std::time::Duration;

use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::fake_agent::{Step, chunk};
use holdfast_tests::family::{Bystander, family, family_stage};
use holdfast_tests::processes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(15);

fn stage(settings: &str) -> AcpStage {
    family_stage(settings, false)
}

#[test]
fn a_close_ends_the_whole_tree() {
    let mut bystander = Bystander::start();
    let stage = stage("");
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    let closed = client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    assert!(closed["result"].is_object(), "{closed}");
    stage.wait_until_gone(&pids, Duration::from_secs(10));
    stage.wait_until_leases_are_over();
    assert!(bystander.lives());
}

#[test]
fn an_orderly_stop_ends_the_whole_tree_before_the_daemon() {
    let mut bystander = Bystander::start();
    let mut stage = stage("");
    let mut client = stage.client();
    client.open_session().unwrap();
    let pids = family(&stage);
    assert!(stage.daemon.term().success());
    stage.wait_until_gone(&pids, Duration::ZERO);
    stage.wait_until_leases_are_over();
    assert!(bystander.lives());
}

#[test]
fn a_killed_daemon_takes_the_whole_tree_with_it_and_the_session_goes_on() {
    let mut bystander = Bystander::start();
    let mut stage = stage("");
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    stage.daemon.kill9();
    stage.daemon.boot();
    stage.wait_until_gone(&pids, Duration::from_secs(10));
    stage.wait_until_leases_are_over();
    assert!(bystander.lives());
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count("session/new"), 1);
}

#[test]
fn a_killed_wrapper_fails_its_turn_and_what_was_below_it_is_adopted_and_ended() {
    let mut bystander = Bystander::start();
    let mut stage = stage("");
    stage.script.prompts_by_text =
        [("hang".to_owned(), vec![Step::Update(chunk("hanging")), Step::WaitForFile(stage.path("never"))])].into();
    stage.write_script();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    let agent = *stage.trace().pids().last().unwrap();
    let wrapper = processes::parent(agent.cast_signed()).unwrap();
    assert_ne!(wrapper, stage.daemon.pid().cast_signed(), "an agent runs below its wrapper");
    let prompt = client.prompt(&session_id, "hang").unwrap();
    client.wait_for_text("hanging").unwrap();
    kill_process(Pid::from_raw(wrapper).unwrap(), Signal::KILL).unwrap();
    let failed = client.wait_for_answer(prompt).unwrap();
    assert_eq!(failed["error"]["data"]["kind"], "agent_failed", "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("wrapper was killed"), "{failed}");
    stage.wait_until_gone(&pids, LIMIT);
    assert!(bystander.lives());
    let turns = stage.stored_turns(&session_id);
    assert_eq!(turns[0].state, "interrupted");
    assert!(turns[0].error.as_ref().unwrap().contains("wrapper was killed"), "{turns:?}");
    stage.wait_until_leases_are_over();

    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    let trace = stage.trace();
    assert_ne!(*trace.pids().last().unwrap(), agent);
    assert_eq!((trace.count("session/new"), trace.count("session/resume")), (1, 1));
}

#[test]
fn a_client_that_goes_leaves_the_agent_until_it_was_idle_for_its_time() {
    let stage = stage("idle_timeout_s = 1\n");
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let pids = family(&stage);
    drop(client);
    stage.wait_until_gone(&pids, LIMIT);
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count("session/new"), 1);
}
