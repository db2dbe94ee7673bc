//! Odd frames, each on a connection of its own, each followed by a good request.

use super::*;

fn error_of(answer: &Value) -> (i64, &Value) {
    (answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}")), &answer["id"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_are_no_requests_get_their_code_and_the_connection_lives_on() {
    let harness = Harness::start(SocketLimits::default()).await;
    let null = Value::Null;
    let rows: &[(&[u8], i64, Value)] = &[
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":", -32700, null.clone()),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}", -32700, null.clone()),
        (b"1", -32600, null.clone()),
        (b"\"x\"", -32600, null.clone()),
        (b"null", -32600, null.clone()),
        (b"{}", -32600, null.clone()),
        (b"[]", -32600, null.clone()),
        (br#"{"jsonrpc":"2.0","id":7,"method":"no/such"}"#, -32601, json!(7)),
        (br#"{"jsonrpc":"2.0","id":"7","method":"daemon/ping","params":{"value":"a"}}"#, -32602, json!("7")),
        (br#"{"jsonrpc":"2.0","id":"7","method":"daemon/ping","params":5}"#, -32602, json!("7")),
        (br#"{"jsonrpc":"2.0","id":true,"method":"daemon/ping"}"#, -32600, null.clone()),
        (br#"{"jsonrpc":"2.0","id":{},"method":"daemon/ping"}"#, -32600, null.clone()),
        (br#"{"id":3,"method":"daemon/ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"1.0","id":3,"method":"daemon/ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0","id":3,"method":"daemon/shutdown"}"#, -32603, json!(3)),
    ];
    for (bytes, code, id) in rows {
        let mut wire = harness.client();
        wire.send(bytes);
        wire.send("\n");
        let answer = wire.line();
        assert_eq!(error_of(&answer), (*code, id), "{}", String::from_utf8_lossy(bytes));
        assert!(answer["error"]["data"]["kind"].is_string(), "{answer}");
        wire.expect_alive();
    }
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_come_back_exactly_as_they_were_sent() {
    let harness = Harness::start(SocketLimits::default()).await;
    for id in ["9007199254740993", "1.5", "null", "0", "-1", "\"\"", "\"a\\u00e9\"", "123456789012345678901234567890"] {
        let mut wire = harness.client();
        wire.send(ping(id));
        assert_eq!(wire.text().unwrap(), format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"value\":5}}}}"));
        wire.expect_alive();
    }
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_array_in_order() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    wire.send("[1,2]\n");
    let answer = wire.line();
    let errors: Vec<(i64, &Value)> = answer.as_array().unwrap().iter().map(error_of).collect();
    assert_eq!(errors, [(-32600, &Value::Null), (-32600, &Value::Null)]);
    let one = |text: String| text.trim_end().to_owned();
    let batch = [
        one(ping(1)),
        r#"{"jsonrpc":"2.0","method":"daemon/ping"}"#.to_owned(),
        one(request(2, "no/such", &json!({}))),
        one(request(3, "acp/attach", &json!({"agent": "demo"}))),
        one(ping(4)),
    ];
    wire.send(format!("[{}]\n", batch.join(",")));
    let answer = wire.line();
    let ids: Vec<i64> = answer.as_array().unwrap().iter().map(|one| one["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [1, 2, 3, 4], "{answer}");
    wire.send("[{\"jsonrpc\":\"2.0\",\"method\":\"no/such\"}]\n");
    wire.expect_alive();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_is_never_answered() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    for method in ["daemon/ping", "daemon/shutdown", "no/such", "$/cancel", "initialize", "acp/attach"] {
        wire.send(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":9}}\n"));
        wire.expect_alive();
    }
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_the_bytes_are_cut_does_not_matter() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    wire.send(format!("{}{}", ping(1), ping(2)));
    assert_eq!((wire.line()["id"].as_i64(), wire.line()["id"].as_i64()), (Some(1), Some(2)));
    for byte in ping(3).bytes() {
        wire.send([byte]);
    }
    assert_eq!(wire.line()["id"], 3);
    wire.send(ping(4).replace('\n', "\r\n"));
    assert_eq!(wire.line()["id"], 4);
    wire.send("\n\r\n\n");
    wire.expect_alive();
    let many: String = (0..5_000).map(ping).collect();
    let mut writing = wire.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(many.as_bytes()).unwrap());
    for id in 0..5_000 {
        assert_eq!(wire.line()["id"], id);
    }
    writer.join().unwrap();
    // The last line may lack its newline.
    wire.send(ping(5).trim_end());
    wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(wire.line()["id"], 5);
    wire.expect_closed();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_with_one_id_get_two_answers() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    wire.send(format!("{}{}", request(1, "daemon/reload", &json!({})), ping(1)));
    assert_eq!(wire.line()["result"]["value"], 5);
    drop(harness.held_reply().await);
    assert_eq!(wire.line()["error"]["data"]["kind"], "interrupted");
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_served_before_initialize() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.raw();
    for method in ["daemon/ping", "no/such", "acp/attach"] {
        wire.send(request(1, method, &json!({"agent": "demo"})));
        assert_eq!(wire.line()["error"]["data"]["kind"], "not_initialized");
    }
    wire.send(request(2, "initialize", &json!({"protocol_version": 1, "client": {"name": 7, "version": "1"}})));
    assert_eq!(wire.line()["error"]["data"]["path"], "client.name");
    wire.send(INITIALIZE);
    let answer = wire.line();
    assert_eq!(answer["result"]["protocol_version"], 1);
    assert_eq!(answer["result"]["server"], json!({"name": "holdfast", "version": "1.2.3"}));
    assert_eq!(answer["result"]["limits"]["frame_bytes"], 16 * 1024 * 1024);
    wire.send(INITIALIZE);
    assert_eq!(wire.line()["error"]["code"], -32600);
    wire.expect_alive();
    harness.end().await;
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_line_is_refused_and_only_its_connection_closes() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut other = harness.client();
    let mut wire = harness.client();
    let piece = vec![b'a'; 1024 * 1024];
    let before = resident_bytes();
    for _ in 0..64 {
        // The daemon reads and drops the rest for a while, so that the client gets to read why.
        if wire.stream.write_all(&piece).is_err() {
            break;
        }
    }
    let answer = wire.line();
    assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&Value::Null, &json!("too_large")));
    wire.expect_closed();
    other.expect_alive();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "{grown} bytes more than before");
    harness.end().await;
}
