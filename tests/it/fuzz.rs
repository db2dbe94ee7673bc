//! The bodies of the fuzz targets, with random input that is at least a little like the real one.

use holdfast_tests::fuzz;
use proptest::prelude::*;

/// Pieces of frames, so that random text is often JSON and sometimes a message.
fn frame_like() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("\"2.0\"".to_owned()),
        Just("\"a\"".to_owned()),
        Just("\"\\ud800\\u0041\"".to_owned()),
        Just("9007199254740993".to_owned()),
        Just("-0".to_owned()),
        Just("1e999".to_owned()),
        Just("tru".to_owned()),
        Just("\u{1}".to_owned()),
    ];
    let key = prop::sample::select(vec![
        "jsonrpc",
        "id",
        "method",
        "params",
        "result",
        "error",
        "sessionId",
        "update",
        "sessionUpdate",
        "sessions",
        "senderSessionId",
        "_meta",
        "holdfast",
        "a",
        "options",
        "toolCall",
        "agentCapabilities",
        "sessionCapabilities",
        "cwd",
        "prompt",
        "\\u0069d",
    ]);
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(|values| format!("[{}]", values.join(", \n"))),
            3 => prop::collection::vec((key.clone(), inner), 0..6).prop_map(|members| {
                let members: Vec<String> =
                    members.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn framing_holds(data in prop::collection::vec(prop_oneof![2 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b'\r')], 0..300)) {
        fuzz::framing(&data);
    }

    #[test]
    fn frames_hold(data in prop_oneof![prop::collection::vec(any::<u8>(), 0..100), frame_like().prop_map(String::into_bytes)]) {
        fuzz::jsonrpc_frame(&data);
    }

    #[test]
    fn messages_hold(members in frame_like(), id in any::<u32>()) {
        fuzz::jsonrpc_frame(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{members}}}"#).as_bytes());
        fuzz::jsonrpc_frame(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{members}}}"#).as_bytes());
    }

    #[test]
    fn rewriting_holds(text in frame_like()) {
        fuzz::acp_rewrite(text.as_bytes());
        fuzz::acp_rewrite(format!(r#"{{"sessionId":"s","update":{text},"sessions":[{text}]}}"#).as_bytes());
    }
}
