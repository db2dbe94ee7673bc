//! What the bridge has to remember to survive a daemon: no I/O, so that every order of events can be tried.

use holdfast_protocol::acp::errors::NOT_NOW;
use holdfast_protocol::acp::method;
use holdfast_protocol::error::ErrorObject;
use holdfast_protocol::jsonrpc::{self, Frame, Id, Message, OwnedId, parse_frame};
use holdfast_protocol::raw;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

/// What we suggest a client to wait before it asks again: about as long as a daemon takes to start.
const RETRY_AFTER_MS: u64 = 1000;

/// What a request of the client will mean once it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// Its answer names a session that the client is attached to from then on.
    Makes(String),
    /// Its answer attaches the client to a session it named: id, and the params to attach again with.
    Attaches(String, String),
    /// Its answer detaches it.
    Detaches(String),
    /// Nothing to us.
    Other,
}

/// The bookkeeping of one client.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    /// The params of the client's `initialize`, once it was answered.
    initialize: Option<Box<RawValue>>,
    initialize_open: Option<(OwnedId, Box<RawValue>)>,
    /// Requests of the client that are not answered, in their order.
    open: Vec<(OwnedId, Pending)>,
    /// Requests of the daemon that the client has not answered.
    asked: Vec<OwnedId>,
    /// Sessions the client is attached to, and with which params to resume them.
    sessions: Vec<(String, String)>,
    /// Our own requests after a reconnect, whose answers are not the client's.
    replayed: Vec<(OwnedId, Option<String>)>,
    replays: u64,
}

/// What is to be done with a line of the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromDaemon {
    /// The client gets it, unchanged.
    Pass,
    /// It answers a replay of ours.
    Swallow,
}

/// What is to be done with a line of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromClient {
    /// The daemon gets it, unchanged.
    Pass,
    /// Nobody gets it: it answers a question that is withdrawn.
    Drop,
}

impl Bridge {
    /// Notes a line of the client on its way to the daemon.
    pub(super) fn heard_client(&mut self, line: &[u8]) -> FromClient {
        let Frame::Single(message) = parse_frame(line) else { return FromClient::Pass };
        match message {
            Message::Request { id, method, params } => self.requested(id, &method, params),
            Message::Response { id, .. } => {
                let id = id.to_owned();
                let before = self.asked.len();
                self.asked.retain(|asked| *asked != id);
                if self.asked.len() == before {
                    return FromClient::Drop;
                }
            }
            Message::Notification { .. } | Message::Invalid { .. } => {}
        }
        FromClient::Pass
    }

    fn requested(&mut self, id: Id<'_>, method: &str, params: Option<&RawValue>) {
        let text = params.map_or("{}", RawValue::get);
        let session = || raw::pick(text, ["sessionId"])[0].and_then(raw::string).map(std::borrow::Cow::into_owned);
        let pending = match method {
            method::INITIALIZE => {
                if let Some(params) = params {
                    self.initialize_open = Some((id.to_owned(), params.to_owned()));
                }
                Pending::Other
            }
            method::SESSION_NEW | method::SESSION_FORK => Pending::Makes(text.to_owned()),
            method::SESSION_LOAD | method::SESSION_RESUME => match session() {
                Some(session_id) => Pending::Attaches(session_id.clone(), resume_params(&session_id, text)),
                None => Pending::Other,
            },
            method::SESSION_CLOSE | method::SESSION_DELETE => session().map_or(Pending::Other, Pending::Detaches),
            _ => Pending::Other,
        };
        self.open.push((id.to_owned(), pending));
    }

