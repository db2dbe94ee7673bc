//! acpx, a real client, in front of `holdfast acp demo`.

use std::fs;

use holdfast_tests::daemon::{DaemonOptions, TestDaemon};
use holdfast_tests::interop::{Acpx, Packages};

/// The code on which no client starts anew.
const NOT_NOW: i64 = -32010;

/// Ends the daemon that a bridge has started.
fn stop(daemon: &TestDaemon) {
    let output = daemon.program().arg("stop").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the ids of the sessions that the daemon has, as acpx is told them.
#[track_caller]
fn sessions(acpx: &Acpx) -> Vec<String> {
    let said = acpx.run(["sessions", "list"]);
    assert_eq!(said.code, 0, "{}", said.text);
    let listed = said.frames.iter().find(|frame| frame["source"] == "agent");
    let listed = listed.unwrap_or_else(|| panic!("the list is not ours: {}", said.text));
    let ids = listed["sessions"].as_array().unwrap().iter().map(|session| session["sessionId"].as_str());
    ids.map(|id| id.unwrap().to_owned()).collect()
}

/// Makes a session with a name and returns its id.
#[track_caller]
fn new_session(acpx: &Acpx, name: &str) -> String {
    let said = acpx.run(["sessions", "new", "--name", name]);
    assert_eq!(said.code, 0, "{}", said.text);
    let made = said.action("session_ensured");
    assert_eq!(made["created"], true);
    made["acpxSessionId"].as_str().unwrap().to_owned()
}

#[test]
fn its_verbs_work() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::start();
    let acpx = Acpx::new(&packages, &daemon, "demo");

    let none = acpx.run(["prompt", "-s", "none", "hello"]);
    assert_eq!(none.code, 4, "{}", none.text);

    let once = acpx.run(["exec", "hello"]);
    assert_eq!(once.code, 0, "{}", once.text);
    assert_eq!(once.requests(), ["initialize", "session/new", "session/prompt"]);
    assert_eq!(once.answer("initialize")["result"]["protocolVersion"], 1);
    assert_eq!(once.answer("session/prompt")["result"]["stopReason"], "end_turn");
    assert!(once.agent_text().starts_with("Hello!"), "{}", once.text);

    let session_id = new_session(&acpx, "one");
    assert_eq!(sessions(&acpx).len(), 2);
    let ensured = acpx.run(["sessions", "ensure", "--name", "one"]);
    assert_eq!(ensured.action("session_ensured")["created"], false);
    assert_eq!(ensured.action("session_ensured")["acpxSessionId"], session_id.as_str());
    let first = acpx.run(["prompt", "-s", "one", "hello"]);
    assert_eq!(first.code, 0, "{}", first.text);
    assert_eq!(first.requests(), ["initialize", "session/resume", "session/prompt"]);
    let status = acpx.run(["status", "-s", "one"]);
    assert_eq!(status.code, 0, "{}", status.text);
    assert_eq!(status.action("status_snapshot")["acpxSessionId"], session_id.as_str());
    assert_eq!(status.action("status_snapshot")["status"], "alive");

    // The demonstration agent has no modes.
    let refused = acpx.run(["set-mode", "-s", "one", "code"]);
    assert_eq!(refused.code, 1, "{}", refused.text);
    assert!(refused.text.contains("-32601"), "{}", refused.text);

    // The queue is first in, first out: what was not waited for is over when the next is answered.
    let queued = acpx.run(["prompt", "-s", "one", "--no-wait", "plan"]);
    assert_eq!(queued.code, 0, "{}", queued.text);
    queued.action("prompt_queued");
    let recalled = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(recalled.requests(), ["session/prompt"]);
    assert!(recalled.agent_text().contains("1. hello\n2. plan\n"), "{}", recalled.text);

    let closed = acpx.run(["sessions", "close", "one"]);
    assert_eq!(closed.code, 0, "{}", closed.text);
    closed.action("session_closed");
    acpx.wait_for_queue_owners_to_end();
    assert!(sessions(&acpx).contains(&session_id), "a closed session's history is kept");
}

