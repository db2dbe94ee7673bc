use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A client with a clock of its own: nothing here waits for real time.
struct Client {
    engine: Engine,
    now: Now,
    next_id: u64,
    received: Vec<Value>,
}

impl Client {
    fn new(state_dir: Option<&TempDir>) -> Self {
        let directory = state_dir.map(|directory| directory.path().join("demo"));
        let mut next_id = 0_u128;
        let make_id = move || {
            next_id += 1;
            uuid::Uuid::from_u128(next_id).to_string()
        };
        let engine = Engine::new(Transcripts::new(directory), Box::new(make_id));
        let mut client =
            Self { engine, now: Now { wall_ms: 1_767_225_600_000, elapsed_ms: 0 }, next_id: 0, received: Vec::new() };
        let result = client.call("initialize", json!({ "protocolVersion": 1 }));
        assert_eq!(result["result"]["agentCapabilities"]["loadSession"], true);
        client
    }

    fn send(&mut self, frame: &Value) {
        self.engine.handle_line(frame.to_string().as_bytes(), self.now);
        self.collect();
    }

    fn collect(&mut self) {
        self.engine.advance(self.now);
        let lines = self.engine.output().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        self.received.extend(lines.map(|line| serde_json::from_slice::<Value>(line).unwrap()));
        self.engine.clear_output();
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params }));
        self.next_id
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn pass(&mut self, elapsed_ms: u64) {
        self.now.elapsed_ms += elapsed_ms;
        self.now.wall_ms += i64::try_from(elapsed_ms).unwrap();
        self.collect();
    }

    fn answer_to(&self, id: u64) -> Option<Value> {
        self.received.iter().find(|frame| frame["id"] == id && frame.get("method").is_none()).cloned()
    }

    /// Lets time pass until the answer is there.
    fn wait_for(&mut self, id: u64) -> Value {
        for _ in 0..10_000 {
            if let Some(answer) = self.answer_to(id) {
                return answer;
            }
            self.pass(10);
        }
        panic!("no answer to {id}; received {:#?}", self.received);
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.wait_for(id)
    }

    fn new_session(&mut self) -> String {
        let answer = self.call("session/new", json!({ "cwd": "/tmp", "mcpServers": [] }));
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    fn start_prompt(&mut self, session_id: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", json!({ "sessionId": session_id, "prompt": prompt }))
    }

    fn prompt(&mut self, session_id: &str, text: &str) -> Value {
        let id = self.start_prompt(session_id, text);
        self.wait_for(id)
    }

    fn updates(&self) -> Vec<Value> {
        let updates = self.received.iter().filter(|frame| frame["method"] == "session/update");
        updates.map(|frame| frame["params"]["update"].clone()).collect()
    }

    fn text(&self) -> String {
        let chunks = self.updates().into_iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.map(|update| update["content"]["text"].as_str().unwrap().to_owned()).collect()
    }

    fn statuses(&self) -> Vec<String> {
        self.updates().iter().filter_map(|update| update["status"].as_str().map(str::to_owned)).collect()
    }
}

#[test]
fn hello_streams_an_answer_with_usage() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    assert_eq!(client.updates()[0]["sessionUpdate"], "available_commands_update");
    let answer = client.prompt(&session_id, "hello");
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert!(answer["result"]["usage"]["totalTokens"].as_u64().unwrap() > 0);
    assert!(client.text().starts_with("Hello! I'm the demonstration agent."));
    assert_eq!(client.updates().last().unwrap()["sessionUpdate"], "usage_update");
    let last = client.received.last().unwrap();
    assert_eq!(last["id"], client.next_id, "the answer comes after all updates of its turn");
}

#[test]
fn slow_sends_a_piece_each_tenth_of_a_second_and_takes_n_seconds() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    let id = client.start_prompt(&session_id, "slow 3");
    for tenth in 1..=30 {
        assert_eq!(client.text().split_whitespace().count(), tenth);
        assert!(client.answer_to(id).is_none());
        client.pass(100);
    }
    assert_eq!(client.answer_to(id).unwrap()["result"]["stopReason"], "end_turn");
}

#[test]
fn a_tool_call_goes_from_pending_to_completed_with_a_diff() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    client.prompt(&session_id, "tool");
    assert_eq!(client.statuses(), ["pending", "in_progress", "completed"]);
    let done = client.updates().into_iter().find(|update| update["status"] == "completed").unwrap();
    assert_eq!(done["content"][0]["type"], "diff");
    assert_eq!(done["content"][0]["path"], "/tmp/greeting.txt");
}