    /// Notes a line of the daemon on its way to the client.
    pub(super) fn heard_daemon(&mut self, line: &[u8]) -> FromDaemon {
        let Frame::Single(message) = parse_frame(line) else { return FromDaemon::Pass };
        match message {
            Message::Request { id, .. } => self.asked.push(id.to_owned()),
            Message::Response { id, outcome } => {
                let id = id.to_owned();
                if let Some(index) = self.replayed.iter().position(|(replayed, _)| *replayed == id) {
                    let (_, session_id) = self.replayed.swap_remove(index);
                    if let (Some(session_id), Err(error)) = (session_id, outcome) {
                        self.not_resumed(&session_id, &error);
                    }
                    return FromDaemon::Swallow;
                }
                self.answered(&id, outcome.ok());
            }
            Message::Notification { method, params } if method == method::CANCEL_REQUEST => {
                let id = params.and_then(|params| raw::pick(params.get(), ["requestId"])[0]).and_then(Id::from_raw);
                if let Some(id) = id.map(Id::to_owned) {
                    self.asked.retain(|asked| *asked != id);
                }
            }
            Message::Notification { .. } | Message::Invalid { .. } => {}
        }
        FromDaemon::Pass
    }

    fn answered(&mut self, id: &OwnedId, result: Option<&RawValue>) {
        if self.initialize_open.as_ref().is_some_and(|(open, _)| open == id)
            && let Some((_, params)) = self.initialize_open.take()
            && result.is_some()
        {
            self.initialize = Some(params);
        }
        let Some(index) = self.open.iter().position(|(open, _)| open == id) else { return };
        let (_, pending) = self.open.remove(index);
        let Some(result) = result else { return };
        match pending {
            Pending::Makes(params) => {
                if let Some(session_id) = holdfast_protocol::acp::envelope::session_id(result) {
                    let params = resume_params(&session_id, &params);
                    self.attached(session_id.into_owned(), params);
                }
            }
            Pending::Attaches(session_id, params) => self.attached(session_id, params),
            Pending::Detaches(session_id) => self.sessions.retain(|(attached, _)| *attached != session_id),
            Pending::Other => {}
        }
    }

    fn attached(&mut self, session_id: String, params: String) {
        self.sessions.retain(|(attached, _)| *attached != session_id);
        self.sessions.push((session_id, params));
    }

    /// A session that is really gone is not asked for again; the client learns it at its next request.
    fn not_resumed(&mut self, session_id: &str, error: &ErrorObject) {
        if error.code == holdfast_protocol::acp::errors::RESOURCE_NOT_FOUND {
            self.sessions.retain(|(attached, _)| attached != session_id);
        }
    }

    /// The daemon went away: returns the lines that the client gets instead of what it waits for.
    pub(super) fn daemon_went(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        self.initialize_open = None;
        self.replayed.clear();
        for id in self.asked.drain(..) {
            let mut params = b"{\"requestId\":".to_vec();
            jsonrpc::IdText::write_id(&id, &mut params);
            params.push(b'}');
            // An id that came as JSON text goes out as the same text.
            if let Ok(params) = serde_json::from_slice::<Box<RawValue>>(&params) {
                jsonrpc::write_raw_notification(&mut lines, method::CANCEL_REQUEST, Some(&params));
            }
        }
        for (id, _) in self.open.drain(..) {
            jsonrpc::write_error_object(&mut lines, &id, &away());
        }
        lines
    }

    /// Returns the lines that attach a new connection as the old one was, and expects their answers: first `initialize`,
    /// whose answer has to be waited for.
    pub(super) fn greeting(&mut self) -> Option<Vec<u8>> {
        let params = self.initialize.clone()?;
        let mut line = Vec::new();
        let id = self.own_id(None);
        jsonrpc::write_raw_request(&mut line, &id, method::INITIALIZE, Some(&params));
        Some(line)
    }

    /// Returns the lines that attach the sessions again, once `initialize` was answered.
    pub(super) fn attachments(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        for (session_id, params) in self.sessions.clone() {
            let Ok(params) = RawValue::from_string(params) else { continue };
            let id = self.own_id(Some(session_id));
            jsonrpc::write_raw_request(&mut lines, &id, method::SESSION_RESUME, Some(&params));
        }
        lines
    }

