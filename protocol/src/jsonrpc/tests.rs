use proptest::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::error::{ErrorKind, ErrorObject, WireError};

/// Answers a frame as a server that knows one method `ping {count?: u32}` would.
fn answers(line: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Ping {
        #[serde(default)]
        count: u32,
    }
    fn answer(message: Message<'_>) -> Vec<u8> {
        let mut buffer = Vec::new();
        match message {
            Message::Request { id, method, params } if method == "ping" => match parse_params::<Ping>(params) {
                Ok(ping) => write_result(&mut buffer, id, &ping.count).unwrap(),
                Err(error) => write_error(&mut buffer, id, &error),
            },
            Message::Request { id, .. } => {
                write_error(&mut buffer, id.to_owned(), &WireError::new(ErrorKind::MethodNotFound, "no such method"));
            }
            Message::Invalid { id, error } => write_error(&mut buffer, id, &error),
            Message::Notification { .. } | Message::Response { .. } => {}
        }
        buffer
    }
    let mut buffer = Vec::new();
    match parse_frame(line) {
        Frame::Single(message) => buffer = answer(message),
        Frame::Batch(messages) => {
            let lines: Vec<Vec<u8>> =
                messages.into_iter().map(answer).filter(|line: &Vec<u8>| !line.is_empty()).collect();
            write_batch(&mut buffer, lines.iter().map(Vec::as_slice));
        }
        Frame::Invalid(error) => write_error(&mut buffer, None::<OwnedId>, &error),
    }
    String::from_utf8(buffer).unwrap()
}

/// Reduces an answer to `id code` or `id result`, ids as raw text.
fn short(answer: &str) -> String {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        result: Option<u32>,
        error: Option<ErrorObject>,
    }
    if answer.is_empty() {
        return "silence".to_owned();
    }
    if answer.starts_with('[') {
        let elements: Vec<&RawValue> = serde_json::from_str(answer).unwrap();
        return format!("[{}]", elements.iter().map(|raw| short(raw.get())).collect::<Vec<_>>().join(", "));
    }
    let answer: Answer<'_> = serde_json::from_str(answer).unwrap();
    match (answer.result, answer.error) {
        (Some(result), None) => format!("{} ok {result}", answer.id.get()),
        (None, Some(error)) => format!("{} {}", answer.id.get(), error.code),
        other => panic!("neither result nor error: {other:?}"),
    }
}

