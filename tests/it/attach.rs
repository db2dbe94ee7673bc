//! What a client of `holdfast acp` sees, and in which order.

use holdfast_tests::acp_client::AcpClient;
use holdfast_tests::daemon::{DaemonOptions, TestDaemon};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::processes;
use serde_json::{Value, json};

/// Starts `holdfast acp demo`.
fn client(daemon: &TestDaemon) -> AcpClient {
    let mut command = daemon.program();
    command.args(["acp", "demo"]);
    AcpClient::start(command).unwrap()
}

#[test]
fn a_new_session_is_answered_before_its_updates() {
    // Given
    let daemon = TestDaemon::start();
    let mut client = client(&daemon);
    client.call("initialize", &json!({ "protocolVersion": 1 })).unwrap();
    for _ in 0..10 {
        // When
        let answer = client.call("session/new", &json!({ "cwd": "/", "mcpServers": [] })).unwrap();
        let session_id = answer["result"]["sessionId"].as_str().unwrap().to_owned();
        // The agent tells its commands right after it has answered.
        let first = client.wait_for("the commands", |frame| frame["params"]["sessionId"] == session_id.as_str());
        assert_eq!(first.unwrap()["params"]["update"]["sessionUpdate"], "available_commands_update");
        // Then
        let frames: Vec<Value> = client.received.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let position = |found: &dyn Fn(&Value) -> bool| frames.iter().position(found).unwrap();
        let answered = position(&|frame| frame["result"]["sessionId"] == session_id.as_str());
        let told = position(&|frame| frame["params"]["sessionId"] == session_id.as_str());
        assert!(answered < told, "a client drops updates of a session that it does not know: {frames:#?}");
    }
}

#[test]
fn a_daemon_that_a_bridge_started_is_not_beneath_it() {
    // Given
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    // When
    let mut client = client(&daemon);
    client.call("initialize", &json!({ "protocolVersion": 1 })).unwrap();
    // Then: clients that end an agent with all processes beneath it (acpx does) leave the daemon alone.
    let mut daemons = daemon.processes();
    daemons.retain(|pid| processes::command_line(*pid).contains("daemon --detached"));
    let [pid] = daemons[..] else { panic!("one daemon: {daemons:?}") };
    assert_ne!(processes::parent(pid), Some(client.pid().cast_signed()));
    drop(client);
    assert!(daemon.program().arg("stop").output().unwrap().status.success());
    eventually(PATIENCE, || daemon.processes(), Vec::is_empty);
}
