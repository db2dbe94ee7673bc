//! How a turn ends: for the shell, for programs, for people.

use std::io;

use holdfast_protocol::acp::errors;
use holdfast_protocol::acp::prompt::StopReason;
use holdfast_protocol::error::{ErrorKind, ErrorObject};
use holdfast_protocol::raw;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::render::{Exit, Failure};

/// Why there was no turn, or no end of it.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A failure that says all by itself.
    Told(Failure),
    /// The daemon, or the agent behind it, answered with an error.
    Refused(ErrorObject),
    /// The connection ended.
    DaemonWent(Option<String>),
    /// The person left before there was a turn to cancel.
    Interrupted,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Told(failure)
    }
}

impl From<io::Error> for Trouble {
    /// All input and output of a turn that is not the terminal is the connection.
    fn from(error: io::Error) -> Self {
        Self::DaemonWent(Some(error.to_string()))
    }
}

impl Trouble {
    /// The daemon said what it may not say.
    pub(super) fn strange(what: &str) -> Self {
        Self::Told(
            Failure::new(Exit::Failed, what).hint("daemon and program may be of different versions: holdfast status"),
        )
    }

    /// Returns the `error` of the last JSON line.
    pub(super) fn to_json(&self, session_id: Option<&str>) -> Value {
        let mut error = match self {
            Self::Refused(object) => json!({ "code": object.code, "message": object.message, "data": object.data }),
            Self::Told(Failure::Fault(fault)) => json!({ "message": fault.message }),
            Self::Told(Failure::PipeClosed) => json!({ "message": "standard output was closed" }),
            Self::DaemonWent(_) => json!({ "message": WENT, "kind": "daemon_away" }),
            Self::Interrupted => json!({ "message": "interrupted", "kind": ErrorKind::Cancelled.name() }),
        };
        if let Self::Refused(ErrorObject { data: Some(data), .. }) = self
            && let Some(kind) = raw::pick(data.get(), ["kind"])[0].and_then(raw::string)
        {
            error["kind"] = json!(kind);
        }
        if let Some(session_id) = session_id {
            error["session_id"] = json!(session_id);
        }
        error
    }

    /// Returns what the person is told. `again` continues the session, if there is one.
    pub(super) fn into_failure(self, agent: &str, again: Option<String>) -> Failure {
        let failure = match self {
            Self::Told(failure) => return failure,
            Self::Interrupted => return Failure::new(Exit::Interrupted, "interrupted"),
            Self::DaemonWent(reason) => {
                let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                Failure::new(Exit::DaemonUnreachable, format!("{WENT}{reason}"))
            }
            Self::Refused(object) => {
                let remedy = object.data.as_deref().and_then(|data| raw::pick(data.get(), ["remedy"])[0]);
                let failure = Failure::new(exit_of_error(&object), object.message.clone());
                match remedy.and_then(raw::string) {
                    Some(remedy) => failure.hint(remedy),
                    None if object.code == errors::AUTH_REQUIRED => {
                        failure.hint(format!("sign in with the agent's own program, then try `{agent}` again"))
                    }
                    None => failure,
                }
            }
        };
        match again {
            Some(again) => failure.hint(format!("what was stored is kept; to go on: {again}")),
            None => failure.hint("holdfast status"),
        }
    }
}

const WENT: &str = "the daemon went away before the turn ended";

fn kind_of(error: &ErrorObject) -> Option<ErrorKind> {
    let kind = error.data.as_deref().and_then(|data| raw::pick(data.get(), ["kind"])[0])?;
    serde_json::from_str(kind).ok()
}

/// Says whether the daemon gave an error this kind.
pub(super) fn is_of_kind(error: &ErrorObject, kind: ErrorKind) -> bool {
    kind_of(error) == Some(kind)
}

/// Chooses the exit code for an error of ACP.
pub(super) fn exit_of_error(error: &ErrorObject) -> Exit {
    match error.code {
        errors::RESOURCE_NOT_FOUND => Exit::NotFound,
        errors::AUTH_REQUIRED => Exit::Refused,
        errors::REQUEST_CANCELLED => Exit::Interrupted,
        errors::NOT_NOW => kind_of(error).map_or(Exit::Failed, Exit::of_kind),
        -32602 | -32601 => Exit::Usage,
        _ => Exit::Failed,
    }
}

/// Chooses the exit code for the end of a turn. A limit that was hit is an end like any other; the stop reason says so.
pub(super) fn exit_of_stop_reason(stop_reason: Option<&StopReason<'_>>) -> Exit {
    match stop_reason {
        Some(StopReason::Refusal) => Exit::Failed,
        Some(StopReason::Cancelled) => Exit::Interrupted,
        None
        | Some(StopReason::EndTurn | StopReason::MaxTokens | StopReason::MaxTurnRequests | StopReason::Other(_)) => {
            Exit::Ok
        }
    }
}

/// Returns the last JSON line of a turn that ended. The agent's own usage is passed on as it came.
pub(super) fn result_line(session_id: &str, result: &RawValue) -> Value {
    let [stop_reason, usage] = raw::pick(result.get(), ["stopReason", "usage"]);
    let value = |raw: &str| serde_json::from_str::<Value>(raw).unwrap_or(Value::Null);
    let mut line = json!({ "session_id": session_id, "stop_reason": stop_reason.map_or(Value::Null, value) });
    if let Some(usage) = usage.and_then(raw::not_null) {
        line["usage"] = value(usage);
    }
    json!({ "result": line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> ErrorObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn errors_have_the_exit_codes_of_their_kinds() {
        for (text, exit) in [
            (r#"{"code":-32002,"message":"session not found","data":{"sessionId":"s"}}"#, Exit::NotFound),
            (r#"{"code":-32000,"message":"sign in"}"#, Exit::Refused),
            (r#"{"code":-32010,"message":"x","data":{"kind":"denied"}}"#, Exit::Refused),
            (r#"{"code":-32010,"message":"x","data":{"kind":"stopping"}}"#, Exit::DaemonUnreachable),
            (r#"{"code":-32010,"message":"x","data":{"kind":"agent_failed"}}"#, Exit::Failed),
            (r#"{"code":-32010,"message":"x","data":{"kind":"new"}}"#, Exit::Failed),
            (r#"{"code":-32602,"message":"x"}"#, Exit::Usage),
            (r#"{"code":-32603,"message":"x"}"#, Exit::Failed),
        ] {
            assert_eq!(exit_of_error(&error(text)), exit, "{text}");
        }
        assert_eq!(exit_of_stop_reason(Some(&StopReason::Refusal)), Exit::Failed);
        assert_eq!(exit_of_stop_reason(Some(&StopReason::Cancelled)), Exit::Interrupted);
        assert_eq!(exit_of_stop_reason(Some(&StopReason::MaxTokens)), Exit::Ok);
    }

    #[test]
    fn the_last_line_holds_what_scripts_read() {
        let result =
            RawValue::from_string(r#"{"stopReason":"end_turn","usage":{"inputTokens":2}}"#.to_owned()).unwrap();
        assert_eq!(
            result_line("s", &result),
            json!({ "result": { "session_id": "s", "stop_reason": "end_turn", "usage": { "inputTokens": 2 } } })
        );
        let trouble = Trouble::Refused(error(r#"{"code":-32010,"message":"x","data":{"kind":"agent_failed"}}"#));
        let shown = trouble.to_json(Some("s"));
        assert_eq!((&shown["kind"], &shown["code"]), (&json!("agent_failed"), &json!(-32010)));
        assert_eq!(shown["session_id"], "s");
    }
}
