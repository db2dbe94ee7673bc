//! Turns that fail, are cut or are cancelled are recorded as such, and the session goes on.

use std::time::Duration;

use holdfast_tests::acp_socket::AcpSocket;
use holdfast_tests::acp_stage::{AcpStage, StoredTurn, told};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Outcome, Script, Step, chunk, raw};
use serde_json::{Value, json};

pub(crate) fn tool(id: &str, status: &str) -> Step {
    Step::Update(raw(&json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "Work", "status": status })))
}

fn error(code: i64, message: &str) -> Step {
    Step::End(Outcome::Error(raw(&json!({ "code": code, "message": message }))))
}

fn by_text<const N: usize>(script: &mut Script, turns: [(&str, Vec<Step>); N]) {
    script.prompts_by_text = turns.map(|(text, steps)| (text.to_owned(), steps)).into();
}

fn states(stage: &AcpStage, session_id: &str) -> Vec<String> {
    stage.stored_turns(session_id).into_iter().map(|turn| turn.state).collect()
}

fn stop_reason(answer: &Value) -> &str {
    answer["result"]["stopReason"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn history(stage: &AcpStage, session_id: &str) -> Vec<Value> {
    stage.client().load(session_id).unwrap().0
}

#[test]
fn failed_crashed_and_cut_turns_are_marked_and_the_next_one_works() {
    let mut stage = AcpStage::start(|script, directory| {
        by_text(
            script,
            [
                ("A", vec![tool("t1", "completed"), error(-32603, "provider error 500")]),
                ("B", vec![tool("t2", "in_progress"), Step::WaitForFile(directory.join("never"))]),
                (
                    "C",
                    vec![
                        Step::Update(chunk("half a wo")),
                        tool("t3", "pending"),
                        // The stream is cut in the middle of a message.
                        Step::Text(r#"{"jsonrpc":"2.0","method":"session/update","params":{"upda"#.to_owned()),
                        Step::KillSelf,
                    ],
                ),
                ("D", vec![Step::Update(chunk("fine"))]),
            ],
        );
    });
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let failed = client.turn(&session_id, "A").unwrap();
    assert_eq!(failed["error"]["code"], -32010, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("provider error 500"), "{failed}");

    client.prompt(&session_id, "B").unwrap();
    client.wait_for("t2", |frame| frame["params"]["update"]["toolCallId"] == "t2").unwrap();
    stage.daemon.kill9();
    stage.daemon.boot();

    let mut client = stage.client();
    let crashed = client.turn(&session_id, "C").unwrap();
    assert_eq!(crashed["error"]["code"], -32010, "{crashed}");
    assert!(crashed["error"]["message"].as_str().unwrap().contains("process ended"), "{crashed}");

    let expected = [
        "user: A",
        "tool t1: completed",
        "user: B",
        "tool t2: in_progress",
        "tool t2: failed",
        "user: C",
        "agent: half a wo",
        "tool t3: pending",
        "tool t3: failed",
    ];
    let updates = history(&stage, &session_id);
    assert_eq!(told(&updates), expected);
    for marked in [4, 8] {
        assert_eq!(updates[marked]["_meta"]["holdfast"]["interrupted"], true, "{}", updates[marked]);
    }
    let turns = stage.stored_turns(&session_id);
    let states: Vec<&str> = turns.iter().map(|turn| turn.state.as_str()).collect();
    assert_eq!(states, ["failed", "interrupted", "interrupted"]);
    assert!(turns[0].error.as_ref().unwrap().contains("provider error 500"));
    assert!(turns[1..].iter().all(|turn| turn.error.as_ref().is_some_and(|error| !error.is_empty())), "{turns:?}");

    assert_eq!(stop_reason(&stage.client().turn(&session_id, "D").unwrap()), "end_turn");
    let trace = stage.trace();
    assert_eq!((trace.count("session/new"), trace.count("session/resume")), (1, 2), "{:?}", trace.methods());
    let stored = stage.stored_updates(&session_id);
    let turns = stage.stored_turns(&session_id);
    for _ in 0..2 {
        stage.daemon.restart();
        assert_eq!(told(&history(&stage, &session_id)), [&expected[..], &["user: D", "agent: fine"]].concat());
        assert_eq!(
            (stage.stored_updates(&session_id), stage.stored_turns(&session_id)),
            (stored.clone(), turns.clone())
        );
    }
    assert_eq!(stage.trace().pids().len(), trace.pids().len(), "a load starts no agent");
}

/// Checks that a session has the agent process it had, that it heard `cancels` cancels, and that it takes a prompt.
fn check_usable(stage: &AcpStage, client: &mut AcpSocket, session_id: &str, cancels: usize) {
    assert_eq!(stop_reason(&client.turn(session_id, "plain").unwrap()), "end_turn");
    let trace = stage.trace();
    assert_eq!(trace.count("session/cancel"), cancels, "{:?}", trace.methods());
    // The first one was only asked who it is.
    let prompted: Vec<u32> = trace.with_method("session/prompt").iter().map(|entry| entry.pid).collect();
    assert!(prompted.windows(2).all(|pair| pair[0] == pair[1]), "one process: {prompted:?}");
}

fn cancel(client: &mut AcpSocket, session_id: &str) {
    client.notify("session/cancel", &json!({ "sessionId": session_id })).unwrap();
}

fn cancel_stage() -> AcpStage {
    AcpStage::start(|script, directory| {
        let ignores = vec![
            Step::IgnoreCancel,
            Step::Update(chunk("deaf")),
            Step::WaitForFile(directory.join("go")),
            Step::Update(chunk("done")),
        ];
        by_text(
            script,
            [
                ("run", vec![tool("t", "in_progress"), Step::Update(chunk("running")), Step::WaitForCancel]),
                ("ignore", ignores),
                ("plain", vec![Step::Update(chunk("ok"))]),
            ],
        );
    })
}

#[test]
fn a_running_turn_is_cancelled_once_however_often_it_is_asked() {
    let stage = cancel_stage();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "run").unwrap();
    client.wait_for_text("running").unwrap();
    cancel(&mut client, &session_id);
    cancel(&mut client, &session_id);
    assert_eq!(stop_reason(&client.wait_for_answer(prompt).unwrap()), "cancelled");
    assert_eq!(states(&stage, &session_id), ["cancelled"]);
    check_usable(&stage, &mut client, &session_id, 1);
    assert_eq!(told(&history(&stage, &session_id))[2..4], ["agent: running", "tool t: failed"]);
}

#[test]
fn a_cancel_of_nothing_does_nothing() {
    let stage = cancel_stage();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    client.turn(&session_id, "plain").unwrap();
    cancel(&mut client, &session_id);
    check_usable(&stage, &mut client, &session_id, 0);
}

#[test]
fn a_queued_prompt_is_cancelled_without_the_agent_and_without_the_running_one() {
    let stage = cancel_stage();
    let (mut first, mut second) = (stage.client(), stage.client());
    let session_id = first.open_session().unwrap();
    let running = first.prompt(&session_id, "run").unwrap();
    first.wait_for_text("running").unwrap();
    second.load(&session_id).unwrap();
    let queued = second.prompt(&session_id, "plain").unwrap();
    cancel(&mut second, &session_id);
    assert_eq!(stop_reason(&second.wait_for_answer(queued).unwrap()), "cancelled");
    assert_eq!(states(&stage, &session_id), ["running"]);
    assert_eq!(stage.trace().count("session/cancel"), 0);
    first.notify("$/cancel_request", &json!({ "requestId": running })).unwrap();
    assert_eq!(stop_reason(&first.wait_for_answer(running).unwrap()), "cancelled");
    check_usable(&stage, &mut first, &session_id, 1);
}

#[test]
fn of_two_prompts_of_one_client_the_one_that_is_named_is_cancelled() {
    let stage = cancel_stage();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let running = client.prompt(&session_id, "run").unwrap();
    client.wait_for_text("running").unwrap();
    let queued = client.prompt(&session_id, "plain").unwrap();
    client.notify("$/cancel_request", &json!({ "requestId": running })).unwrap();
    assert_eq!(stop_reason(&client.wait_for_answer(running).unwrap()), "cancelled");
    assert_eq!(stop_reason(&client.wait_for_answer(queued).unwrap()), "end_turn");
    check_usable(&stage, &mut client, &session_id, 1);
}

#[test]
fn an_agent_that_ignores_a_cancel_ends_its_turn_when_it_likes_and_is_not_ended() {
    let stage = cancel_stage();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "ignore").unwrap();
    client.wait_for_text("deaf").unwrap();
    cancel(&mut client, &session_id);
    cancel(&mut client, &session_id);
    stage.wait_for_trace(|trace| trace.count("session/cancel") == 1);
    let next = client.prompt(&session_id, "plain").unwrap();
    stage.touch("go");
    client.wait_for_answer(prompt).unwrap();
    assert_eq!(stop_reason(&client.wait_for_answer(next).unwrap()), "end_turn");
    assert_eq!(client.text(), "deafdoneok");
    check_usable(&stage, &mut client, &session_id, 1);
}

#[test]
fn an_agent_that_does_not_start_says_so() {
    let stage = AcpStage::start(|script, _| script.on_start = vec![Step::Exit(3)]);
    let error = format!("{:?}", stage.try_client().unwrap_err());
    assert!(error.contains("did not start"), "{error}");
}

#[test]
fn prompts_of_two_clients_take_turns_and_both_see_all() {
    let stage = AcpStage::start(|script, directory| {
        let go = |name: &str| Step::WaitForFile(directory.join(name));
        by_text(
            script,
            [
                ("one", vec![Step::Update(chunk("1a")), go("one"), Step::Update(chunk("1b"))]),
                ("two", vec![Step::Update(chunk("2"))]),
                ("three", vec![Step::Update(chunk("3a")), go("three"), Step::Update(chunk("3b"))]),
            ],
        );
    });
    let (mut first, mut second) = (stage.client(), stage.client());
    let session_id = first.open_session().unwrap();
    second.load(&session_id).unwrap();
    let one = first.prompt(&session_id, "one").unwrap();
    second.wait_for_text("1a").unwrap();
    let two = second.prompt(&session_id, "two").unwrap();
    // What a client sends is handled in order, so once this is answered the prompt waits in the session.
    second.call("session/list", &json!({})).unwrap();
    first.prompt(&session_id, "three").unwrap();
    assert_eq!(stage.trace().count("session/prompt"), 1);
    stage.touch("one");
    assert_eq!(stop_reason(&first.wait_for_answer(one).unwrap()), "end_turn");
    assert_eq!(stop_reason(&second.wait_for_answer(two).unwrap()), "end_turn");
    first.wait_for_text("3a").unwrap();
    // The one who asked leaves; the turn goes on and the other sees its end.
    assert_eq!(told(&first.updates()), ["agent: 1a1b", "user: two", "agent: 23a"]);
    drop(first);
    stage.touch("three");
    second.wait_for_text("3b").unwrap();
    // Nobody is sent their own prompts, so the agent's texts around one stand together.
    assert_eq!(told(&second.updates()), ["user: one", "agent: 1a1b2", "user: three", "agent: 3a3b"]);
    eventually(PATIENCE, || states(&stage, &session_id), |states| *states == ["ended"; 3]);
    let full = ["user: one", "agent: 1a1b", "user: two", "agent: 2", "user: three", "agent: 3a3b"];
    assert_eq!(told(&history(&stage, &session_id)), full);
    let turn =
        StoredTurn { number: 3, state: "ended".to_owned(), stop_reason: Some("end_turn".to_owned()), error: None };
    assert_eq!(stage.stored_turns(&session_id)[2], turn);
}

#[test]
fn a_close_in_mid_turn_ends_the_turn_and_the_process_and_the_next_prompt_resumes() {
    let stage = cancel_stage();
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let running = client.prompt(&session_id, "run").unwrap();
    client.wait_for_text("running").unwrap();
    let pids = stage.trace().pids();
    let closed = client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    assert!(closed["result"].is_object(), "{closed}");
    assert_eq!(stop_reason(&client.wait_for_answer(running).unwrap()), "cancelled");
    stage.wait_until_gone(&pids, Duration::from_secs(10));
    let trace = stage.trace();
    assert_eq!((trace.count("session/cancel"), trace.count("session/close")), (1, 1));
    let again = client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    assert!(again["result"].is_object(), "{again}");
    assert_eq!(stop_reason(&client.turn(&session_id, "plain").unwrap()), "end_turn");
    assert_eq!(stage.trace().count("session/resume"), 1);
}