#[test]
fn a_permission_question_is_asked_and_its_answer_reported() {
    for (outcome, last_status, word) in [
        (json!({ "result": { "outcome": { "outcome": "selected", "optionId": "allow" } } }), "completed", "`allow`"),
        (json!({ "result": { "outcome": { "outcome": "selected", "optionId": "reject" } } }), "failed", "`reject`"),
        (json!({ "result": { "outcome": { "outcome": "cancelled" } } }), "failed", "cancelled"),
        (json!({ "error": { "code": -32601, "message": "no" } }), "failed", "cancelled"),
    ] {
        let mut client = Client::new(None);
        let session_id = client.new_session();
        let id = client.start_prompt(&session_id, "permission");
        client.pass(1000);
        let question =
            client.received.iter().find(|frame| frame["method"] == "session/request_permission").unwrap().clone();
        client.pass(60_000);
        assert!(client.answer_to(id).is_none(), "it waits for the answer");
        let mut answer = outcome;
        answer["jsonrpc"] = json!("2.0");
        answer["id"] = question["id"].clone();
        client.send(&answer);
        assert_eq!(client.wait_for(id)["result"]["stopReason"], "end_turn");
        assert_eq!(client.statuses().last().unwrap(), last_status);
        assert!(client.text().contains(word), "{}", client.text());
    }
}

#[test]
fn a_plan_progresses() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    client.prompt(&session_id, "plan");
    let plans: Vec<Value> = client.updates().into_iter().filter(|update| update["sessionUpdate"] == "plan").collect();
    let done = |plan: &Value| {
        plan["entries"].as_array().unwrap().iter().filter(|entry| entry["status"] == "completed").count()
    };
    assert_eq!(plans.iter().map(done).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn crash_ends_the_process_in_the_middle_of_a_tool_call() {
    let directory = TempDir::new().unwrap();
    let mut client = Client::new(Some(&directory));
    let session_id = client.new_session();
    let id = client.start_prompt(&session_id, "crash after 2");
    client.pass(2000);
    assert_eq!(client.engine.exit_code(), None);
    client.pass(1000);
    assert_eq!(client.engine.exit_code(), Some(script::CRASH_EXIT_CODE));
    assert!(client.answer_to(id).is_none());
    assert_eq!(client.statuses(), ["pending", "in_progress"]);
    // What was said before the crash is known to the next process.
    let mut client = Client::new(Some(&directory));
    let params = json!({ "sessionId": session_id, "cwd": "/tmp", "mcpServers": [] });
    client.call("session/load", params);
    assert_eq!(client.statuses(), ["pending", "in_progress"]);
}

#[test]
fn fail_answers_with_an_error_and_other_words_are_echoed() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    assert_eq!(client.prompt(&session_id, "fail")["error"]["code"], -32603);
    client.received.clear();
    client.prompt(&session_id, "what is  up");
    assert!(client.text().starts_with("You said (3 words): what is  up\n"), "{}", client.text());
}

#[test]
fn cancel_ends_running_asking_and_queued_turns_at_once() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    let first = client.start_prompt(&session_id, "slow 60");
    let second = client.start_prompt(&session_id, "hello");
    client.pass(250);
    client.notify("session/cancel", json!({ "sessionId": session_id }));
    for id in [first, second] {
        assert_eq!(client.answer_to(id).unwrap()["result"]["stopReason"], "cancelled");
    }
    let asking = client.start_prompt(&session_id, "permission");
    client.pass(500);
    client.notify("$/cancel_request", json!({ "requestId": asking }));
    assert_eq!(client.answer_to(asking).unwrap()["result"]["stopReason"], "cancelled");
    // The answer that the client owes comes too late and changes nothing; a cancel without a turn does nothing.
    client.send(&json!({ "jsonrpc": "2.0", "id": 0, "result": { "outcome": { "outcome": "cancelled" } } }));
    client.notify("session/cancel", json!({ "sessionId": session_id }));
    assert_eq!(client.prompt(&session_id, "hello")["result"]["stopReason"], "end_turn");
}

#[test]
fn prompts_of_one_session_queue_and_sessions_do_not_wait_for_each_other() {
    let mut client = Client::new(None);
    let (busy, free) = (client.new_session(), client.new_session());
    let first = client.start_prompt(&busy, "slow 2");
    let second = client.start_prompt(&busy, "hello");
    let other = client.start_prompt(&free, "hello");
    client.wait_for(other);
    assert!(client.answer_to(first).is_none());
    client.wait_for(second);
    assert!(client.answer_to(first).is_some());
}

#[test]
fn load_replays_before_it_answers_and_resume_does_not_replay() {
    for method in ["session/load", "session/resume"] {
        let directory = TempDir::new().unwrap();
        let mut client = Client::new(Some(&directory));
        let session_id = client.new_session();
        client.prompt(&session_id, "hello");
        client.prompt(&session_id, "tool");
        let expected = if method == "session/load" { client.text() } else { String::new() };

        let mut client = Client::new(Some(&directory));
        let not_open = client.prompt(&session_id, "hello");
        assert_eq!(not_open["error"]["code"], -32002, "a stored session has to be opened first");
        let id = client.request(method, json!({ "sessionId": session_id, "cwd": "/tmp", "mcpServers": [] }));
        assert_eq!(client.received.last().unwrap()["id"], id);
        assert_eq!(client.text(), expected);
        client.prompt(&session_id, "recall");
        assert!(client.text().ends_with("You said 2 things before:\n1. hello\n2. tool\n"), "{}", client.text());
    }
}

