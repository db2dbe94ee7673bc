//! `holdfast run` and `holdfast acp` against a real daemon: what a person, a script and an editor get when all goes well,
//! and when the daemon is killed in the middle.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::Shutdown;
use holdfast_protocol::methods::session::{List, ListParams, SessionKind, SessionRow, TurnState};
use holdfast_tests::acp_client::AcpClient;
use holdfast_tests::daemon::{DaemonOptions, TestDaemon, output_within};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::processes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn run(daemon: &TestDaemon, words: &[&str]) -> Command {
    let mut command = daemon.program();
    command.arg("run").args(words).current_dir("/").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn ran(daemon: &TestDaemon, words: &[&str]) -> Output {
    output_within(run(daemon, words).spawn().unwrap(), PATIENCE)
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn sessions(daemon: &TestDaemon) -> Vec<SessionRow> {
    let params = ListParams { kind: Some(SessionKind::Acp), ..ListParams::default() };
    daemon.client().call::<List>(&params).unwrap().sessions
}

/// Ends a daemon that is not the fixture's own child.
fn stop(daemon: &TestDaemon) {
    daemon.client().call::<Shutdown>(&Empty {}).unwrap();
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

fn bridge(daemon: &TestDaemon) -> AcpClient {
    let mut command = daemon.program();
    command.args(["acp", "demo"]);
    AcpClient::start(command).unwrap()
}

#[test]
fn a_script_gets_every_update_and_a_result_and_finds_the_session_by_its_name() {
    let daemon = TestDaemon::start();
    let output = ran(&daemon, &["demo", "hello", "--session", "ci", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(said(&output), "");
    let lines = lines(&output);
    let (last, updates) = lines.split_last().unwrap();
    let session_id = last["result"]["session_id"].as_str().unwrap();
    assert_eq!(last["result"]["stop_reason"], "end_turn");
    assert!(last["result"]["usage"]["inputTokens"].as_u64().unwrap() > 0);
    assert!(updates.iter().all(|line| line["sessionId"] == session_id), "{updates:?}");
    let text: String = updates
        .iter()
        .filter(|line| line["update"]["sessionUpdate"] == "agent_message_chunk")
        .map(|line| line["update"]["content"]["text"].as_str().unwrap())
        .collect();
    assert!(text.starts_with("Hello! I'm the demonstration agent."), "{text}");

    // The name, the id and the beginning of the id all mean the same session.
    for wanted in ["ci", session_id, &session_id[..13]] {
        let output = ran(&daemon, &["demo", "recall", "--session", wanted]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1. hello\n"), "{wanted}");
        assert!(said(&output).starts_with("demo · session ci ("), "{}", said(&output));
    }
    let output = ran(&daemon, &["demo", "recall", "--resume"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("You said 4 things before"), "{}", said(&output));
    let rows = sessions(&daemon);
    assert_eq!((rows.len(), rows[0].turn_count), (1, 5));

    let output = ran(&daemon, &["demo", "hello", "--session", "01990000-0000-7000-8000-000000000000", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let output = ran(&daemon, &["nobody", "hello"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}

#[test]
fn without_a_terminal_the_rule_for_unattended_turns_answers() {
    let daemon = TestDaemon::start();
    let output = ran(&daemon, &["demo", "permission"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "I'd like to change a file. You chose `reject`, so I left it.\n");
    assert!(said(&output).contains("✗ failed"), "{}", said(&output));
}

#[test]
fn an_interrupt_cancels_the_turn_and_waits_for_its_end() {
    let daemon = TestDaemon::start();
    let child = run(&daemon, &["demo", "slow 60", "--json"]).spawn().unwrap();
    eventually(PATIENCE, || sessions(&daemon), |rows| rows.iter().any(|row| row.turn_state == TurnState::Running));
    signal(&child, Signal::INT);
    let output = output_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert_eq!(lines(&output).last().unwrap()["result"]["stop_reason"], "cancelled");
    assert_eq!(sessions(&daemon)[0].turn_state, TurnState::Idle);
}

#[test]
fn a_prompt_that_nobody_waits_for_is_on_disk_and_its_turn_goes_on() {
    let mut daemon = TestDaemon::start();
    let output = ran(&daemon, &["demo", "slow 60", "--no-wait", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let result = lines(&output).pop().unwrap();
    assert_eq!(result["result"]["stop_reason"], Value::Null);
    daemon.kill9();
    daemon.boot();
    let rows = sessions(&daemon);
    assert_eq!(rows[0].session_id.to_string(), result["result"]["session_id"]);
    assert_eq!((rows[0].turn_count, rows[0].turn_state), (1, TurnState::Interrupted));
}

#[test]
fn a_daemon_that_dies_in_mid_turn_is_told_and_the_next_run_goes_on() {
    let mut daemon = TestDaemon::start();
    let child = run(&daemon, &["demo", "slow 60", "--session", "ci", "--json"]).spawn().unwrap();
    eventually(PATIENCE, || sessions(&daemon), |rows| rows.iter().any(|row| row.message_count > 3));
    daemon.kill9();
    let output = output_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    let last = lines(&output).pop().unwrap();
    assert_eq!(last["error"]["kind"], "daemon_away");
    assert!(said(&output).contains("to go on: holdfast run demo \"go on\" --session "), "{}", said(&output));

    // This one finds no daemon and starts one.
    let output = ran(&daemon, &["demo", "hello", "--session", "ci"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).starts_with("✓ daemon started (pid "), "{}", said(&output));
    assert!(said(&output).contains("resumed, 1 turn, the last one interrupted"), "{}", said(&output));
    assert_eq!(sessions(&daemon).len(), 1);
    stop(&daemon);
}

#[test]
fn two_first_runs_at_once_make_one_root_and_one_daemon() {
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    let children: Vec<Child> = (0..2).map(|_| run(&daemon, &["demo", "hello"]).spawn().unwrap()).collect();
    let outputs: Vec<Output> = children.into_iter().map(|child| output_within(child, PATIENCE)).collect();
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", said(output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("Hello! "));
    }
    let all: String = outputs.iter().map(said).collect();
    assert_eq!(all.matches("✓ daemon started (pid ").count(), 1, "{all}");
    assert_eq!(all.matches("(config.toml, key)").count(), 1, "{all}");
    assert_eq!(sessions(&daemon).len(), 2);
    let daemons = daemon.processes().into_iter().filter(|pid| processes::command_line(*pid).contains(" daemon "));
    assert_eq!(daemons.count(), 1);
    stop(&daemon);
}

#[test]
fn a_daemon_that_can_not_start_is_quoted() {
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    std::fs::create_dir_all(daemon.root.path()).unwrap();
    std::fs::write(daemon.root.config_file(), "port = = 7420\n").unwrap();
    let output = ran(&daemon, &["demo", "hello"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).starts_with("error: config.toml line 1"), "{}", said(&output));
}

#[test]
fn a_bridge_outlives_its_daemon_between_two_prompts() {
    let mut daemon = TestDaemon::start();
    let mut editor = bridge(&daemon);
    let session_id = editor.new_session().unwrap();
    let id = editor.prompt(&session_id, "hello").unwrap();
    assert_eq!(editor.wait_for_answer(id).unwrap()["result"]["stopReason"], "end_turn");
    let pid = editor.pid();

    daemon.kill9();
    daemon.boot();
    let id = editor.prompt(&session_id, "recall").unwrap();
    assert_eq!(editor.wait_for_answer(id).unwrap()["result"]["stopReason"], "end_turn");
    assert!(editor.text().contains("1. hello\n"), "{}", editor.text());
    assert!(editor.is_running().unwrap() && editor.pid() == pid);
    let rows = sessions(&daemon);
    assert_eq!((rows.len(), rows[0].turn_count), (1, 2), "no session was made in place of the other");
    assert_eq!(rows[0].session_id.to_string(), session_id);
    assert!(!editor.received.iter().any(|line| line.contains("holdfast-bridge/")), "the replay's answers are ours");

    editor.close_input();
    assert_eq!(editor.wait_for_exit().unwrap().code(), Some(0));
}

#[test]
fn what_is_open_when_the_daemon_dies_is_answered_and_the_next_request_starts_a_daemon() {
    let mut daemon = TestDaemon::start();
    let mut editor = bridge(&daemon);
    let session_id = editor.new_session().unwrap();
    let prompt = editor.prompt(&session_id, "permission").unwrap();
    let is_question = |frame: &Value| frame["method"] == "session/request_permission";
    let question = editor.wait_for("a question", is_question).unwrap();

    daemon.kill9();
    let answer = editor.wait_for_answer(prompt).unwrap();
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    assert_eq!(answer["error"]["data"]["kind"], "daemon_away");
    let withdrawn =
        |frame: &Value| frame["method"] == "$/cancel_request" && frame["params"]["requestId"] == question["id"];
    editor.wait_for("the withdrawal", withdrawn).unwrap();
    // A late answer of the dialog reaches nobody.
    editor
        .send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": { "outcome": "cancelled" } } }))
        .unwrap();

    // Nobody starts a daemon but the bridge.
    let id = editor.prompt(&session_id, "hello").unwrap();
    assert_eq!(editor.wait_for_answer(id).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(sessions(&daemon).len(), 1);
    stop(&daemon);
    drop(editor);
}

#[test]
fn an_idle_editor_starts_no_daemon_and_takes_the_next_one() {
    let mut daemon = TestDaemon::start();
    let mut editor = bridge(&daemon);
    let session_id = editor.new_session().unwrap();
    assert!(daemon.term().success());
    // The boot would be refused if the bridge had started one.
    daemon.boot();
    let id = editor.prompt(&session_id, "hello").unwrap();
    assert_eq!(editor.wait_for_answer(id).unwrap()["result"]["stopReason"], "end_turn");
    let daemons = daemon.processes().into_iter().filter(|pid| processes::command_line(*pid).contains(" daemon"));
    assert_eq!(daemons.collect::<Vec<_>>(), [daemon.pid().cast_signed()]);
}

#[test]
fn an_editor_that_leaves_detaches_and_ends_nothing() {
    let daemon = TestDaemon::start();
    for way in ["end of input", "SIGTERM"] {
        let mut editor = bridge(&daemon);
        let session_id = editor.new_session().unwrap();
        editor.prompt(&session_id, "slow 60").unwrap();
        editor.wait_for("text", |frame| frame["params"]["update"]["content"]["text"] == "2 ").unwrap();
        match way {
            "SIGTERM" => kill_process(Pid::from_raw(editor.pid().cast_signed()).unwrap(), Signal::TERM).unwrap(),
            _ => editor.close_input(),
        }
        assert_eq!(editor.wait_for_exit().unwrap().code(), Some(0), "{way}");
        let row = sessions(&daemon).into_iter().find(|row| row.session_id.to_string() == session_id).unwrap();
        let more = |row: &SessionRow| row.message_count;
        let before = more(&row);
        let later = eventually(
            Duration::from_secs(10),
            || sessions(&daemon).into_iter().find(|row| row.session_id.to_string() == session_id).unwrap(),
            |row| more(row) > before,
        );
        assert_eq!(later.turn_state, TurnState::Running, "{way}");
    }
}

#[test]
fn a_bridge_without_a_daemon_says_why_on_standard_error_only() {
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    std::fs::create_dir_all(daemon.root.path()).unwrap();
    std::fs::write(daemon.root.config_file(), "port = = 7420\n").unwrap();
    let mut command = daemon.program();
    command.args(["acp", "demo"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output_within(command.spawn().unwrap(), PATIENCE);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(said(&output).starts_with("error: "), "{}", said(&output));
}
