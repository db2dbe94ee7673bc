//! Permission requests: the policy first, then whoever is attached, then the rule for when nobody is.

use holdfast_tests::acp_socket::AcpSocket;
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Permission, Step, chunk, raw};
use serde_json::{Value, json};

/// A turn that asks and says what it was told.
fn asks(kind: &str) -> Vec<Step> {
    let options = json!([
        { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
        { "optionId": "always", "name": "Always", "kind": "allow_always" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ]);
    let then = ["yes", "always", "no", "cancelled", "error"]
        .map(|choice| (choice.to_owned(), vec![Step::Update(chunk(&format!("<{choice}>")))]));
    vec![
        Step::Update(chunk("asking")),
        Step::Permission(Permission {
            tool_call: raw(&json!({ "toolCallId": "t", "title": "Do", "kind": kind })),
            options: raw(&options),
            then: then.into(),
        }),
    ]
}

fn stage(settings: &str) -> AcpStage {
    AcpStage::start_with(settings, |script, directory| {
        let wait = [vec![Step::WaitForFile(directory.join("alone"))], asks("edit")].concat();
        script.prompts_by_text = [
            ("edit", asks("edit")),
            ("read", asks("read")),
            ("later", wait),
            ("plain", vec![Step::Update(chunk("ok"))]),
        ]
        .map(|(text, steps)| (text.to_owned(), steps))
        .into();
    })
}

fn question(client: &mut AcpSocket) -> Value {
    client.wait_for("a question", |frame| frame["method"] == "session/request_permission").unwrap()
}

fn answer(client: &mut AcpSocket, question: &Value, outcome: &Value) {
    let frame = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } });
    client.send(&frame).unwrap();
}

#[test]
fn a_policy_answers_for_everybody() {
    for (policy, edit, read) in
        [("allow_all", "<yes>", "<yes>"), ("deny_all", "<no>", "<no>"), ("allow_reads", "ask", "<yes>")]
    {
        let stage = stage(&format!("permissions.policy = \"{policy}\""));
        let mut client = stage.client();
        let session_id = client.open_session().unwrap();
        for (kind, expected) in [("edit", edit), ("read", read)] {
            client.received.clear();
            let prompt = client.prompt(&session_id, kind).unwrap();
            if expected == "ask" {
                let asked = question(&mut client);
                assert_eq!(asked["params"]["sessionId"], session_id.as_str());
                answer(&mut client, &asked, &json!({ "outcome": "selected", "optionId": "always" }));
            }
            client.wait_for_answer(prompt).unwrap();
            let expected = if expected == "ask" { "<always>" } else { expected };
            assert_eq!(client.text(), format!("asking{expected}"), "{policy} {kind}");
        }
    }
}

#[test]
fn the_first_answer_counts_and_the_others_are_told_that_it_is_over() {
    let stage = stage("");
    let (mut first, mut second) = (stage.client(), stage.client());
    let session_id = first.open_session().unwrap();
    second.load(&session_id).unwrap();
    let prompt = first.prompt(&session_id, "edit").unwrap();
    let (asked, asked_too) = (question(&mut first), question(&mut second));
    answer(&mut second, &asked_too, &json!({ "outcome": "selected", "optionId": "yes" }));
    let withdrawn = first.wait_for("the withdrawal", |frame| frame["method"] == "$/cancel_request").unwrap();
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    // Too late: it changes nothing.
    answer(&mut first, &asked, &json!({ "outcome": "selected", "optionId": "no" }));
    assert_eq!(first.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(first.text(), "asking<yes>");
    second.wait_for_text("<yes>").unwrap();
    assert!(!second.received.iter().any(|line| line.contains("$/cancel_request")));
    assert_eq!(first.received.iter().filter(|line| line.contains("$/cancel_request")).count(), 1);
}

#[test]
fn a_question_asked_earlier_reaches_a_client_that_comes_later() {
    let stage = stage("permissions.unattended = \"wait\"");
    let mut first = stage.client();
    let session_id = first.open_session().unwrap();
    first.prompt(&session_id, "edit").unwrap();
    question(&mut first);
    drop(first);
    let mut second = stage.client();
    second.load(&session_id).unwrap();
    let asked = question(&mut second);
    answer(&mut second, &asked, &json!({ "outcome": "selected", "optionId": "yes" }));
    second.wait_for_text("<yes>").unwrap();
}

#[test]
fn nobody_attached_means_no_and_not_cancelled() {
    let stage = stage("");
    for (text, leave_when_asked) in [("later", false), ("edit", true)] {
        let mut client = stage.client();
        let session_id = client.open_session().unwrap();
        client.prompt(&session_id, text).unwrap();
        if leave_when_asked {
            question(&mut client);
        } else {
            // The prompt is with the agent, which asks only when nobody is there any more.
            stage.wait_for_trace(|trace| trace.count("session/prompt") > 0);
        }
        drop(client);
        stage.touch("alone");
        let ended = |turns: &Vec<holdfast_tests::acp_stage::StoredTurn>| turns.iter().any(|turn| turn.state == "ended");
        eventually(PATIENCE, || stage.stored_turns(&session_id), ended);
        let mut client = stage.client();
        client.load(&session_id).unwrap();
        assert_eq!(client.text(), "asking<no>", "{text}");
    }
}

#[test]
fn a_closed_dialog_is_a_no_and_a_cancelled_turn_answers_cancelled() {
    let stage = stage("");
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "edit").unwrap();
    let asked = question(&mut client);
    answer(&mut client, &asked, &json!({ "outcome": "cancelled" }));
    client.wait_for_answer(prompt).unwrap();
    assert_eq!(client.text(), "asking<no>");

    client.received.clear();
    let prompt = client.prompt(&session_id, "edit").unwrap();
    question(&mut client);
    client.notify("session/cancel", &json!({ "sessionId": session_id })).unwrap();
    assert_eq!(client.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(client.text(), "asking");
    let trace = stage.trace();
    assert_eq!(trace.count("session/cancel"), 1);
    let answers: Vec<Value> = trace.entries.iter().filter_map(|entry| entry.at("/result/outcome")).collect();
    assert_eq!(
        answers,
        [json!({ "outcome": "selected", "optionId": "no" }), json!({ "outcome": "cancelled" })],
        "every question is answered once"
    );
    assert_eq!(client.turn(&session_id, "plain").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(trace.pids(), stage.trace().pids());
}

#[test]
fn a_question_that_no_client_can_answer_goes_by_the_rule_for_unattended_turns() {
    let stage = stage("");
    let (mut first, mut second) = (stage.client(), stage.client());
    let session_id = first.open_session().unwrap();
    second.load(&session_id).unwrap();
    let prompt = first.prompt(&session_id, "edit").unwrap();
    for client in [&mut first, &mut second] {
        let asked = question(client);
        let error = json!({ "code": -32601, "message": "no dialogs here" });
        client.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error })).unwrap();
    }
    assert_eq!(first.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(first.text(), "asking<no>");

    // One can't, and the other, who could, leaves.
    first.received.clear();
    second.received.clear();
    let prompt = first.prompt(&session_id, "edit").unwrap();
    question(&mut second);
    let asked = question(&mut first);
    let error = json!({ "code": -32601, "message": "no dialogs here" });
    first.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error })).unwrap();
    first.call("session/list", &json!({})).unwrap();
    drop(second);
    assert_eq!(first.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(first.text(), "asking<no>");
}
