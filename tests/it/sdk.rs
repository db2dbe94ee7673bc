//! The TypeScript SDK on either side: its client in front of `holdfast acp`, its example agent behind it.

use std::process::{Command, Stdio};

use holdfast_tests::acp_client::AcpClient;
use holdfast_tests::daemon::{DaemonOptions, TestDaemon, executable, output_within};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::interop::{Packages, script};
use serde_json::{Value, json};

/// Returns the kinds of updates that a client got, all for one session.
#[track_caller]
fn kinds(updates: &Value, session_id: &Value) -> Vec<String> {
    let updates = updates.as_array().unwrap();
    assert!(updates.iter().all(|params| params["sessionId"] == *session_id), "{updates:#?}");
    updates.iter().map(|params| params["update"]["sessionUpdate"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn its_client_drives_the_demonstration_agent() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::start();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(packages.node());
    command.arg(script("sdk_client.mjs")).arg(directory.path()).arg(executable()).arg("--root").arg(daemon.root.path());
    let (variable, mark) = daemon.mark();
    command.args(["acp", "demo"]).env("ACP_SDK", packages.sdk()).env(variable, mark);
    let output = output_within(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), PATIENCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();

    assert_eq!(seen["initialized"]["protocolVersion"], 1);
    let capabilities = &seen["initialized"]["agentCapabilities"];
    assert_eq!(capabilities["loadSession"], true);
    for capability in ["list", "resume", "close"] {
        assert!(capabilities["sessionCapabilities"][capability].is_object(), "{capabilities}");
    }
    let session_id = &seen["created"]["sessionId"];
    assert_eq!(seen["prompted"]["stopReason"], "end_turn");
    assert_eq!(seen["questions"].as_array().unwrap().len(), 1);
    assert_eq!(seen["questions"][0]["sessionId"], *session_id);
    assert_eq!(seen["listed"]["sessions"][0]["sessionId"], *session_id);

    // What is loaded is what was seen live, and the prompt, which the one who sent it was not sent.
    let live = kinds(&seen["live"], session_id);
    let mut replayed = kinds(&seen["replayed"], session_id);
    let prompt = replayed.iter().position(|kind| kind == "user_message_chunk").unwrap();
    replayed.remove(prompt);
    assert_eq!(replayed, live);
    assert_eq!(seen["closed"], json!({}));

    assert_eq!(seen["unknown"]["code"], -32601, "{seen}");
    assert_eq!(seen["missing"]["code"], -32002, "{seen}");
}

/// Starts a daemon that has the example agent, and `holdfast acp` in front of it.
fn example_agent(packages: &Packages) -> (TestDaemon, AcpClient) {
    let mut daemon = TestDaemon::prepare(DaemonOptions::default());
    let command = json!([packages.node(), packages.example_agent()]);
    std::fs::create_dir(daemon.root.path()).unwrap();
    // A JSON list of texts is a TOML one as well.
    let config = format!("schema_version = 1\n[agents.example]\ncommand = {command}\n");
    std::fs::write(daemon.root.config_file(), config).unwrap();
    daemon.boot();
    let mut command = daemon.program();
    command.args(["acp", "example"]);
    let client = AcpClient::start(command).unwrap();
    (daemon, client)
}

#[test]
fn its_example_agent_asks_and_is_answered() {
    let Some(packages) = Packages::get() else { return };
    let (daemon, mut client) = example_agent(&packages);
    let session_id = client.new_session().unwrap();

    let prompt = client.prompt(&session_id, "hello").unwrap();
    let question = client.wait_for("a question", |frame| frame["method"] == "session/request_permission").unwrap();
    assert_eq!(question["params"]["sessionId"], session_id.as_str());
    assert_eq!(question["params"]["toolCall"]["toolCallId"], "call_2");
    let outcome = json!({ "outcome": "selected", "optionId": "allow" });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } })).unwrap();
    let answer = client.wait_for_answer(prompt).unwrap();
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(client.text().contains("The changes have been applied."), "{}", client.text());

    let before = client.updates().len();
    let loaded = client.call("session/load", &json!({ "sessionId": session_id, "cwd": "/", "mcpServers": [] }));
    assert!(loaded.unwrap().get("error").is_none());
    // All that was seen live, and the prompt.
    assert_eq!(client.updates().len(), 2 * before + 1);

    // The agent can't close sessions; its process ends all the same.
    let closed = client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    assert_eq!(closed["result"], json!({}), "{closed}");
    let agents = || processes_of(&daemon, "agent.js");
    eventually(PATIENCE, agents, Vec::is_empty);
}

#[test]
fn its_example_agent_cancels() {
    let Some(packages) = Packages::get() else { return };
    let (_daemon, mut client) = example_agent(&packages);
    let session_id = client.new_session().unwrap();

    let prompt = client.prompt(&session_id, "hello").unwrap();
    client.wait_for("a tool call", |frame| frame["params"]["update"]["sessionUpdate"] == "tool_call").unwrap();
    client.notify("session/cancel", &json!({ "sessionId": session_id })).unwrap();
    let answer = client.wait_for_answer(prompt).unwrap();
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");

    // The session is as good as before.
    let prompt = client.prompt(&session_id, "hello").unwrap();
    client.wait_for("a question", |frame| frame["method"] == "session/request_permission").unwrap();
    client.notify("session/cancel", &json!({ "sessionId": session_id })).unwrap();
    // This agent takes a question's cancelled answer for the end of the turn.
    let answer = client.wait_for_answer(prompt).unwrap();
    assert!(["cancelled", "end_turn"].contains(&answer["result"]["stopReason"].as_str().unwrap()), "{answer}");
}

/// Returns the processes of a daemon whose command line contains `wanted`.
fn processes_of(daemon: &TestDaemon, wanted: &str) -> Vec<String> {
    let lines = daemon.processes().into_iter().map(holdfast_tests::processes::command_line);
    lines.filter(|line| line.contains(wanted)).collect()
}