#[test]
fn the_daemon_that_it_made_start_outlives_it() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    let acpx = Acpx::new(&packages, &daemon, "demo");
    // acpx ends its agent with every process beneath it before it returns.
    let once = acpx.run(["exec", "hello"]);
    assert_eq!(once.code, 0, "{}", once.text);
    daemon.client();
    stop(&daemon);
}

#[test]
fn a_cancelled_turn_ends_and_the_session_goes_on() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::start();
    let acpx = Acpx::new(&packages, &daemon, "demo");
    new_session(&acpx, "one");

    let mut slow = acpx.start(["prompt", "-s", "one", "slow 60"]);
    slow.wait_for("agent_message_chunk");
    let cancelled = acpx.run(["cancel", "-s", "one"]);
    assert_eq!(cancelled.code, 0, "{}", cancelled.text);
    assert_eq!(cancelled.action("cancel_result")["cancelled"], true);
    let slow = slow.end();
    assert_eq!(slow.code, 0, "{}", slow.text);
    assert_eq!(slow.answer("session/prompt")["result"]["stopReason"], "cancelled");
    assert_eq!(slow.frames.iter().filter(|frame| frame["method"] == "session/cancel").count(), 1);

    let nothing = acpx.run(["cancel", "-s", "one"]);
    assert_eq!(nothing.action("cancel_result")["cancelled"], false);
    let next = acpx.run(["prompt", "-s", "one", "hello"]);
    assert_eq!(next.code, 0, "{}", next.text);
    assert_eq!(next.requests(), ["session/prompt"]);
}

#[test]
fn its_answer_to_a_permission_question_reaches_the_agent() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::start();
    let acpx = Acpx::new(&packages, &daemon, "demo");

    let allowed = acpx.run(["--approve-all", "exec", "permission"]);
    assert_eq!(allowed.code, 0, "{}", allowed.text);
    assert!(allowed.agent_text().contains("You chose `allow`"), "{}", allowed.text);
    assert!(allowed.frames.iter().any(|frame| frame["method"] == "session/request_permission"));

    let denied = acpx.run(["--deny-all", "exec", "permission"]);
    assert_eq!(denied.code, 5, "{}", denied.text);
    assert!(denied.agent_text().contains("You chose `reject`"), "{}", denied.text);
}

#[test]
fn two_of_them_share_a_session() {
    let Some(packages) = Packages::get() else { return };
    let daemon = TestDaemon::start();
    let (one, other) = (Acpx::new(&packages, &daemon, "demo"), Acpx::new(&packages, &daemon, "demo"));
    let session_id = new_session(&one, "one");
    assert_eq!(one.run(["prompt", "-s", "one", "hello"]).code, 0);

    // A session works where it was made.
    let directory = one.working_directory();
    let resumed = other.run_in(&directory, ["sessions", "new", "--name", "other", "--resume-session", &session_id]);
    assert_eq!(resumed.code, 0, "{}", resumed.text);
    let plan = other.run_in(&directory, ["prompt", "-s", "other", "plan"]);
    assert_eq!(plan.requests(), ["initialize", "session/resume", "session/prompt"], "{}", plan.text);

    // Each agent connection lives on, and knows of the other's turns.
    let recalled = one.run(["prompt", "-s", "one", "recall"]);
    assert!(recalled.agent_text().contains("1. hello\n2. plan\n"), "{}", recalled.text);
    let recalled = other.run_in(&directory, ["prompt", "-s", "other", "recall"]);
    assert_eq!(recalled.requests(), ["session/prompt"], "{}", recalled.text);
    assert!(recalled.agent_text().contains("1. hello\n2. plan\n3. recall\n"), "{}", recalled.text);
    assert_eq!(sessions(&one), [session_id]);
}

