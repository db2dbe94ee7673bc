//! Odd frames at the socket of a real daemon: each is answered as the protocol says, soon, and disturbs nobody.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use holdfast_protocol::methods::daemon::{Ping, PingValue};
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::daemon::{TestClient, TestDaemon};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Step, chunk};
use holdfast_tests::processes::resident_bytes;
use serde_json::{Value, json};

/// The longest an answer may take. A machine that is busy with other tests is why it is more than a second.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A connection that says what it is told.
struct Wire {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Wire {
    /// Connects and introduces itself.
    fn open(daemon: &TestDaemon) -> Self {
        let stream = UnixStream::connect(daemon.root.socket()).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut wire = Self { stream, lines };
        let params = json!({ "protocol_version": 1, "client": { "name": "odd", "version": "0" } });
        wire.send(format!(
            "{}\n",
            json!({ "jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params })
        ));
        assert_eq!(wire.answer()["id"], "hello");
        wire
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Returns the next line as it came.
    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("an answer comes in time");
        line
    }

    #[track_caller]
    fn answer(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Sends a good request and expects its answer, and nothing before it.
    #[track_caller]
    fn check_alive(&mut self) {
        self.send(ping("\"alive\""));
        assert_eq!(self.line(), "{\"jsonrpc\":\"2.0\",\"id\":\"alive\",\"result\":{\"value\":5}}\n");
    }
}

fn ping(id: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"daemon/ping\",\"params\":{{\"value\":5}}}}\n")
}

fn check_served(client: &mut TestClient) {
    client.call::<Ping>(&PingValue { value: Some(1) }).unwrap();
}

#[test]
fn each_is_answered_by_its_code_and_id_and_a_turn_that_runs_meanwhile_goes_on() {
    let stage = AcpStage::start(|script, directory| {
        let turn =
            vec![Step::Update(chunk("begun")), Step::WaitForFile(directory.join("go")), Step::Update(chunk(", ended"))];
        script.prompts_by_text = [("long".to_owned(), turn)].into();
    });
    let mut acp = stage.client();
    let session_id = acp.open_session().unwrap();
    let prompt = acp.prompt(&session_id, "long").unwrap();
    acp.wait_for_text("begun").unwrap();
    let daemon = &stage.daemon;
    let mut other = daemon.client();

    let null = Value::Null;
    let errors: [(&[u8], i64, Value); 20] = [
        (br#"{"jsonrpc":"2.0","id":1,"method":"#, -32700, null.clone()),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}", -32700, null.clone()),
        (b"1", -32600, null.clone()),
        (br#""x""#, -32600, null.clone()),
        (b"null", -32600, null.clone()),
        (b"{}", -32600, null.clone()),
        (b"[]", -32600, null.clone()),
        (br#"{"jsonrpc":"2.0","id":7,"method":"no/such"}"#, -32601, json!(7)),
        (br#"{"jsonrpc":"2.0","id":"7","method":"daemon/ping","params":{"value":"a"}}"#, -32602, json!("7")),
        (br#"{"jsonrpc":"2.0","id":"7","method":"session/append","params":{"session_id":9}}"#, -32602, json!("7")),
        (br#"{"jsonrpc":"2.0","id":"7","method":"session/list","params":[5]}"#, -32602, json!("7")),
        (br#"{"jsonrpc":"2.0","id":true,"method":"daemon/ping"}"#, -32600, null.clone()),
        (br#"{"jsonrpc":"2.0","id":{},"method":"daemon/ping"}"#, -32600, null.clone()),
        (br#"{"jsonrpc":"2.0","id":[1],"method":"daemon/ping"}"#, -32600, null.clone()),
        (br#"{"id":3,"method":"daemon/ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"1.0","id":3,"method":"daemon/ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":2.0,"id":3,"method":"daemon/ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0","id":3,"method":7}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0","id":3}"#, -32600, json!(3)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}{\"jsonrpc\":\"2.0\",\"id\":2}", -32700, null.clone()),
    ];
    for (bytes, code, id) in errors {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        let mut wire = Wire::open(daemon);
        wire.send(bytes);
        wire.send("\n");
        let answer = wire.answer();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{shown}: {answer}");
        assert!(answer["error"]["message"].is_string() && answer.get("result").is_none(), "{shown}: {answer}");
        wire.check_alive();
        check_served(&mut other);
    }

    // Ids come back as they were written.
    for id in ["9007199254740993", "-9223372036854775809", "1.5", "null", "\"\"", "\"7\\u00e9\""] {
        let mut wire = Wire::open(daemon);
        wire.send(ping(id));
        assert_eq!(wire.line(), format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"value\":5}}}}\n"));
        wire.check_alive();
    }

    // A batch of nothing that is a request is an array of errors.
    let mut wire = Wire::open(daemon);
    wire.send("[1,2]\n");
    let answers = wire.answer();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.iter().all(|answer| answer["error"]["code"] == -32600 && answer["id"].is_null()), "{answers:?}");
    wire.check_alive();

    // Notifications are never answered, whatever is wrong with them.
    let mut wire = Wire::open(daemon);
    for rest in [r#""method":"daemon/ping""#, r#""method":"no/such""#, r#""method":"session/append","params":7"#] {
        wire.send(format!("{{\"jsonrpc\":\"2.0\",{rest}}}\n"));
        wire.check_alive();
    }

    // How the bytes are cut does not matter, and an id may be used twice.
    let mut wire = Wire::open(daemon);
    wire.send(ping("1") + &ping("1"));
    assert_eq!((wire.answer()["id"].clone(), wire.answer()["id"].clone()), (json!(1), json!(1)));
    for byte in ping("2").bytes() {
        wire.send([byte]);
    }
    assert_eq!(wire.answer()["id"], 2);
    wire.send(ping("3").replace('\n', "\r\n"));
    assert_eq!(wire.answer()["id"], 3);
    wire.send("\n\r\n");
    wire.check_alive();

    check_served(&mut other);
    stage.touch("go");
    assert_eq!(acp.wait_for_answer(prompt).unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(acp.text(), "begun, ended");
}

#[test]
fn an_endless_line_costs_its_connection_and_no_memory() {
    const ROOM_BYTES: u64 = 32 * 1024 * 1024;
    let stage = AcpStage::start(|_, _| {});
    let daemon = &stage.daemon;
    let mut acp = stage.client();
    let session_id = acp.open_session().unwrap();
    acp.turn(&session_id, "before").unwrap();
    let mut other = daemon.client();
    check_served(&mut other);
    let before = resident_bytes(daemon.pid());
    let mut wire = Wire::open(daemon);
    let piece = vec![b'a'; 1024 * 1024];
    let mut highest = 0;
    for _ in 0..64 {
        // It reads on for a while, so that the client gets to see why.
        if wire.stream.write_all(&piece).is_err() {
            break;
        }
        highest = highest.max(resident_bytes(daemon.pid()));
    }
    let answer = wire.answer();
    assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&Value::Null, &json!("too_large")), "{answer}");
    let began = Instant::now();
    assert_eq!(wire.lines.read_line(&mut String::new()).unwrap_or(0), 0, "the connection is closed");
    assert!(began.elapsed() < ANSWER_LIMIT);
    assert!(highest < before + ROOM_BYTES, "{before} bytes before, {highest} at most");
    eventually(PATIENCE, || resident_bytes(daemon.pid()), |now| *now < before + ROOM_BYTES);
    check_served(&mut other);
    assert_eq!(acp.turn(&session_id, "after").unwrap()["result"]["stopReason"], "end_turn");
}