#[test]
fn without_a_directory_another_process_knows_nothing() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    let mut other = Client::new(None);
    let params = json!({ "sessionId": session_id, "cwd": "/tmp", "mcpServers": [] });
    assert_eq!(other.call("session/resume", params)["error"]["code"], -32002);
    assert_eq!(other.call("session/list", json!({}))["result"]["sessions"], json!([]));
}

#[test]
fn list_filters_pages_and_orders() {
    let directory = TempDir::new().unwrap();
    let mut client = Client::new(Some(&directory));
    let mut ids = Vec::new();
    for _ in 0..engine::PAGE_SIZE + 3 {
        ids.push(client.new_session());
        client.pass(1000);
    }
    client.call("session/new", json!({ "cwd": "/other", "mcpServers": [] }));
    let mut client = Client::new(Some(&directory));
    let mut listed = Vec::new();
    let mut params = json!({ "cwd": "/tmp" });
    loop {
        let page = client.call("session/list", params.clone())["result"].clone();
        let sessions = page["sessions"].as_array().unwrap();
        listed.extend(sessions.iter().map(|session| session["sessionId"].as_str().unwrap().to_owned()));
        match page.get("nextCursor") {
            Some(cursor) => params["cursor"] = cursor.clone(),
            None => break,
        }
    }
    ids.reverse();
    assert_eq!(listed, ids);
    assert_eq!(client.call("session/list", json!({ "cursor": "x" }))["error"]["code"], -32602);
}

#[test]
fn close_cancels_and_keeps_the_history() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    let id = client.start_prompt(&session_id, "slow 60");
    client.call("session/close", json!({ "sessionId": session_id }));
    assert_eq!(client.answer_to(id).unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(client.prompt(&session_id, "hello")["error"]["code"], -32002);
    let params = json!({ "sessionId": session_id, "cwd": "/tmp", "mcpServers": [] });
    client.call("session/resume", params);
    assert_eq!(client.prompt(&session_id, "hello")["result"]["stopReason"], "end_turn");
}

#[test]
fn requests_out_of_line_get_the_right_code() {
    let mut client = Client::new(None);
    let session_id = client.new_session();
    for (method, params, code) in [
        ("session/fork", json!({}), -32601),
        ("session/new", json!({ "cwd": "relative", "mcpServers": [] }), -32602),
        ("session/load", json!({ "sessionId": "no", "cwd": "/tmp", "mcpServers": [] }), -32002),
        ("session/load", json!({ "sessionId": session_id, "cwd": "/elsewhere", "mcpServers": [] }), -32602),
        ("session/prompt", json!({ "sessionId": session_id, "prompt": [] }), -32602),
        ("session/prompt", json!({ "sessionId": "../../etc/passwd", "prompt": [{}] }), -32002),
        ("session/close", json!({ "sessionId": "no" }), -32002),
    ] {
        assert_eq!(client.call(method, params.clone())["error"]["code"], code, "{method} {params}");
    }
    let mut engine = Engine::new(Transcripts::new(None), Box::new(String::new));
    engine.handle_line(br#"{"jsonrpc":"2.0","id":"early","method":"session/list"}"#, client.now);
    engine.handle_line(b"noise", client.now);
    let output = String::from_utf8(engine.output().to_vec()).unwrap();
    let codes: Vec<i64> = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["error"]["code"].as_i64().unwrap())
        .collect();
    assert_eq!(codes, [-32600, -32700]);
}

#[test]
fn it_serves_a_real_stream_until_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let input = theirs.try_clone().unwrap();
    let server = thread::spawn(move || serve(input, theirs, None).unwrap());
    let mut reader = BufReader::new(ours.try_clone().unwrap());
    let mut ask = |frame: &str| -> Value {
        (&ours).write_all(frame.as_bytes()).unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(ask("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\r\n\n")["result"]["protocolVersion"], 1);
    let session = ask("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"session/new\",\"params\":{\"cwd\":\"/\"}}\n");
    let session_id = session["result"]["sessionId"].as_str().unwrap();
    let prompt = json!({ "sessionId": session_id, "prompt": [{ "type": "text", "text": "hello" }] });
    let mut frame =
        ask(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt })));
    while frame["id"] != 3 {
        frame = ask("");
    }
    assert_eq!(frame["result"]["stopReason"], "end_turn");
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.join().unwrap(), 0);
}

#[test]
fn the_state_directory_follows_the_environment() {
    let os = |text: &str| Some(OsString::from(text));
    assert_eq!(state_dir_from(os("/a"), os("/b")), Some(PathBuf::from("/a")));
    assert_eq!(state_dir_from(os(""), os("/b")), Some(PathBuf::from("/b/holdfast-demo")));
    assert_eq!(state_dir_from(None, None), None);
}
