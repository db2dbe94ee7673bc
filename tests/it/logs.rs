//! The log of a real daemon: bounded whatever comes, free of secrets, going on after a kill, and for its owner only.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::Status;
use holdfast_protocol::methods::log::{Query, QueryParams, QueryResult};
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::crash::rounds;
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Permission, Step, raw};
use holdfast_tests::private::{assert_private, files_with};
use holdfast_tests::random::Random;
use serde_json::{Value, json};

const SEGMENT_BYTES: u64 = 64 * 1024;
const SEGMENTS_KEPT: u64 = 3;
/// Each segment may pass its size by one line, and a line has at most 16 KiB.
const BOUND_BYTES: u64 = (SEGMENTS_KEPT + 1) * (SEGMENT_BYTES + 16 * 1024);

/// A stage with small segments, whose agent does `turns`, each for the prompt of its text.
fn stage<const N: usize>(more: &str, turns: [(&str, Vec<Step>); N]) -> AcpStage {
    let logs = format!("{more}\n[logs]\nmax_segment_bytes = {SEGMENT_BYTES}\nkeep_segments = {SEGMENTS_KEPT}\n");
    AcpStage::start_with(&logs, |script, _| {
        script.prompts_by_text = turns.map(|(text, steps)| (text.to_owned(), steps)).into();
    })
}

/// Returns the bytes of all log files: everything below `data/state/`.
fn log_bytes(stage: &AcpStage) -> u64 {
    let directory = stage.daemon.root.trace_file().parent().unwrap().to_owned();
    let sizes = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().map_or(0, |file| file.len()));
    sizes.sum()
}

fn turn(stage: &AcpStage, text: &str) {
    let mut client = stage.client();
    let session_id = client.open_session().unwrap();
    let answer = client.turn(&session_id, text).unwrap();
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
}

fn query(stage: &AcpStage, text: &str) -> QueryResult {
    let params = QueryParams { text: Some(text.to_owned()), limit: Some(1_000), ..QueryParams::default() };
    stage.daemon.client().call::<Query>(&params).unwrap()
}

/// Lets the agent complain in words that were never said before, and waits until they are in the log.
fn check_it_goes_on(stage: &AcpStage, text: &str) {
    turn(stage, text);
    eventually(PATIENCE, || query(stage, "still here"), |found| !found.lines.is_empty());
}

#[test]
fn it_stays_under_its_bound_whatever_it_finds_and_is_given() {
    const OLD_BYTES: u64 = 50 * 1024 * 1024;
    let flood = vec![Step::ComplainOften(4_000, 500)];
    let still = vec![Step::Complain("still here".to_owned())];
    let mut stage = stage("", [("flood", flood), ("still", still)]);
    assert!(stage.daemon.term().success());
    // What an earlier version, or another program, left.
    let path = stage.daemon.root.trace_file();
    for old in [path.clone(), path.with_file_name("runtime-trace.000001.jsonl")] {
        let mut file = fs::File::create(&old).unwrap();
        file.set_len(OLD_BYTES).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap();
        file.write_all(b"\n{\"seq\":41,\"time_ms\":1,\"level\":\"info\",\"target\":\"t\",\"message\":\"kept\"}\n")
            .unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
    }
    stage.daemon.boot();
    assert!(log_bytes(&stage) <= BOUND_BYTES, "{} bytes after the start", log_bytes(&stage));
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| turn(&stage, "flood"));
        while !flooding.is_finished() {
            let now = log_bytes(&stage);
            assert!(now <= BOUND_BYTES, "{now} bytes");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        flooding.join().unwrap();
    });
    check_it_goes_on(&stage, "still");
    // It was full at least once, so the bound was met.
    assert!(log_bytes(&stage) > SEGMENT_BYTES, "the flood did not arrive");
    assert!(log_bytes(&stage) <= BOUND_BYTES, "{} bytes in the end", log_bytes(&stage));
    let files = assert_private(stage.daemon.root.path());
    assert!(files.contains(&path));
}

#[test]
fn a_loop_of_one_failure_is_a_few_lines_with_their_count() {
    const FAILURES: u64 = 20_000;
    let again = Step::Complain("reconnect attempt 17 failed: connection refused".to_owned());
    let mut stage = stage("", [("loop", vec![Step::Repeat(usize::try_from(FAILURES).unwrap(), vec![again])])]);
    turn(&stage, "loop");
    assert!(stage.daemon.term().success());
    let text = fs::read_to_string(stage.daemon.root.trace_file()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_the_loop: Vec<&Value> =
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.contains("reconnect"))).collect();
    assert!(of_the_loop.len() <= 1_000, "{} lines", of_the_loop.len());
    let repeated: u64 = of_the_loop.iter().filter_map(|line| line["repeated"].as_u64()).sum();
    let written = of_the_loop.iter().filter(|line| line["repeated"].is_null()).count() as u64;
    // What came faster than it could be taken is counted as well.
    let dropped: u64 = lines.iter().filter_map(|line| line["fields"]["dropped"].as_u64()).sum();
    assert!(repeated > 0);
    assert!(written + repeated + dropped >= FAILURES, "{written} + {repeated} + {dropped}");
}

