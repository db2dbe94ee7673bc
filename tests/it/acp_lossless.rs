//! What an agent or a client says reaches the other end, the store and every later load byte for byte, session ids
//! excepted; what is no message of the protocol reaches nobody.

use std::fs;
use std::time::{Duration, Instant};

use holdfast_tests::acp_socket::AcpSocket;
use holdfast_tests::acp_stage::{AcpStage, is_alive};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Outcome, Script, Step, Trace, chunk, raw};
use holdfast_tests::lock_holder::LockHolder;
use holdfast_tests::processes::resident_bytes;
use serde_json::json;
use serde_json::value::RawValue;

/// The agent's own id of its first session.
const AGENT_ID: &str = "agent \"1\"";

/// `update` objects that a reader which does more than carry them would change, or stumble over.
const ODD_UPDATES: [&str; 12] = [
    r#"{"z":1,"sessionUpdate":"brand_new_kind","a":[ 1, {"y":2,"b":3} ],"big":9007199254740993}"#,
    r#"{"sessionUpdate":"_vendor_kind","params":{"sessionId":"agent \"1\""}}"#,
    r#"{"sessionUpdate":"_vendor/slashed","text":"looks like a method"}"#,
    r#"{"sessionUpdate":"tool_call","toolCallId":"t1","title":"Work","status":"on_hold","kind":"teleport","locations":null}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","rawOutput":{"n":-9223372036854775809,"f":1.50e+3,"g":0.10000000000000000001}}"#,
    r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"  two  spaces\ttab \\u00e9 é \ud83d\ude00 😀 \/ \u0000 "},"_meta":{"vendor":{"n":12345678901234567890}},"future":null}"#,
    r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"hologram","data":[[]],"text":{}}}"#,
    r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"half \ud800 a pair"}}"#,
    r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"a","text":"b"},"content":{"type":"text","text":"c"}}"#,
    r#"{ "sessionUpdate" : "plan" , "entries" : [ ] , "huge" : 1e999 , "":"", "\u006bey":-0 }"#,
    r#"{"sessionUpdate":"available_commands_update","availableCommands":"not a list"}"#,
    r#"{"\u0073essionUpdate":"config_option_update","configOptions":[{"type":"slider","value":1E400}]}"#,
];

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// A stage whose agent does `turns`, each for the prompt of its text.
fn stage<const N: usize>(turns: [(&str, Vec<Step>); N]) -> AcpStage {
    AcpStage::start(|script: &mut Script, _| {
        script.session_ids = vec![AGENT_ID.to_owned()];
        script.prompts_by_text = turns.map(|(text, steps)| (text.to_owned(), steps)).into();
    })
}

/// Returns the lines a client received that hold `method`, byte for byte.
fn lines_with<'a>(client: &'a AcpSocket, method: &str) -> Vec<&'a str> {
    let member = format!("\"method\":\"{method}\"");
    client.received.iter().filter(|line| line.contains(&member)).map(String::as_str).collect()
}

fn update_line(session_id: &str, update: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session_id}","update":{update}}}}}"#
    )
}

/// Returns the frames with `member` in them that the agent received.
fn received(trace: &Trace, member: &str) -> Vec<String> {
    let frames = trace.entries.iter().filter_map(|entry| entry.frame.as_ref());
    frames.map(|frame| frame.get().to_owned()).filter(|frame| frame.contains(member)).collect()
}