    /// Says whether answers to our own requests are still to come.
    pub(super) fn is_replaying(&self) -> bool {
        !self.replayed.is_empty()
    }

    /// Makes an id that no client uses.
    fn own_id(&mut self, session_id: Option<String>) -> OwnedId {
        self.replays += 1;
        let id = OwnedId::Other(format!("\"holdfast-bridge/{}\"", self.replays).into());
        self.replayed.push((id.clone(), session_id));
        id
    }
}

/// Returns what a client gets that asks while there is no daemon. Its code is one on which no client starts anew.
pub(super) fn away() -> ErrorObject {
    #[derive(Serialize)]
    struct Data {
        kind: &'static str,
        retry_after_ms: u64,
    }
    ErrorObject {
        code: NOT_NOW,
        message: "the Holdfast daemon is away; sessions are kept".to_owned(),
        data: to_raw_value(&Data { kind: "daemon_away", retry_after_ms: RETRY_AFTER_MS }).ok(),
    }
}

/// Makes the params of `session/resume` out of those a session was made, loaded or resumed with.
fn resume_params(session_id: &str, params: &str) -> String {
    let [cwd, servers, directories] = raw::pick(params, ["cwd", "mcpServers", "additionalDirectories"]);
    let mut text = format!("{{\"sessionId\":{}", raw::quote(session_id));
    for (name, value) in
        [("cwd", cwd), ("mcpServers", Some(servers.unwrap_or("[]"))), ("additionalDirectories", directories)]
    {
        if let Some(value) = value {
            text.push_str(&format!(",\"{name}\":{value}"));
        }
    }
    text.push('}');
    text
}