#[test]
fn a_session_is_resumed_after_its_agent_connection_and_the_daemon_have_gone() {
    let Some(packages) = Packages::get() else { return };
    let mut daemon = TestDaemon::start();
    let acpx = Acpx::new(&packages, &daemon, "demo");
    let session_id = new_session(&acpx, "one");
    let first = acpx.run(["--ttl", "1", "prompt", "-s", "one", "hello"]);
    assert_eq!(first.code, 0, "{}", first.text);
    acpx.wait_for_queue_owners_to_end();

    daemon.kill9();

    // acpx starts the agent anew, and that starts a daemon.
    let second = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(second.code, 0, "{}", second.text);
    assert_eq!(second.requests(), ["initialize", "session/resume", "session/prompt"]);
    assert!(second.answer("session/resume").get("error").is_none(), "{}", second.text);
    let prompted = second.frames.iter().find(|frame| frame["method"] == "session/prompt").unwrap();
    assert_eq!(prompted["params"]["sessionId"], session_id.as_str());
    assert!(second.agent_text().contains("1. hello\n"), "{}", second.text);
    assert_eq!(sessions(&acpx), [session_id]);
    stop(&daemon);
}

#[test]
fn a_turn_that_the_daemon_took_with_it_is_an_error_and_the_same_connection_goes_on() {
    let Some(packages) = Packages::get() else { return };
    let mut daemon = TestDaemon::start();
    let acpx = Acpx::new(&packages, &daemon, "demo");
    let session_id = new_session(&acpx, "one");
    assert_eq!(acpx.run(["prompt", "-s", "one", "hello"]).code, 0);
    let mut slow = acpx.start(["prompt", "-s", "one", "slow 60"]);
    slow.wait_for("agent_message_chunk");
    let owners = acpx.queue_owners();

    daemon.kill9();

    let slow = slow.end();
    assert_eq!(slow.code, 1, "{}", slow.text);
    assert_eq!(slow.answer("session/prompt")["error"]["code"], NOT_NOW);
    let next = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(next.code, 0, "{}", next.text);
    assert_eq!(next.requests(), ["session/prompt"]);
    assert!(next.agent_text().contains("1. hello\n"), "{}", next.text);
    assert_eq!(acpx.queue_owners(), owners);
    assert_eq!(sessions(&acpx), [session_id]);
    stop(&daemon);
}

#[test]
fn while_no_daemon_can_be_started_it_shows_why_and_starts_nothing_anew() {
    let Some(packages) = Packages::get() else { return };
    let mut daemon = TestDaemon::prepare(DaemonOptions::default());
    daemon.boot();
    let acpx = Acpx::new(&packages, &daemon, "demo");
    let session_id = new_session(&acpx, "one");
    assert_eq!(acpx.run(["prompt", "-s", "one", "hello"]).code, 0);
    let config = fs::read(daemon.root.config_file()).unwrap();
    daemon.kill9();
    fs::write(daemon.root.config_file(), "this is = = not TOML\n").unwrap();

    // The bridge is there, the daemon is not.
    let away = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(away.code, 1, "{}", away.text);
    assert_eq!(away.requests(), ["session/prompt"]);
    let error = &away.answer("session/prompt")["error"];
    assert_eq!(error["code"], NOT_NOW);
    assert_eq!(error["data"]["kind"], "daemon_away");

    // A new bridge can't come up at all.
    acpx.end_queue_owners();
    let broken = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(broken.code, 1, "{}", broken.text);
    assert_eq!(broken.requests(), ["initialize"]);
    assert!(broken.text.contains("config.toml line 1"), "{}", broken.text);

    fs::write(daemon.root.config_file(), config).unwrap();
    let again = acpx.run(["prompt", "-s", "one", "recall"]);
    assert_eq!(again.code, 0, "{}", again.text);
    assert!(!again.requests().contains(&"session/new"), "{}", again.text);
    assert!(again.agent_text().contains("1. hello\n"), "{}", again.text);
    assert_eq!(sessions(&acpx), [session_id]);
    stop(&daemon);
}