#[test]
fn updates_keep_every_byte_live_in_the_store_on_load_and_after_a_restart() {
    let mut stage = stage([("odd", ODD_UPDATES.map(|update| Step::Update(json(update))).into())]);
    let (mut client, mut viewer) = (stage.client(), stage.client());
    let session_id = client.open_session().unwrap();
    viewer.load(&session_id).unwrap();
    let block = r#"{"type":"text","text":"odd", "annotations":{"n":9007199254740993,"a":1},"_meta":{"x":[ ]}}"#;
    let prompt = format!(
        r#"{{"jsonrpc":"2.0","id":"p/1","method":"session/prompt","params":{{ "prompt" : [{{"type":"hologram"}}, {block} ],"sessionId":"{session_id}","_meta":{{"big":9007199254740993}} }}}}"#
    );
    client.send_bytes(format!("{prompt}\n").as_bytes()).unwrap();
    client.wait_for("the turn's end", |frame| frame["id"] == "p/1").unwrap();

    let to_the_agent = received(&stage.trace(), "session/prompt");
    assert_eq!(to_the_agent.len(), 1);
    let params = prompt.split_once("\"params\":").unwrap().1.replace(&session_id, "agent \\\"1\\\"");
    assert!(to_the_agent[0].ends_with(&params), "{} lacks {params}", to_the_agent[0]);

    let of_the_agent: Vec<String> = ODD_UPDATES.iter().map(|update| update_line(&session_id, update)).collect();
    let of_the_user = [r#"{"type":"hologram"}"#, block].map(|block| {
        update_line(&session_id, &format!(r#"{{"sessionUpdate":"user_message_chunk","content":{block}}}"#))
    });
    let all = [&of_the_user[..], &of_the_agent].concat();
    assert_eq!(lines_with(&client, "session/update"), of_the_agent);
    viewer.wait_for_line("the last update", |line| line == all.last().unwrap()).unwrap();
    assert_eq!(lines_with(&viewer, "session/update"), all);
    let check_history = |stage: &AcpStage| {
        let stored = stage.stored_updates(&session_id);
        assert_eq!(stored.len(), all.len());
        for ((seq, params), line) in stored.iter().zip(&all) {
            assert_eq!(line.split_once("\"params\":").unwrap().1, format!("{params}}}"), "at {seq}");
        }
        let mut later = stage.client();
        later.load(&session_id).unwrap();
        assert_eq!(lines_with(&later, "session/update"), all);
    };
    check_history(&stage);
    stage.daemon.restart();
    check_history(&stage);
    stage.daemon.kill9();
    stage.daemon.boot();
    check_history(&stage);
}

#[test]
fn answers_keep_every_byte() {
    let result =
        r#"{"z":0,"stopReason":"quantum_stop","usage":{"outputTokens":9007199254740993},"_meta":{"b":1,"a":[ ]}}"#;
    let stage = stage([("result", vec![Step::End(Outcome::Result(json(result)))])]);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "result").unwrap();
    client.wait_for_answer(prompt).unwrap();
    assert_eq!(client.received.last().unwrap(), &format!(r#"{{"jsonrpc":"2.0","id":{prompt},"result":{result}}}"#));
    let turn = &stage.stored_turns(&session_id)[0];
    assert_eq!((turn.state.as_str(), turn.stop_reason.as_deref()), ("ended", Some("quantum_stop")));
}

#[test]
fn extensions_of_the_agent_reach_clients_and_their_answers_the_agent() {
    let told = r#"{"b":1,"sessionId":"agent \"1\"","a":{"sessionId":"agent \"1\""},"n":9007199254740993}"#;
    let asked = r#"{"q":"a  b","sessionId":"agent \"1\"","n":9007199254740993}"#;
    let notify = |method: &str, params: &str| Step::Notification(method.to_owned(), json(params));
    let stage = stage([
        (
            "tell",
            vec![
                notify("_vendor/told", told),
                notify("_vendor/list", "[1, 2.0]"),
                Step::Noise(r#"{"jsonrpc":"2.0","method":"_vendor/bare"}"#.to_owned()),
                notify("future/thing", r#"{"x":1}"#),
                Step::Update(chunk("told")),
            ],
        ),
        ("ask", vec![Step::Request("_vendor/ask".to_owned(), json(asked)), Step::Update(chunk("answered"))]),
    ]);
    let (mut client, mut viewer) = (stage.client(), stage.client());
    let session_id = client.open_session().unwrap();
    viewer.load(&session_id).unwrap();
    client.turn(&session_id, "tell").unwrap();
    viewer.wait_for_text("told").unwrap();
    let north = |params: &str| params.replacen("agent \\\"1\\\"", &session_id, 1);
    for one in [&client, &viewer] {
        let line = |method: &str, params: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"{params}}}"#);
        let with_params = |params: &str| format!(",\"params\":{params}");
        assert_eq!(lines_with(one, "_vendor/told"), [line("_vendor/told", &with_params(&north(told)))]);
        assert_eq!(lines_with(one, "_vendor/list"), [line("_vendor/list", &with_params("[1, 2.0]"))]);
        assert_eq!(lines_with(one, "_vendor/bare"), [line("_vendor/bare", "")]);
        assert_eq!(lines_with(one, "future/thing"), [line("future/thing", &with_params(r#"{"x":1}"#))]);
    }
    // They are no history of the conversation: whoever comes later is not told again.
    let mut later = stage.client();
    let (updates, _) = later.load(&session_id).unwrap();
    assert_eq!(updates.len(), 2, "{updates:?}");
    assert!(later.received.iter().all(|line| !line.contains("vendor") && !line.contains("future")));

    // Only whoever prompted is asked.
    let outcomes = [
        r#""result":{"sessionId":"OURS","deep":{"sessionId":"OURS"},"n":9007199254740993,"a":[ ]}"#,
        r#""error":{"code":-32601,"message":"not here","data":{"n":9007199254740993,"z":1,"a":2}}"#,
    ];
    for outcome in outcomes {
        client.received.clear();
        let prompt = client.prompt(&session_id, "ask").unwrap();
        let question = client.wait_for("the question", |frame| frame["method"] == "_vendor/ask").unwrap();
        assert!(lines_with(&client, "_vendor/ask")[0].ends_with(&format!("\"params\":{}}}", north(asked))));
        let outcome = outcome.replace("OURS", &session_id);
        client.send_bytes(format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{outcome}}}\n", question["id"]).as_bytes()).unwrap();
        client.wait_for_answer(prompt).unwrap();
        let answers = received(&stage.trace(), &outcome[..8]);
        let expected = outcome.replacen(&session_id, "agent \\\"1\\\"", 1);
        assert!(answers.last().unwrap().ends_with(&format!("{expected}}}")), "{answers:?} lack {expected}");
    }
    viewer.call("session/list", &json!({})).unwrap();
    assert!(lines_with(&viewer, "_vendor/ask").is_empty());
}

#[test]
fn an_extension_that_nobody_can_answer_is_refused_and_one_taken_back_is_withdrawn() {
    let wait = |name: &str, directory: &std::path::Path| Step::WaitForFile(directory.join(name));
    let stage = AcpStage::start(|script, directory| {
        let ask = || Step::Request("_vendor/ask".to_owned(), json("{}"));
        let from_start = Step::Noise(r#"{"jsonrpc":"2.0","id":"early","method":"_vendor/early"}"#.to_owned());
        script.on_start = vec![from_start];
        let take_back = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"mine"}}"#;
        script.prompts_by_text = [
            ("leave", vec![ask(), Step::Update(chunk("went on"))]),
            (
                "take back",
                vec![
                    Step::Noise(r#"{"jsonrpc":"2.0","id":"mine","method":"_vendor/ask"}"#.to_owned()),
                    wait("asked", directory),
                    Step::Noise(take_back.to_owned()),
                ],
            ),
        ]
        .map(|(text, steps)| (text.to_owned(), steps))
        .into();
    });
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    // It asks before it has a session, when no client is there.
    let refused = stage.wait_for_trace(|trace| !received(trace, "\"id\":\"early\"").is_empty());
    assert!(received(&refused, "\"id\":\"early\"")[0].contains("-32601"));

    let prompt = client.prompt(&session_id, "take back").unwrap();
    let question = client.wait_for("the question", |frame| frame["method"] == "_vendor/ask").unwrap();
    stage.touch("asked");
    let withdrawn = client.wait_for("the withdrawal", |frame| frame["method"] == "$/cancel_request").unwrap();
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    client.wait_for_answer(prompt).unwrap();
    let answers = received(&stage.wait_for_trace(|trace| !received(trace, "\"id\":\"mine\"").is_empty()), "\"mine\"");
    assert!(answers[0].contains("-32800"), "{answers:?}");
    assert!(stage.stored_updates(&session_id).iter().all(|(_, params)| !params.contains("requestId")));

    client.received.clear();
    client.prompt(&session_id, "leave").unwrap();
    client.wait_for("the question", |frame| frame["method"] == "_vendor/ask").unwrap();
    drop(client);
    let ended = |turns: &Vec<_>| turns.len() == 2 && stage.stored_turns(&session_id)[1].state == "ended";
    eventually(PATIENCE, || stage.stored_turns(&session_id), ended);
}

#[test]
fn extensions_of_a_client_reach_the_agent_and_come_back() {
    let stage = stage([]);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let params =
        format!(r#"{{"z":[ ],"sessionId":"{session_id}","in":{{"sessionId":"{session_id}"}},"n":9007199254740993}}"#);
    let south = params.replacen(&session_id, "agent \\\"1\\\"", 1);
    client
        .send_bytes(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"_vendor/note\",\"params\":{params}}}\n").as_bytes())
        .unwrap();
    client
        .send_bytes(
            format!("{{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":\"_vendor/echo\",\"params\":{params}}}\n").as_bytes(),
        )
        .unwrap();
    client.wait_for("the echo", |frame| frame["id"] == 77).unwrap();
    assert_eq!(client.received.last().unwrap(), &format!(r#"{{"jsonrpc":"2.0","id":77,"result":{params}}}"#));
    let trace = stage.wait_for_trace(|trace| trace.count("_vendor/note") == 1);
    assert_eq!(
        received(&trace, "_vendor/note"),
        [format!(r#"{{"jsonrpc":"2.0","method":"_vendor/note","params":{south}}}"#)]
    );
    assert!(received(&trace, "_vendor/echo")[0].ends_with(&format!("\"params\":{south}}}")));
}

#[test]
fn noise_is_counted_and_never_answered() {
    const NOISE: [&str; 8] = [
        "Loading model...",
        "",
        "{broken",
        "[1,2]",
        r#"{"id":5,"foo":1}"#,
        r#"{"jsonrpc":"1.0","id":6,"method":"session/update"}"#,
        r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#,
        "null",
    ];
    let mut steps: Vec<Step> = NOISE.iter().map(|line| Step::Noise((*line).to_owned())).collect();
    steps.push(Step::Update(chunk("clear")));
    let stage = stage([("noisy", steps)]);
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    assert_eq!(client.turn(&session_id, "noisy").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(client.text(), "clear");
    let methods = stage.trace().methods();
    assert_eq!(methods.last().unwrap(), "session/prompt");
    let requests = stage.trace().entries.iter().filter(|entry| entry.frame.is_some()).count();
    assert_eq!(methods.len(), requests, "what is no request was answered");
    let logged = || fs::read_to_string(stage.daemon.root.trace_file()).unwrap();
    let counted = |text: &String| text.contains("no ACP messages") && text.contains("\"lines\":4");
    eventually(PATIENCE, logged, counted);
}

#[test]
fn a_line_over_the_limit_fails_its_turn_and_the_memory_comes_back() {
    const OVER_BYTES: usize = 65 * 1024 * 1024;
    let large = "x".repeat(17 * 1024 * 1024);
    let over = Step::NoiseBytes(OVER_BYTES);
    let stage = stage([
        (
            "over",
            vec![
                Step::Update(json(r#"{"sessionUpdate":"tool_call","toolCallId":"t","title":"W","status":"pending"}"#)),
                over.clone(),
                Step::Noise(String::new()),
                Step::WaitForCancel,
            ],
        ),
        // Its answer is what is lost, and it does not care for cancels.
        ("over and out", vec![Step::IgnoreCancel, over, Step::Noise(String::new()), Step::Hang]),
        ("large", vec![Step::Update(chunk(&large))]),
    ]);
    let (mut client, mut other) = (stage.client(), stage.client());
    let session_id = client.open_session().unwrap();
    let unharmed = other.open_session().unwrap();
    client.turn(&session_id, "before").unwrap();
    let before = resident_bytes(stage.daemon.pid());
    for (text, number) in [("over", 1), ("over and out", 2)] {
        let failed = client.turn(&session_id, text).unwrap();
        assert_eq!(failed["error"]["code"], -32010, "{failed}");
        assert_eq!(failed["error"]["data"]["kind"], "too_large", "{failed}");
        let turn = &stage.stored_turns(&session_id)[number];
        assert_eq!(turn.state, "failed");
        assert!(turn.error.as_ref().unwrap().contains("67108864 bytes"), "{turn:?}");
    }
    assert!(stage.stored_updates(&session_id).iter().any(|(_, params)| params.contains("\"failed\"")), "t is open");
    assert_eq!(stage.trace().count("session/cancel"), 2);
    assert_eq!(other.turn(&unharmed, "other").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(client.turn(&session_id, "after").unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(stage.trace().count("session/new"), 2, "no agent was replaced");
    let room = 32 * 1024 * 1024;
    eventually(PATIENCE, || resident_bytes(stage.daemon.pid()), |now| *now < before + room);

    // What is large and under the limit passes whole, although it is more than may be on its way at once.
    client.received.clear();
    client.turn(&session_id, "large").unwrap();
    assert!(client.text() == large, "{} bytes came", client.text().len());
    let mut later = stage.client();
    later.load(&session_id).unwrap();
    assert!(later.text().ends_with(&large), "{} bytes came", later.text().len());
}

#[test]
fn what_an_agent_says_before_it_ends_is_stored_however_slow_the_store_is() {
    // More than a session takes before the store has it; the rest fits into the pipe of an agent that has gone.
    const UPDATES: usize = 2_048 + 300;
    let last = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"agent \"1\"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"last"}}}}"#;
    let stage = AcpStage::start(|script, directory| {
        script.session_ids = vec![AGENT_ID.to_owned()];
        let steps = vec![
            Step::Update(chunk("first")),
            Step::WaitForFile(directory.join("go")),
            Step::Repeat(UPDATES, vec![Step::Update(raw(&json!({ "sessionUpdate": "tick" })))]),
            // The last line lacks its newline.
            Step::Text(last.to_owned()),
            Step::Exit(0),
        ];
        script.prompts_by_text = [("burst".to_owned(), steps)].into();
    });
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let prompt = client.prompt(&session_id, "burst").unwrap();
    client.wait_for_text("first").unwrap();
    let agent = *stage.trace().pids().last().unwrap();
    let holder = LockHolder::take(&stage.daemon.root.acp_sessions_database());
    stage.touch("go");
    eventually(PATIENCE, || is_alive(agent), |alive| !alive);
    // How long the store is slow is what is tested: longer than a reader waits for a silent pipe.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    holder.release();
    let answer = client.wait_for_answer(prompt).unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "agent_failed", "{answer}");
    assert_eq!(client.updates().len(), UPDATES + 2);
    assert_eq!(client.text(), "firstlast");
    assert_eq!(stage.stored_updates(&session_id).len(), UPDATES + 3);
}
