use super::*;
use proptest::prelude::*;

#[test]
fn known_spellings_lose_their_secret_and_nothing_else() {
    for (before, after) in [
        (
            r#"denied: export DEMO_API_KEY="sk-live-AAAA1111BBBB2222"; ls"#,
            r#"denied: export DEMO_API_KEY="[redacted]"; ls"#,
        ),
        ("authorization: Bearer zc_9f8e7d6c5b4a3210", "authorization: [redacted]"),
        ("got Bearer zc_9f8e7d6c5b4a3210, refused", "got Bearer [redacted], refused"),
        ("key sk-live-AAAA1111BBBB2222.", "key [redacted]."),
        (r#"{"params":{"token":"abc def","n":1}}"#, r#"{"params":{"token":"[redacted]","n":1}}"#),
        (r#"{\"password\":\"p\\\"w\",\"n\":1}"#, r#"{\"password\":\"[redacted]\",\"n\":1}"#),
        (
            r#"Params { password: Some("x"), code: "ABCD2345" }"#,
            r#"Params { password: Some("[redacted]"), code: "[redacted]" }"#,
        ),
        ("curl --token abc -v", "curl --token [redacted] -v"),
        ("curl --api-key=abc -v", "curl --api-key=[redacted] -v"),
        ("GET /x?access_token=abc&y=1", "GET /x?access_token=[redacted]&y=1"),
        ("Cookie: a=b; c=d\nnext", "Cookie: [redacted]\nnext"),
        ("postgres://me:pw@host/db", "postgres://me:[redacted]@host/db"),
        ("OPENAI_KEY=abc", "OPENAI_KEY=[redacted]"),
        ("id AKIAIOSFODNN7EXAMPLE here", "id [redacted] here"),
        ("a\\nsk-live-AAAA1111BBBB2222", "a\\n[redacted]"),
        ("x%20zc_9f8e7d6c5b4a3210", "x%20[redacted]"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\nrest", "[redacted]\nrest"),
        ("AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQ", "[redacted]"),
        ("pairing code: ABCD-2345", "pairing code: [redacted]"),
    ] {
        assert_eq!(redact_text(before), after, "of {before}");
    }
}

#[test]
fn ordinary_text_stays() {
    for text in [
        "input_tokens=512 output_tokens: 7",
        "session_key=chat:telegram:1 idempotency_key: 0199a3c2-0000-7000-8000-000000000001",
        "unexpected token: expected a comma",
        "exit code: 137, code=404, code: \"ENOENT\"",
        "bearer authentication is off",
        "pip install sk-learn",
        "blake3 af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "http://127.0.0.1:7420/api/rpc listens; mail a@b.c",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "token_count=3 secret_name=demo password_file=/x",
        "token: null, password: None",
        "the secret of good coffee is patience",
        "größe=3 ms, naïve",
    ] {
        assert_eq!(redact_text(text), text);
    }
}

#[test]
fn fields_go_by_their_name() {
    for name in [
        "token",
        "access_token",
        "accessToken",
        "secret",
        "client_secret",
        "Authorization",
        "api_key",
        "apiKey",
        "X-API-Key",
        "set-cookie",
        "pairing_code",
        "password_hash",
        "private_key",
        "DEMO_KEY",
        "paired_tokens",
    ] {
        assert_eq!(redact_value(name, "v".into()), MARK, "{name}");
    }
    for name in ["session_key", "key", "client_key", "output_tokens", "tokens", "code", "token_count", "monkey"] {
        assert_eq!(redact_value(name, "v".into()), "v", "{name}");
    }
    assert_eq!(redact_value("code", "ABCD2345".into()), MARK);
    assert_eq!(redact_value("code", 137.into()), 137);
    assert_eq!(redact_value("token", 123456.into()), MARK);
    let nested = serde_json::json!({"a": [{"token": "x", "b": "sk-live-AAAA1111BBBB2222"}], "c": 1});
    let clean = serde_json::json!({"a": [{"token": MARK, "b": MARK}], "c": 1});
    assert_eq!(redact_value("params", nested), clean);
}

fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "sk-live-[A-Z0-9]{16}",
        "sk-ant-[A-Za-z0-9_-]{24,40}",
        "zc_[0-9a-f]{16}[0-9]",
        "ghp_[A-Za-z0-9]{36}",
        "github_pat_[A-Za-z0-9_]{40}",
        "AKIA[A-Z]{15}[0-9]",
        "AGE-SECRET-KEY-1[A-Z0-9]{58}",
        "xoxb-[0-9]{12}-[A-Za-z0-9]{24}",
        "hdf_[0-9a-f]{64}",
        "eyJ[A-Za-z0-9]{20}\\.eyJ[A-Za-z0-9]{20}\\.[A-Za-z0-9_-]{20}",
    ]
}

fn prose() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("the session ended".to_owned()),
        Just("größe ✓".to_owned()),
        Just("{\"a\": [1, 2]}".to_owned()),
        Just("at /var/lib/x/y.db:12".to_owned()),
        Just("input_tokens=5".to_owned()),
        Just("session_key=a:b".to_owned()),
        Just("0199a3c2-0000-7000-8000-000000000001".to_owned()),
        Just("2026-01-02T02:00:00Z".to_owned()),
        Just("https://example.org/a?b=c#d".to_owned()),
        "[0-9a-f]{64}",
        "[a-z]{1,9}[.,;!]?",
        "[0-9]{1,9}( ms)?",
    ];
    proptest::collection::vec(word, 0..8).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn no_planted_secret_survives(
        before in prose(),
        after in prose(),
        secret in secret(),
        wrap in prop_oneof![
            Just((" ", " ")), Just("\"\"").prop_map(|_| ("\"", "\"")), Just(("'", "'")), Just(("=", "&")),
            Just(("(", ")")), Just((": ", ",")), Just(("\\n", "\\n")), Just(("%20", " ")), Just(("\\\"", "\\\"")),
            Just(("Bearer ", "\n")), Just(("<", ">")), Just(("[", "]")), Just(("é", "é")),
        ],
    ) {
        let text = format!("{before}{}{secret}{}{after}", wrap.0, wrap.1);
        // `before` may end in a letter right before the secret only when the wrapper is a letter, and none is ASCII.
        let clean = redact_text(&text);
        prop_assert!(!clean.contains(&secret), "{clean}");
        prop_assert_eq!(redact_text(&clean), clean.as_ref(), "twice is once");
    }

    #[test]
    fn no_named_value_survives(
        before in prose(),
        name in prop_oneof![
            Just("password"), Just("api_key"), Just("client_secret"), Just("ACCESS_TOKEN"), Just("Authorization"),
            Just("apiKey"), Just("pairing_code"), Just("refresh_token"), Just("DEMO_KEY"), Just("cookie"),
        ],
        form in 0usize..8,
        value in "[A-Za-z0-9+/]{8,40}",
        after in prose(),
    ) {
        let text = match form {
            0 => format!("{before} {name}={value} {after}"),
            1 => format!("{before} {name}: {value}\n{after}"),
            2 => format!("{before} {{\"{name}\":\"{value}\"}} {after}"),
            3 => format!("{before} {{\\\"{name}\\\":\\\"{value}\\\"}} {after}"),
            4 => format!("{before} export {name}=\"{value}\"; {after}"),
            5 => format!("{before} S {{ {name}: Some(\"{value}\") }} {after}"),
            6 => format!("{before} --{name} {value} {after}"),
            _ => format!("{before} ['{name}'] = '{value}' {after}"),
        };
        let clean = redact_text(&text);
        prop_assert!(!clean.contains(&value), "{clean}");
    }

    #[test]
    fn ordinary_prose_is_unchanged(text in prose()) {
        prop_assert_eq!(redact_text(&text), text.as_str());
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC*", mixed in "(password|:|=|\"|\\\\|'|é|://|@|Bearer |sk-|%20| |a|-----BEGIN |PRIVATE KEY-----){0,20}") {
        redact_text(&text);
        redact_text(&mixed);
    }
}
