//! `asker SOCKET AGENT=SESSION…`: asks the daemon about sessions from wherever it runs, and prints what it may see as
//! JSON. For each session: whether it is listed, and whether status, history, load and prompt find it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;

use holdfast_protocol::acp::errors::RESOURCE_NOT_FOUND;
use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{Events, EventsParams, List, ListParams, SessionKind, Show, ShowParams};
use holdfast_tests::acp_socket::AcpSocket;
use holdfast_tests::daemon::connect;
use serde_json::{Map, Value, json};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = PathBuf::from(arguments.next().expect("the daemon's socket"));
    let (mut rpc, _) = connect(&socket).unwrap();
    let acp_only = ListParams { kind: Some(SessionKind::Acp), ..ListParams::default() };
    let listed = rpc.call::<List>(&acp_only).unwrap().sessions;
    let mut seen = Map::new();
    for word in arguments {
        let (agent, session) = word.split_once('=').expect("AGENT=SESSION");
        let session_id: SessionId = session.parse().unwrap();
        let mut acp = AcpSocket::attach(&socket, agent).unwrap();
        let in_acp = acp.call("session/list", &json!({})).unwrap();
        let load = acp.load(session).unwrap().1;
        let prompt = acp.turn(session, "hi").unwrap();
        let events = EventsParams { session_id, after_seq: 0, limit: None };
        let answers = json!({
            "list": listed.iter().any(|row| row.session_id == session_id),
            "acp_list": in_acp["result"]["sessions"].as_array().unwrap().iter().any(|row| row["sessionId"] == session),
            "status": found(rpc.call::<Show>(&ShowParams { session_id })),
            "history": found(rpc.call::<Events>(&events)),
            "load": found_in_acp(&load),
            "prompt": found_in_acp(&prompt),
        });
        seen.insert(session.to_owned(), answers);
    }
    println!("{}", Value::Object(seen));
}

/// True, false, or the error when it is another than "not found".
fn found<T>(answer: Result<T, ClientError>) -> Value {
    match answer {
        Ok(_) => true.into(),
        Err(ClientError::Refused(error)) if error.kind == ErrorKind::NotFound => false.into(),
        Err(error) => error.to_string().into(),
    }
}

fn found_in_acp(answer: &Value) -> Value {
    match &answer["error"] {
        Value::Null => true.into(),
        error if error["code"] == RESOURCE_NOT_FOUND => false.into(),
        error => error.clone(),
    }
}