const SECRETS: [&str; 3] = ["sk-live-AAAA1111BBBB2222", "zc_9f8e7d6c5b4a3210", "hunter2-hunter2"];

/// Sends a request over HTTP and returns the answer.
fn over_http(stage: &AcpStage, body: &Value) -> String {
    let url = stage.daemon.client().call::<Status>(&Empty {}).unwrap().http.url.unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.to_string();
    let [_, bearer, _] = SECRETS;
    write!(
        stream,
        "POST /api/rpc?token={bearer} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {bearer}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn no_secret_and_no_whole_message_is_in_any_file() {
    let [key, bearer, password] = SECRETS;
    let command = format!("export DEMO_API_KEY=\"{key}\"; curl -H 'Authorization: Bearer {bearer}' -u me:{password}");
    let denied = Step::Permission(Permission {
        tool_call: raw(&json!({ "toolCallId": "t", "title": command, "rawInput": { "command": command } })),
        options: raw(&json!([{ "optionId": "no", "name": "No", "kind": "reject_once" }])),
        then: [].into(),
    });
    let complaints = [
        format!("request failed: 401 for api_key={key}"),
        format!("> POST / HTTP/1.1 Authorization: Bearer {bearer}"),
        format!("password: {password}"),
        format!("{} Authorization: Bearer {bearer} {}", "x".repeat(4_060), "y".repeat(9_000)),
    ];
    let complains = complaints.into_iter().map(Step::Complain).chain([denied]).collect();
    let stage = stage(
        "permissions.policy = \"deny_all\"\n[permissions]\n",
        [("complain", complains), ("still", vec![Step::Complain("still here".to_owned())])],
    );
    stage.daemon.client().call_raw("no/such", None).unwrap_err();
    let params = json!({ "session_id": key, "events": [{ "kind": "message", "body": { "authorization": bearer } }] });
    let refused = [
        ("session/append", params.clone()),
        ("session/show", json!({ "session_id": key, "api_key": key, "password": password })),
        ("session/new", json!({ "agent_id": format!("Bearer {bearer}"), "title": command })),
        (key, json!({ "authorization": format!("Bearer {bearer}") })),
    ];
    for (method, params) in &refused {
        let params = serde_json::value::to_raw_value(params).unwrap();
        stage.daemon.client().call_raw(method, Some(&params)).unwrap_err();
        let output = stage.daemon.program().args(["rpc", method, params.get()]).output().unwrap();
        assert!(!output.status.success());
        let answer = over_http(&stage, &json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    turn(&stage, "complain");
    check_it_goes_on(&stage, "still");
    let body = "Once upon a midnight dreary, while I pondered. ".repeat(220);
    turn(&stage, &format!("{body} still"));
    assert_eq!(files_with(stage.daemon.root.path(), &SECRETS), []);
    let log = fs::read_to_string(stage.daemon.root.trace_file()).unwrap();
    let complaints = log.lines().filter(|line| line.contains("agent says")).collect::<Vec<_>>();
    assert!(
        complaints.len() >= 4 && complaints.iter().filter(|line| line.contains("[redacted]")).count() >= 3,
        "{log}"
    );
    assert!(!log.contains(&body[..1_000]));
    for secret in SECRETS {
        assert!(!stage.daemon.stderr().contains(secret), "{}", stage.daemon.stderr());
    }
}

/// Returns how many lines of all segments are no JSON.
fn unreadable(directory: &Path) -> usize {
    let files = fs::read_dir(directory).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let bad = |bytes: Vec<u8>| {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter(|line| serde_json::from_slice::<Value>(line).is_err()).count()
    };
    files.map(bad).sum()
}

#[test]
fn a_kill_among_rotations_stops_no_log() {
    let mut random = Random::for_test("logs");
    let mut stage = stage("", [("flood", vec![Step::ComplainOften(200_000, 500)])]);
    let directory = stage.daemon.root.trace_file().parent().unwrap().to_owned();
    let rounds = rounds(3);
    for round in 1..=rounds {
        let mut client = stage.client();
        let session_id = client.open_session().unwrap();
        client.prompt(&session_id, "flood").unwrap();
        // Rotations are under way once an old segment has come, or gone.
        let segments = || fs::read_dir(&directory).unwrap().map(|one| one.unwrap().file_name()).collect::<Vec<_>>();
        let before = segments();
        eventually(PATIENCE, segments, |now| *now != before);
        std::thread::sleep(std::time::Duration::from_micros(random.between(0, 20_000)));
        stage.daemon.kill9();
        stage.daemon.boot();
        assert!(log_bytes(&stage) <= BOUND_BYTES, "{} bytes", log_bytes(&stage));
        stage.script.prompts_by_text.insert("still".to_owned(), vec![Step::Complain(format!("still here, {round}"))]);
        stage.write_script();
        turn(&stage, "still");
        eventually(PATIENCE, || query(&stage, &format!("still here, {round}")), |found| !found.lines.is_empty());
        assert!(unreadable(&directory) <= round as usize, "more than one torn line a kill");
    }
    assert_private(stage.daemon.root.path());
}
