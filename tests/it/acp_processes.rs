//! Agents that leave processes behind: whatever ends first, nothing of ours lives on, and nothing of others is touched.

use std::time::Duration;

use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::family::{Bystander, family, family_stage};
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
    assert!(bystander.lives());
    let mut client = stage.client();
    client.resume(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "go on").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count("session/new"), 1);
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