/// Makes the answer to a line that is over the limit. Which request it was is not known.
pub(super) fn too_long(message: &str) -> Vec<u8> {
    let mut line = Vec::new();
    let error = ErrorObject {
        code: NOT_NOW,
        message: message.to_owned(),
        data: to_raw_value(&json!({ "kind": "too_large" })).ok(),
    };
    jsonrpc::write_error_object(&mut line, None::<OwnedId>, &error);
    line
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn values(lines: &[u8]) -> Vec<Value> {
        String::from_utf8(lines.to_vec()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn client(bridge: &mut Bridge, line: Value) -> FromClient {
        bridge.heard_client(line.to_string().as_bytes())
    }

    fn daemon(bridge: &mut Bridge, line: Value) -> FromDaemon {
        bridge.heard_daemon(line.to_string().as_bytes())
    }

    fn introduced() -> Bridge {
        let mut bridge = Bridge::default();
        client(
            &mut bridge,
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1, "x": 9 } }),
        );
        daemon(&mut bridge, json!({ "jsonrpc": "2.0", "id": 0, "result": {} }));
        bridge
    }

    #[test]
    fn a_client_is_introduced_again_and_its_sessions_resumed_but_never_made() {
        let mut bridge = introduced();
        let new =
            json!({ "cwd": "/w", "mcpServers": [{ "name": "m" }], "_meta": { "holdfast": { "sessionKey": "k" } } });
        client(&mut bridge, json!({ "jsonrpc": "2.0", "id": "a", "method": "session/new", "params": new }));
        daemon(&mut bridge, json!({ "jsonrpc": "2.0", "id": "a", "result": { "sessionId": "s1" } }));
        let load = json!({ "sessionId": "s2", "cwd": "/w", "mcpServers": [], "additionalDirectories": ["/x"] });
        client(&mut bridge, json!({ "jsonrpc": "2.0", "id": 2, "method": "session/load", "params": load }));
        daemon(&mut bridge, json!({ "jsonrpc": "2.0", "id": 2, "result": null }));
        for (id, outcome) in
            [(3, json!({ "error": { "code": -32002, "message": "no" } })), (4, json!({ "result": {} }))]
        {
            client(
                &mut bridge,
                json!({ "jsonrpc": "2.0", "id": id, "method": "session/resume", "params": { "sessionId": "s3", "cwd": "/w" } }),
            );
            let mut answer = outcome;
            answer["id"] = json!(id);
            answer["jsonrpc"] = json!("2.0");
            daemon(&mut bridge, answer);
        }
        client(
            &mut bridge,
            json!({ "jsonrpc": "2.0", "id": 5, "method": "session/close", "params": { "sessionId": "s3" } }),
        );
        daemon(&mut bridge, json!({ "jsonrpc": "2.0", "id": 5, "result": {} }));

        assert!(bridge.daemon_went().is_empty());
        let greeting = values(&bridge.greeting().unwrap());
        assert_eq!(greeting[0]["method"], "initialize");
        assert_eq!(greeting[0]["params"], json!({ "protocolVersion": 1, "x": 9 }));
        assert!(bridge.is_replaying());
        assert_eq!(
            daemon(&mut bridge, json!({ "jsonrpc": "2.0", "id": greeting[0]["id"], "result": {} })),
            FromDaemon::Swallow
        );

        let attachments = values(&bridge.attachments());
        assert_eq!(attachments.len(), 2);
        assert!(attachments.iter().all(|line| line["method"] == "session/resume"));
        assert_eq!(
            attachments[0]["params"],
            json!({ "sessionId": "s1", "cwd": "/w", "mcpServers": [{ "name": "m" }] })
        );
        assert_eq!(attachments[1]["params"], load);
        for line in &attachments {
            let answer = json!({ "jsonrpc": "2.0", "id": line["id"], "error": { "code": -32002, "message": "session not found" } });
            assert_eq!(daemon(&mut bridge, answer), FromDaemon::Swallow);
        }
        assert!(!bridge.is_replaying());
        assert!(bridge.attachments().is_empty(), "a session that is gone is not asked for again");
    }

    #[test]
    fn what_is_open_is_answered_or_withdrawn_when_the_daemon_goes() {
        let mut bridge = introduced();
        client(
            &mut bridge,
            json!({ "jsonrpc": "2.0", "id": 1.5, "method": "session/prompt", "params": { "sessionId": "s" } }),
        );
        client(&mut bridge, json!({ "jsonrpc": "2.0", "id": null, "method": "session/list" }));
        let question =
            |id: &str| json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {} });
        for id in ["q1", "q2", "q3"] {
            assert_eq!(daemon(&mut bridge, question(id)), FromDaemon::Pass);
        }
        let answer = |id: &str| json!({ "jsonrpc": "2.0", "id": id, "result": {} });
        assert_eq!(client(&mut bridge, answer("q1")), FromClient::Pass);
        let withdrawn = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": "q2" } });
        assert_eq!(daemon(&mut bridge, withdrawn.clone()), FromDaemon::Pass);

        let said = values(&bridge.daemon_went());
        assert_eq!(said.len(), 3);
        assert_eq!(said[0], json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": "q3" } }));
        assert_eq!(said[1]["id"], json!(1.5));
        assert_eq!(said[2]["id"], Value::Null);
        for answer in &said[1..] {
            assert_eq!(answer["error"]["code"], -32010);
            assert_eq!(answer["error"]["data"], json!({ "kind": "daemon_away", "retry_after_ms": 1000 }));
        }
        // The editor answers late what nobody asks any more.
        assert_eq!(client(&mut bridge, answer("q3")), FromClient::Drop);
        assert!(bridge.daemon_went().is_empty());
    }

    #[test]
    fn a_client_that_was_not_introduced_is_not_introduced_again() {
        let mut bridge = Bridge::default();
        assert!(bridge.greeting().is_none());
        client(&mut bridge, json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} }));
        assert_eq!(values(&bridge.daemon_went()).len(), 1);
        assert!(bridge.greeting().is_none());
        assert_eq!(bridge.heard_client(b"noise"), FromClient::Pass);
        assert_eq!(bridge.heard_daemon(b"[]"), FromDaemon::Pass);
    }
}
