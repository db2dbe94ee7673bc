use std::collections::BTreeSet;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::error::ErrorKind;
use crate::jsonrpc::parse_params;
use crate::method::openrpc_document;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

#[test]
fn every_name_is_used_once() {
    let names: BTreeSet<&str> = all().iter().map(|method| method.name).collect();
    assert_eq!(names.len(), all().len());
}

#[test]
fn the_openrpc_document_resolves_all_its_references() {
    let document = openrpc_document(&all(), "1.2.3");
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} points nowhere");
    }
}

fn collect_references(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => into.push(reference.clone()),
                    _ => collect_references(value, into),
                }
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| collect_references(element, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn an_event_body_is_kept_byte_for_byte() {
    let params = raw(
        r#"{"session_id":"0199a3c2-0000-7000-8000-000000000001","events":[{"kind":"message","role":"user","body":{ "n": 1.50, "big": 9007199254740993 }}]}"#,
    );
    let parsed: session::AppendParams = parse_params(Some(&params)).unwrap();
    assert_eq!(parsed.events[0].body.get(), r#"{ "n": 1.50, "big": 9007199254740993 }"#);
    assert_eq!(parsed.events[0].idempotency_key, None);
}

#[test]
fn the_place_of_a_fault_inside_an_event_is_named() {
    let params = raw(
        r#"{"session_id":"0199a3c2-0000-7000-8000-000000000001","events":[{"kind":"a","body":1},{"kind":7,"body":{}}]}"#,
    );
    let error = parse_params::<session::AppendParams>(Some(&params)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidParams);
    assert_eq!(error.path.as_deref(), Some("events[1].kind"));
}

#[test]
fn optional_params_may_be_missing() {
    assert_eq!(parse_params::<session::ListParams>(None).unwrap(), session::ListParams::default());
    assert_eq!(parse_params::<log::QueryParams>(None).unwrap(), log::QueryParams::default());
    assert_eq!(parse_params::<daemon::PingValue>(Some(&raw("{}"))).unwrap().value, None);
}

#[test]
fn a_detail_is_a_row_with_more_members() {
    let row = json!({
        "session_id": "0199a3c2-0000-7000-8000-000000000001", "agent_id": "demo", "kind": "chat", "status": "idle",
        "turn_state": "idle", "turn_count": 0, "message_count": 2, "created_at": "2026-03-08T07:00:00Z",
        "created_at_ms": 1_772_953_200_000_i64, "updated_at": "2026-03-08T07:00:00Z",
        "updated_at_ms": 1_772_953_200_000_i64,
    });
    let mut detail = row.clone();
    detail["last_seq"] = json!(2);
    let parsed: session::SessionDetail = serde_json::from_value(detail.clone()).unwrap();
    assert_eq!(serde_json::to_value(&parsed.row).unwrap(), row);
    assert_eq!(serde_json::to_value(&parsed).unwrap(), detail);
}
