//! What a client of `holdfast acp` sees, and in which order.

use holdfast_tests::acp_client::AcpClient;
use holdfast_tests::daemon::TestDaemon;
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
