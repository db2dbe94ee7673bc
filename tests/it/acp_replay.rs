//! Loading a session shows its history once and in order, and leaves it as it is, whatever the agent replays.

use holdfast_tests::acp_stage::{AcpStage, told};
use holdfast_tests::fake_agent::{Replay, Script, Step, chunk, raw};
use serde_json::json;

/// Three turns: text, a tool with its result, text.
fn three_turns(script: &mut Script) {
    let tool = |status: &str, kind: &str| {
        let content = json!([{ "type": "content", "content": { "type": "text", "text": "42 files" } }]);
        Step::Update(raw(&json!({
            "sessionUpdate": kind, "toolCallId": "t1", "title": "Count", "status": status, "content": content,
        })))
    };
    let by_text = [
        ("u1", vec![Step::Update(chunk("a")), Step::Update(chunk("1"))]),
        (
            "u2",
            vec![tool("in_progress", "tool_call"), tool("completed", "tool_call_update"), Step::Update(chunk("a2"))],
        ),
        ("u3", vec![Step::Update(chunk("a3"))]),
        ("u4", vec![Step::Update(chunk("a4"))]),
    ];
    script.prompts_by_text = by_text.map(|(text, steps)| (text.to_owned(), steps)).into();
}

const HISTORY: [&str; 8] = [
    "user: u1",
    "agent: a1",
    "user: u2",
    "tool t1: in_progress",
    "tool t1: completed",
    "agent: a2",
    "user: u3",
    "agent: a3",
];

/// Makes the three turns and returns the session.
fn perform(stage: &AcpStage) -> String {
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    for text in ["u1", "u2", "u3"] {
        assert_eq!(client.turn(&session_id, text).unwrap()["result"]["stopReason"], "end_turn");
    }
    session_id
}