#[test]
fn odd_frames_get_the_exact_code_and_id() {
    let table: &[(&[u8], &str)] = &[
        (br#"{"jsonrpc":"2.0","id":1,"method":"#, "null -32700"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}", "null -32700"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"other\":\"\xff\"}", "null -32700"),
        (br#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#, "null -32700"),
        (b"1", "null -32600"),
        (b"1e999", "null -32600"),
        (b"\"\\ud800\"", "null -32600"),
        (b"  ", "null -32700"),
        (b"nul", "null -32700"),
        (b"\"x\"", "null -32600"),
        (b"null", "null -32600"),
        (b"true", "null -32600"),
        (b"{}", "null -32600"),
        (b"[]", "null -32600"),
        (b"[1,2]", "[null -32600, null -32600]"),
        (b"[[],{}]", "[null -32600, null -32600]"),
        (b"[1,", "null -32700"),
        (
            br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"ping"},{"foo":"x"}]"#,
            "[1 ok 0, null -32600]",
        ),
        (br#"[{"jsonrpc":"2.0","method":"ping"}]"#, "silence"),
        (br#"{"jsonrpc":"2.0","id":7,"method":"no/such"}"#, "7 -32601"),
        (br#"{"jsonrpc":"2.0","id":7,"method":"no/such","params":5}"#, "7 -32601"),
        (br#"{"jsonrpc":"2.0","id":"7","method":"ping","params":{"count":"x"}}"#, "\"7\" -32602"),
        (br#"{"jsonrpc":"2.0","id":"7","method":"ping","params":5}"#, "\"7\" -32602"),
        (br#"{"jsonrpc":"2.0","id":9007199254740993,"method":"ping","params":{"count":3}}"#, "9007199254740993 ok 3"),
        (br#"{"jsonrpc":"2.0","id":184467440737095516159,"method":"ping"}"#, "184467440737095516159 ok 0"),
        (br#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, "null -32600"),
        (br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, "null -32600"),
        (br#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, "null -32600"),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "null ok 0"),
        (br#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#, "0 ok 0"),
        (br#"{"jsonrpc":"2.0","id":-0,"method":"no/such"}"#, "-0 -32601"),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, "1.5 ok 0"),
        (br#"{"jsonrpc":"2.0","id":"\u0041\ud800","method":"ping"}"#, "\"\\u0041\\ud800\" ok 0"),
        (br#"{"jsonrpc":"2.0","method":"ping"}"#, "silence"),
        (br#"{"jsonrpc":"2.0","method":"no/such"}"#, "silence"),
        (br#"{"jsonrpc":"2.0","method":"ping","params":5}"#, "silence"),
        (br#"{"id":4,"method":"ping"}"#, "4 -32600"),
        (br#"{"jsonrpc":"1.0","id":"k","method":"ping"}"#, "\"k\" -32600"),
        (br#"{"jsonrpc":2.0,"id":4,"method":"ping"}"#, "4 -32600"),
        (br#"{"jsonrpc":"2.0","id":4,"method":1}"#, "4 -32600"),
        (br#"{"jsonrpc":"2.0","id":4,"method":"\ud800"}"#, "4 -32600"),
        (br#"{"jsonrpc":"2.0","id":4}"#, "4 -32600"),
        (br#"{"jsonrpc":"2.0","result":4}"#, "null -32600"),
        (br#"{"jsonrpc":"2.0","id":4,"result":{}}"#, "silence"),
        (br#" { "\u006asonrpc" : "2.0" , "id" : 5 , "method" : "p\u0069ng" , "params" : null } "#, "5 ok 0"),
    ];
    for (line, expected) in table {
        assert_eq!(short(&answers(line)), *expected, "for {}", String::from_utf8_lossy(line));
    }
}

#[test]
fn wrong_params_name_the_place() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Append {
        events: Vec<Event>,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Event {
        kind: String,
    }
    let raw = RawValue::from_string(r#"{"events":[{"kind":"a"},{"kind":2}]}"#.to_owned()).unwrap();
    let error = parse_params::<Append>(Some(&raw)).unwrap_err();
    assert_eq!(error.path.as_deref(), Some("events[1].kind"));
    assert_eq!(
        error.message,
        "params do not fit the method at `events[1].kind`: invalid type: integer `2`, expected a string"
    );
    let error = parse_params::<Append>(None).unwrap_err();
    assert_eq!((error.path, error.message.as_str()), (None, "params do not fit the method: missing field `events`"));
}

#[test]
fn an_oversized_batch_is_refused_whole() {
    let element = r#"{"jsonrpc":"2.0","method":"ping"}"#;
    let batch = |count: usize| format!("[{}]", vec![element; count].join(","));
    assert!(matches!(parse_frame(batch(BATCH_MAX).as_bytes()), Frame::Batch(messages) if messages.len() == BATCH_MAX));
    assert!(matches!(parse_frame(batch(BATCH_MAX + 1).as_bytes()), Frame::Invalid(_)));
    let cut = format!("{},", &batch(BATCH_MAX + 1)[..element.len() * (BATCH_MAX + 1)]);
    assert!(matches!(parse_frame(cut.as_bytes()), Frame::Invalid(error) if error.kind == ErrorKind::ParseError));
}

#[test]
fn deep_nesting_is_data_and_no_stack_overflow() {
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","other":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(short(&answers(deep.as_bytes())), "1 ok 0");
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    assert_eq!(short(&answers(deep.as_bytes())), "[null -32600]");
}

#[test]
fn responses_end_the_request_whatever_the_error_looks_like() {
    let line = br#"{"jsonrpc":"2.0","id":3,"error":"boom"}"#;
    let Frame::Single(Message::Response { id, outcome: Err(error) }) = parse_frame(line) else { panic!() };
    assert_eq!((id.as_u64(), error.code, error.data.unwrap().get()), (Some(3), -32603, "\"boom\""));
    let line = br#"{"jsonrpc":"2.0","id":3,"error":null,"result":null}"#;
    let Frame::Single(Message::Response { outcome: Ok(result), .. }) = parse_frame(line) else { panic!() };
    assert_eq!(result.get(), "null");
}

#[test]
fn a_result_that_cannot_be_json_is_still_answered() {
    let broken = std::collections::BTreeMap::from([((1, 2), 3)]);
    let mut buffer = b"before\n".to_vec();
    assert!(write_result(&mut buffer, 5, &broken).is_err());
    let text = String::from_utf8(buffer).unwrap();
    assert_eq!(short(text.strip_prefix("before\n").unwrap()), "5 -32603");
    let mut buffer = Vec::new();
    assert!(write_request(&mut buffer, 5, "x", &broken).is_err());
    assert!(buffer.is_empty());
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        Just("18446744073709551617".to_owned()),
        Just("1.50e+3".to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|values| format!("[{}]", values.join(" ,\n"))),
            prop::collection::vec((any::<String>(), inner), 0..4).prop_map(|members| {
                let members: Vec<String> = members
                    .iter()
                    .map(|(key, value)| format!("{} :\r\n{value}", serde_json::to_string(key).unwrap()))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn any_id() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<u64>().prop_map(|value| value.to_string()),
        Just("-0".to_owned()),
        Just("1.0".to_owned()),
        Just("1E400".to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(id in any_id(), method in any::<String>(), json in any_json()) {
        // Line breaks between tokens become spaces; inside strings they are escapes and stay.
        let on_one_line = json.replace(['\n', '\r'], " ");
        let raw = RawValue::from_string(json).unwrap();
        let expected_id = Id::from_raw(&id).unwrap();
        let mut buffer = Vec::new();
        write_raw_request(&mut buffer, expected_id, &method, Some(&raw));
        write_raw_notification(&mut buffer, &method, Some(&raw));
        write_raw_result(&mut buffer, expected_id.to_owned(), &raw);
        write_request(&mut buffer, expected_id, &method, &raw).unwrap();
        let lines: Vec<&[u8]> = buffer.split(|byte| *byte == b'\n').collect();
        prop_assert_eq!(lines.len(), 5, "each message is one line");
        prop_assert_eq!(lines[0], lines[3]);
        match parse_frame(lines[0]) {
            Frame::Single(Message::Request { id, method: read, params: Some(params) }) => {
                prop_assert_eq!((id, &*read, params.get()), (expected_id, method.as_str(), on_one_line.as_str()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        match parse_frame(lines[1]) {
            Frame::Single(Message::Notification { method: read, params: Some(params) }) => {
                prop_assert_eq!((&*read, params.get()), (method.as_str(), on_one_line.as_str()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        match parse_frame(lines[2]) {
            Frame::Single(Message::Response { id, outcome: Ok(result) }) => {
                prop_assert_eq!((id, result.get()), (expected_id, on_one_line.as_str()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn no_bytes_make_it_panic_and_answers_are_one_line(line in prop::collection::vec(any::<u8>(), 0..100)) {
        let answer = answers(&line);
        prop_assert!(answer.is_empty() || answer.matches('\n').count() == 1);
    }

    #[test]
    fn no_json_makes_it_panic(json in any_json()) {
        let answer = answers(json.as_bytes());
        prop_assert!(answer.is_empty() || answer.matches('\n').count() == 1);
    }
}
