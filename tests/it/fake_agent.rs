//! The fake agent does what scripts say: other tests build on that.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_actors::process::{ProcTable, ProcessTable};
use holdfast_tests::acp_client::{AcpClient, LIMIT};
use holdfast_tests::fake_agent::{Entry, Outcome, Permission, Replay, Script, Spawn, Step, Trace, chunk, raw};
use serde_json::json;
use serde_json::value::RawValue;
use tempfile::TempDir;

/// A script in a directory of its own, and the trace beside it.
struct Stage {
    directory: TempDir,
    script: Script,
}

impl Stage {
    fn new(change: impl FnOnce(&mut Script)) -> Self {
        let directory = TempDir::new().unwrap();
        let mut script = Script { trace: Some(directory.path().join("trace")), ..Script::default() };
        change(&mut script);
        Self { directory, script }
    }

    fn prompts(steps: Vec<Step>) -> Self {
        Self::new(|script| script.prompts = vec![steps])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self) -> AcpClient {
        let path = self.path("script");
        self.script.write_to(&path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fake-agent"));
        command.arg(path);
        AcpClient::start(command).unwrap()
    }

    fn trace(&self) -> Trace {
        Trace::read_from(&self.path("trace")).unwrap()
    }

    fn wait_for_trace(&self, wanted: impl Fn(&Trace) -> bool) -> Trace {
        let end = Instant::now() + LIMIT;
        loop {
            let trace = self.trace();
            if wanted(&trace) {
                return trace;
            }
            assert!(Instant::now() < end, "not in the trace: {trace:#?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn without_a_script_it_is_a_good_agent() {
    let stage = Stage::new(|_| {});
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    let id = client.prompt(&session_id, "hi").unwrap();
    assert_eq!(client.wait_for_answer(id).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(client.text(), "ok");
    client.close_input();
    assert!(client.wait_for_exit().unwrap().success());
    let trace = stage.trace();
    assert_eq!(trace.methods(), ["initialize", "session/new", "session/prompt"]);
    assert_eq!(trace.pids(), [client.pid()]);
    assert_eq!(trace.entries.last().unwrap().event, "end_of_input");
}

#[test]
fn updates_and_extensions_keep_every_byte() {
    let update = r#"{"sessionUpdate":"brand_new", "n":9007199254740993,"z":1,"a":1.50}"#;
    let stage = Stage::prompts(vec![Step::Update(RawValue::from_string(update.to_owned()).unwrap())]);
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    let id = client.prompt(&session_id, "x").unwrap();
    client.wait_for_answer(id).unwrap();
    assert!(client.received.iter().any(|line| line.contains(update)), "{:#?}", client.received);
    client
        .send_bytes(
            b"{\"jsonrpc\":\"2.0\",\"id\":9007199254740993,\"method\":\"_x/y\",\"params\":{\"b\":1.0,\"a\":2}}\n",
        )
        .unwrap();
    client.wait_for("the extension's answer", |frame| frame["result"]["a"] == 2).unwrap();
    let expected = r#"{"jsonrpc":"2.0","id":9007199254740993,"result":{"b":1.0,"a":2}}"#;
    assert_eq!(client.received.last().unwrap(), expected);
    let frame = stage.trace().with_method("_x/y")[0].frame.clone().unwrap();
    assert!(frame.get().ends_with(r#"{"b":1.0,"a":2}}"#));
}

#[test]
fn a_permission_answer_decides_how_the_turn_goes_on() {
    let ask = Step::Permission(Permission {
        tool_call: raw(&json!({ "toolCallId": "t1", "kind": "edit" })),
        options: raw(&json!([{ "optionId": "y", "name": "Yes", "kind": "allow_once" }])),
        then: [("y".to_owned(), vec![Step::Update(chunk("did it"))])].into(),
    });
    let stage = Stage::prompts(vec![ask]);
    for (result, text) in [
        (json!({ "outcome": { "outcome": "selected", "optionId": "y" } }), "did it"),
        (json!({ "outcome": { "outcome": "cancelled" } }), ""),
    ] {
        let mut client = stage.start();
        let session_id = client.new_session().unwrap();
        let id = client.prompt(&session_id, "x").unwrap();
        let question =
            client.wait_for("the question", |frame| frame["method"] == "session/request_permission").unwrap();
        assert_eq!(question["params"]["sessionId"], session_id.as_str());
        client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).unwrap();
        client.wait_for_answer(id).unwrap();
        assert_eq!(client.text(), text);
    }
}

#[test]
fn cancels_end_a_turn_unless_they_are_ignored() {
    let stage = Stage::new(|script| {
        script.prompts = vec![
            vec![Step::Update(chunk("a")), Step::WaitForCancel, Step::Update(chunk("never"))],
            vec![Step::IgnoreCancel, Step::Update(chunk("b")), Step::WaitForCancel, Step::Update(chunk("c"))],
        ];
    });
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    for (text, stop_reason) in [("a", "cancelled"), ("abc", "end_turn")] {
        let id = client.prompt(&session_id, "x").unwrap();
        let last = text.chars().nth(usize::from(text.len() > 1)).unwrap().to_string();
        client.wait_for("the text", |frame| frame["params"]["update"]["content"]["text"] == last.as_str()).unwrap();
        client.notify("session/cancel", &json!({ "sessionId": session_id })).unwrap();
        assert_eq!(client.wait_for_answer(id).unwrap()["result"]["stopReason"], stop_reason);
        assert_eq!(client.text(), text);
    }
    assert_eq!(stage.trace().count("session/cancel"), 2);
}

#[test]
fn it_dies_in_every_way_and_a_new_one_knows_the_history() {
    for (death, signal, code) in
        [(Step::Exit(7), None, Some(7)), (Step::Abort, Some(libc::SIGABRT), None), (Step::KillSelf, Some(9), None)]
    {
        let stage = Stage::new(|script| {
            script.prompts = vec![vec![Step::Update(chunk("last words")), death]];
        });
        let mut stage = stage;
        stage.script.state = Some(stage.path("state"));
        let mut client = stage.start();
        let session_id = client.new_session().unwrap();
        client.prompt(&session_id, "die").unwrap();
        let status = client.wait_for_exit().unwrap();
        assert_eq!((status.code(), std::os::unix::process::ExitStatusExt::signal(&status)), (code, signal));

        let mut client = stage.start();
        client.call("initialize", &json!({ "protocolVersion": 1 })).unwrap();
        let params = json!({ "sessionId": session_id, "cwd": "/", "mcpServers": [] });
        client.call("session/load", &params).unwrap();
        let kinds: Vec<_> = client.updates().iter().map(|update| update["sessionUpdate"].clone()).collect();
        assert_eq!(kinds, ["user_message_chunk", "agent_message_chunk"]);
        let unknown = json!({ "sessionId": "other", "cwd": "/", "mcpServers": [] });
        assert_eq!(client.call("session/resume", &unknown).unwrap()["error"]["code"], -32002);
        assert_eq!(stage.trace().pids().len(), 2);
    }
}

#[test]
fn a_replay_comes_before_or_after_the_answer_or_never() {
    for (replay, order) in [
        (Replay::Before, &["update", "answer", "update"][..]),
        (Replay::After, &["answer", "update", "update"]),
        (Replay::Never, &["answer", "update"]),
    ] {
        let stage = Stage::new(|script| {
            script.replay = replay;
            script.replay_updates = Some(vec![chunk("old")]);
            script.on_opened_session = vec![Step::Update(chunk("end"))];
        });
        let mut client = stage.start();
        client.call("initialize", &json!({ "protocolVersion": 1 })).unwrap();
        client.received.clear();
        client.request("session/load", &json!({ "sessionId": "s", "cwd": "/", "mcpServers": [] })).unwrap();
        client.wait_for("the end", |frame| frame["params"]["update"]["content"]["text"] == "end").unwrap();
        let seen: Vec<&str> = client
            .received
            .iter()
            .map(|line| if line.contains("session/update") { "update" } else { "answer" })
            .collect();
        assert_eq!(seen, order, "{replay:?}");
    }
}

#[test]
fn noise_and_huge_lines_come_out_as_told() {
    let stage = Stage::new(|script| {
        script.on_start = vec![Step::Noise("Welcome!".to_owned())];
        script.prompts = vec![vec![
            Step::Repeat(2, vec![Step::Noise("{broken".to_owned())]),
            Step::HugeUpdateBytes(3_000_000),
            Step::NoiseBytes(5),
            Step::End(Outcome::Error(raw(&json!({ "code": -32000, "message": "sign in" })))),
        ]];
    });
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    let id = client.prompt(&session_id, "x").unwrap();
    let ended = |frame: &serde_json::Value| {
        frame["params"]["update"]["content"]["text"].as_str().is_some_and(|text| text.len() == 3_000_000)
    };
    client.wait_for("the huge update", ended).unwrap();
    // This noise has no newline, so the answer stands behind it on the same line.
    let answer = format!(r#"aaaaa{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"sign in"}}}}"#);
    client.wait_for_line("the answer behind the noise", |line| line == answer).unwrap();
    assert_eq!(client.received.iter().filter(|line| *line == "{broken").count(), 2);
    assert!(client.received.contains(&"Welcome!".to_owned()));
}

#[test]
fn children_are_started_as_told_and_named_in_the_trace() {
    let stage = Stage::prompts(vec![
        Step::Spawn(Spawn {
            command: "exec sleep 60".to_owned(),
            setsid: true,
            clear_environment: true,
            ..Spawn::default()
        }),
        Step::Spawn(Spawn { command: "exec sleep 60".to_owned(), ..Spawn::default() }),
    ]);
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    client.prompt(&session_id, "x").unwrap();
    let trace = stage.wait_for_trace(|trace| trace.children().len() == 2);
    let [own, other] = [0, 1].map(|child| ProcTable.stat(trace.children()[child].cast_signed()).unwrap().unwrap());
    assert_eq!(own.pid, own.session_id);
    assert_ne!(other.pid, other.session_id);
    for pid in [own.pid, other.pid] {
        let handle = ProcTable.open(pid).unwrap().unwrap();
        handle.signal(rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn it_can_be_deaf_to_sigterm_and_to_the_end_of_its_input() {
    let stage = Stage::new(|script| {
        script.ignore_sigterm = true;
        script.ignore_end_of_input = true;
    });
    let mut client = stage.start();
    client.call("initialize", &json!({ "protocolVersion": 1 })).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(client.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    client.close_input();
    stage.wait_for_trace(|trace| trace.entries.last().is_some_and(|entry: &Entry| entry.event == "end_of_input"));
    assert!(client.is_running().unwrap());
}

#[test]
fn steps_wait_for_files_so_that_tests_need_not_sleep() {
    let stage = Stage::new(|_| {});
    let mut stage = stage;
    let (go, gone) = (stage.path("go"), stage.path("gone"));
    stage.script.prompts = vec![vec![Step::WaitForFile(go.clone()), Step::Touch(gone.clone()), Step::Hang]];
    let mut client = stage.start();
    let session_id = client.new_session().unwrap();
    client.prompt(&session_id, "x").unwrap();
    // A second request is answered while the first turn waits.
    client.call("session/list", &json!({})).unwrap();
    assert!(!gone.exists());
    std::fs::write(&go, b"").unwrap();
    let end = Instant::now() + LIMIT;
    while !gone.exists() {
        assert!(Instant::now() < end, "the step never went on");
        thread::sleep(Duration::from_millis(5));
    }
}