#[test]
fn a_load_shows_the_history_once_and_stores_nothing() {
    let mut stage = AcpStage::start(|script, _| three_turns(script));
    let session_id = perform(&stage);
    let stored = stage.stored_updates(&session_id);
    assert_eq!(stored.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    for _ in 0..3 {
        let (updates, answer) = stage.client().load(&session_id).unwrap();
        assert!(answer["result"].is_object(), "{answer}");
        assert_eq!(told(&updates), HISTORY);
        assert_eq!(updates[4]["content"][0]["content"]["text"], "42 files");
        assert_eq!(stage.stored_updates(&session_id), stored);
    }
    let mut resumed = stage.client();
    let (updates, answer) = resumed.resume(&session_id).unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(updates.len(), 0);

    stage.daemon.restart();
    let mut client = stage.client();
    let (updates, _) = client.load(&session_id).unwrap();
    assert_eq!(told(&updates), HISTORY);
    assert_eq!(stage.stored_updates(&session_id), stored);
    client.received.clear();
    assert_eq!(client.turn(&session_id, "u4").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(told(&client.updates()), ["agent: a4"]);
    let methods = stage.trace().methods();
    assert_eq!(methods.iter().filter(|method| *method == "session/new").count(), 1, "{methods:?}");
    assert_eq!(methods.last().unwrap(), "session/prompt");
    let (updates, _) = stage.client().load(&session_id).unwrap();
    assert_eq!(told(&updates), [&HISTORY[..], &["user: u4", "agent: a4"]].concat());
}

#[test]
fn an_unknown_session_is_an_error_and_an_empty_one_loads() {
    let stage = AcpStage::start(|_, _| {});
    let mut client = stage.client();
    let empty = client.open_session().unwrap();
    let (updates, answer) = stage.client().load(&empty).unwrap();
    assert!(updates.is_empty() && answer["result"].is_object(), "{answer}");
    for unknown in ["0199a3c2-0000-7000-8000-000000000001", "no id of ours"] {
        for method in ["session/load", "session/resume", "session/prompt"] {
            let params = json!({ "sessionId": unknown, "cwd": "/", "mcpServers": [], "prompt": [] });
            let answer = client.call(method, &params).unwrap();
            assert_eq!(answer["error"]["code"], -32002, "{method}: {answer}");
        }
    }
    let elsewhere = json!({ "sessionId": empty, "cwd": "/tmp", "mcpServers": [] });
    let answer = client.call("session/load", &elsewhere).unwrap();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("/tmp"), "{answer}");
}

/// Restarts the daemon, prompts once more, and checks that what the agent replays is not taken for new.
fn check_replay_is_dropped(south: &str, change: impl FnOnce(&mut Script)) {
    let mut stage = AcpStage::start(|script, _| {
        three_turns(script);
        change(script);
    });
    let session_id = perform(&stage);
    let stored = stage.stored_updates(&session_id);
    stage.daemon.restart();
    let mut client = stage.client();
    client.load(&session_id).unwrap();
    assert_eq!(client.turn(&session_id, "u4").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count(south), 1, "{:?}", stage.trace().methods());
    assert_eq!(stage.trace().count("session/new"), 1);
    let now = stage.stored_updates(&session_id);
    assert_eq!(now[..stored.len()], stored);
    let (updates, _) = stage.client().load(&session_id).unwrap();
    assert_eq!(told(&updates), [&HISTORY[..], &["user: u4", "agent: a4"]].concat());
}

/// A history as an agent tells it from its own memory: other ids, other cuts.
fn retold() -> Vec<Box<serde_json::value::RawValue>> {
    let update = |kind: &str, text: &str| {
        raw(&json!({
            "sessionUpdate": kind, "messageId": format!("again-{text}"), "content": { "type": "text", "text": text },
        }))
    };
    vec![
        update("user_message_chunk", "u1"),
        update("agent_message_chunk", "a1"),
        raw(
            &json!({ "sessionUpdate": "tool_call", "toolCallId": "t1-again", "title": "Count", "status": "completed" }),
        ),
        update("agent_message_chunk", "a3"),
    ]
}

fn only_load(script: &mut Script) {
    script.capabilities = Some(raw(&json!({ "loadSession": true })));
}

#[test]
fn what_an_agent_replays_before_its_answer_is_no_news() {
    check_replay_is_dropped("session/load", only_load);
}

#[test]
fn what_an_agent_replays_behind_its_answer_is_no_news() {
    check_replay_is_dropped("session/load", |script| {
        only_load(script);
        script.replay = Replay::After;
    });
}

#[test]
fn a_replay_with_other_ids_is_no_news() {
    check_replay_is_dropped("session/load", |script| {
        only_load(script);
        script.replay = Replay::After;
        script.replay_updates = Some(retold());
    });
}

#[test]
fn a_resume_that_replays_is_no_news() {
    check_replay_is_dropped("session/resume", |script| {
        script.resume_replays = true;
        script.replay_updates = Some(retold());
    });
}

#[test]
fn a_resume_that_replays_behind_its_answer_is_no_news() {
    check_replay_is_dropped("session/resume", |script| {
        script.resume_replays = true;
        script.replay = Replay::After;
        script.replay_updates = Some(retold());
    });
}

#[test]
fn a_load_while_a_turn_streams_has_no_gap_and_no_repeat() {
    const CHUNKS: usize = 400;
    let mut stage = AcpStage::start(|_, _| {});
    let numbers = (0..CHUNKS).flat_map(|number| {
        let pause = (number % 8 == 0).then_some(Step::DelayMs(2));
        pause.into_iter().chain([Step::Update(chunk(&format!("{number},")))])
    });
    stage.script.prompts = vec![numbers.collect()];
    stage.write_script();
    let mut first = stage.client();
    let session_id = first.open_session().unwrap();
    let prompt = first.prompt(&session_id, "count").unwrap();
    let expected: String = (0..CHUNKS).map(|number| format!("{number},")).collect();
    let mut joined = Vec::new();
    for number in (0..CHUNKS).step_by(40) {
        first.wait_for_text(&format!("{number},")).unwrap();
        let mut client = stage.client();
        let (_, answer) = client.load(&session_id).unwrap();
        assert!(answer["result"].is_object(), "{answer}");
        joined.push(client);
    }
    assert_eq!(first.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(first.text(), expected);
    for mut client in joined {
        client.wait_for_text(&format!("{},", CHUNKS - 1)).unwrap();
        assert_eq!(client.text(), expected);
    }
}
