//! Error codes steer clients: on some of them a client silently starts an empty session. So codes are chosen here only.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::{ErrorKind, ErrorObject, WireError};
use crate::raw;

/// The user has to sign in first.
pub const AUTH_REQUIRED: i32 = -32000;
/// The session or file is really not there. acpx starts a new session on it.
pub const RESOURCE_NOT_FOUND: i32 = -32002;
/// Not now, but later: starting, busy, agent crashed, daemon away. Ours; clients show it and keep the session.
pub const NOT_NOW: i32 = -32010;
/// The request was cancelled by its sender.
pub const REQUEST_CANCELLED: i32 = -32800;

/// Makes the error for a session that is unknown, deleted or invisible to the caller: all three look the same.
pub fn session_not_found(session_id: &str) -> ErrorObject {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Data<'a> {
        session_id: &'a str,
    }
    ErrorObject {
        code: RESOURCE_NOT_FOUND,
        message: "session not found".to_owned(),
        data: to_data(&Data { session_id }),
    }
}

/// Makes the error for what may succeed later. `message` must not contain "session not found": acpx takes the text for
/// the code and starts a new session.
pub fn not_now(kind: ErrorKind, message: impl Into<String>, retry_after_ms: Option<u64>) -> ErrorObject {
    ErrorObject {
        code: NOT_NOW,
        message: message.into(),
        data: to_data(&NotNow { kind, retry_after_ms, remedy: None }),
    }
}

/// The `data` of [`NOT_NOW`].
#[derive(Serialize)]
struct NotNow<'a> {
    kind: ErrorKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
}

/// Turns one of our errors into what an ACP client is told. `session_id` is the session it is about, as the client
/// calls it.
///
/// Nothing but a fault of ours gives -32603, since acpx replaces a session without messages on that code too.
pub fn acp_error(error: &WireError, session_id: Option<&str>) -> ErrorObject {
    match error.kind {
        ErrorKind::ParseError
        | ErrorKind::InvalidRequest
        | ErrorKind::MethodNotFound
        | ErrorKind::InvalidParams
        | ErrorKind::Internal => error.to_object(),
        ErrorKind::NotFound => match session_id {
            Some(session_id) => session_not_found(session_id),
            None => ErrorObject { code: RESOURCE_NOT_FOUND, ..error.to_object() },
        },
        ErrorKind::AuthRequired => ErrorObject { code: AUTH_REQUIRED, ..error.to_object() },
        ErrorKind::Cancelled => ErrorObject { code: REQUEST_CANCELLED, ..error.to_object() },
        ErrorKind::NotInitialized
        | ErrorKind::TooLarge
        | ErrorKind::Busy
        | ErrorKind::Timeout
        | ErrorKind::Interrupted
        | ErrorKind::Down
        | ErrorKind::Damaged
        | ErrorKind::NewerSchema
        | ErrorKind::StorageFull
        | ErrorKind::ReadOnly
        | ErrorKind::Locked
        | ErrorKind::Conflict
        | ErrorKind::Denied
        | ErrorKind::ConfigInvalid
        | ErrorKind::AgentFailed
        | ErrorKind::Stopping => {
            let retry_after_ms = error.kind.retryable().then_some(RETRY_AFTER_MS);
            let data = NotNow { kind: error.kind, retry_after_ms, remedy: error.remedy.as_deref() };
            ErrorObject { code: NOT_NOW, message: error.message.clone(), data: to_data(&data) }
        }
    }
}

/// What we suggest to wait: longer than a surface takes to restart, short enough for a person.
const RETRY_AFTER_MS: u64 = 1000;

/// Says whether an agent's error means that it does not know the session (any more), so that it has to be rebuilt.
///
/// Agents agree neither on the code nor on the text: codex and claude answer prompts with -32002, gemini, opencode and
/// pi with -32602 and a text; on load codex and gemini use -32603 with texts of their own, qwen -32002 with a URI.
pub fn is_unknown_session(error: &ErrorObject) -> bool {
    const TEXTS: [&str; 5] =
        ["session not found", "unknown session", "no such session", "invalid session identifier", "no rollout found"];
    if error.code == RESOURCE_NOT_FOUND {
        // A missing file has the same code; its data names a file, not a session.
        let uri = error.data.as_deref().and_then(|data| raw::pick(data.get(), ["uri"])[0]).and_then(raw::string);
        return !uri.is_some_and(|uri| uri.starts_with("file:"));
    }
    let data = error.data.as_deref().map_or("", RawValue::get).to_lowercase();
    let message = error.message.to_lowercase();
    TEXTS.iter().any(|text| message.contains(text) || data.contains(text))
}

fn to_data(data: &impl Serialize) -> Option<Box<RawValue>> {
    // Structs of strings, numbers and enums always serialise; without `data` the code still stands.
    serde_json::value::to_raw_value(data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_what_clients_look_for() {
        let text = serde_json::to_string(&session_not_found("s")).unwrap();
        assert_eq!(text, r#"{"code":-32002,"message":"session not found","data":{"sessionId":"s"}}"#);
        let text = serde_json::to_string(&not_now(ErrorKind::Busy, "the queue is full", Some(500))).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32010,"message":"the queue is full","data":{"kind":"busy","retry_after_ms":500}}"#
        );
    }

    #[test]
    fn only_missing_sessions_and_our_faults_have_codes_that_replace_sessions() {
        let code = |kind| acp_error(&WireError::new(kind, "x"), Some("s")).code;
        assert_eq!(code(ErrorKind::NotFound), -32002);
        assert_eq!(code(ErrorKind::Internal), -32603);
        assert_eq!(code(ErrorKind::AuthRequired), -32000);
        for kind in [ErrorKind::AgentFailed, ErrorKind::Down, ErrorKind::Interrupted, ErrorKind::Denied] {
            assert_eq!(code(kind), -32010, "{kind:?}");
        }
    }

    #[test]
    fn agents_say_unknown_session_in_many_ways() {
        for (text, unknown) in [
            (r#"{"code":-32002,"message":"Resource not found","data":{"uri":"session-1"}}"#, true),
            (r#"{"code":-32002,"message":"Resource not found","data":{"uri":"file:///a"}}"#, false),
            (r#"{"code":-32602,"message":"Session not found: x"}"#, true),
            (r#"{"code":-32602,"message":"Invalid params"}"#, false),
            (r#"{"code":-32603,"message":"Internal error","data":{"details":"Session not found"}}"#, true),
            (r#"{"code":-32603,"message":"no rollout found for thread id"}"#, true),
            (r#"{"code":-32603,"message":"service failure"}"#, false),
        ] {
            let error: ErrorObject = serde_json::from_str(text).unwrap();
            assert_eq!(is_unknown_session(&error), unknown, "{text}");
        }
    }
}
