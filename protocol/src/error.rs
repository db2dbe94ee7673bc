//! The one error shape on the wire: a stable kind for programs, a message and a remedy for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What went wrong, for programs. Kinds are stable; messages may improve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The frame is not JSON.
    ParseError,
    /// The frame is JSON but no JSON-RPC 2.0 request.
    InvalidRequest,
    /// No such method.
    MethodNotFound,
    /// The params do not fit the method.
    InvalidParams,
    /// A fault of ours.
    Internal,
    /// `initialize` has not been answered on this connection yet.
    NotInitialized,
    /// A limit on size was passed.
    TooLarge,
    /// Too much is in flight; nothing was done.
    Busy,
    /// No answer in time; the outcome is unknown.
    Timeout,
    /// The owner of the state died with the request in hand; the outcome is unknown.
    Interrupted,
    /// The surface is down; the message says why.
    Down,
    /// The surface's file is damaged.
    Damaged,
    /// The surface's file was written by a newer program.
    NewerSchema,
    /// The disk is full; nothing was stored.
    StorageFull,
    /// The store can't be written.
    ReadOnly,
    /// Another process holds the store.
    Locked,
    /// No such thing, or not visible to the caller.
    NotFound,
    /// The request contradicts what is stored.
    Conflict,
    /// The caller may not do this.
    Denied,
    /// The request was cancelled by its sender.
    Cancelled,
    /// `config.toml` is not valid.
    ConfigInvalid,
    /// The agent could not be started or ended in the middle of a request.
    AgentFailed,
    /// The agent wants the user to sign in first.
    AuthRequired,
    /// The daemon is stopping.
    Stopping,
}

impl ErrorKind {
    /// Returns the JSON-RPC error code: the protocol's own for protocol faults, -32000 for all of ours.
    ///
    /// Source: JSON-RPC 2.0, section 5.1. Programs tell our kinds apart by `data.kind`.
    pub fn code(self) -> i32 {
        match self {
            Self::ParseError => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Internal => -32603,
            Self::NotInitialized
            | Self::TooLarge
            | Self::Busy
            | Self::Timeout
            | Self::Interrupted
            | Self::Down
            | Self::Damaged
            | Self::NewerSchema
            | Self::StorageFull
            | Self::ReadOnly
            | Self::Locked
            | Self::NotFound
            | Self::Conflict
            | Self::Denied
            | Self::Cancelled
            | Self::ConfigInvalid
            | Self::AgentFailed
            | Self::AuthRequired
            | Self::Stopping => -32000,
        }
    }

    /// Says whether the same request may succeed later without any change.
    ///
    /// `Timeout` and `Interrupted` are retryable with the same idempotency key: their outcome is unknown.
    pub fn retryable(self) -> bool {
        match self {
            Self::Busy | Self::Timeout | Self::Interrupted | Self::Locked | Self::Stopping | Self::StorageFull => true,
            Self::ParseError
            | Self::InvalidRequest
            | Self::MethodNotFound
            | Self::InvalidParams
            | Self::Internal
            | Self::NotInitialized
            | Self::TooLarge
            | Self::Down
            | Self::Damaged
            | Self::NewerSchema
            | Self::ReadOnly
            | Self::NotFound
            | Self::Conflict
            | Self::Denied
            | Self::Cancelled
            | Self::ConfigInvalid
            | Self::AgentFailed
            | Self::AuthRequired => false,
        }
    }

    /// Returns the stable name, as `data.kind` holds it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ParseError => "parse_error",
            Self::InvalidRequest => "invalid_request",
            Self::MethodNotFound => "method_not_found",
            Self::InvalidParams => "invalid_params",
            Self::Internal => "internal",
            Self::NotInitialized => "not_initialized",
            Self::TooLarge => "too_large",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Down => "down",
            Self::Damaged => "damaged",
            Self::NewerSchema => "newer_schema",
            Self::StorageFull => "storage_full",
            Self::ReadOnly => "read_only",
            Self::Locked => "locked",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Cancelled => "cancelled",
            Self::ConfigInvalid => "config_invalid",
            Self::AgentFailed => "agent_failed",
            Self::AuthRequired => "auth_required",
            Self::Stopping => "stopping",
        }
    }
}

/// An error as it goes over the wire and to people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WireError {
    /// What went wrong, for programs.
    pub kind: ErrorKind,
    /// What went wrong, for people: what, where, why.
    pub message: String,
    /// What to do about it, where we know.
    pub remedy: Option<String>,
    /// The place in the params the error is about, as a JSON path (`events[0].kind`).
    pub path: Option<String>,
}

/// `data` of a JSON-RPC error object.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    /// The stable kind.
    pub kind: ErrorKind,
    /// The message again, so that `data` stands alone in a log.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Whether the same request may succeed later without any change.
    pub retryable: bool,
    /// The place in the params the error is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A JSON-RPC 2.0 error object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorObject {
    /// The code; see [`ErrorKind::code`].
    pub code: i32,
    /// One sentence.
    pub message: String,
    /// Ours is an [`ErrorData`]; an agent's may be anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

impl WireError {
    /// Makes an error without remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: None, path: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds the place in the params.
    #[must_use]
    pub fn at_path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Turns the error into the JSON-RPC error object.
    pub fn to_object(&self) -> ErrorObject {
        let data = ErrorData {
            kind: self.kind,
            message: self.message.clone(),
            remedy: self.remedy.clone(),
            retryable: self.kind.retryable(),
            path: self.path.clone(),
        };
        ErrorObject {
            code: self.kind.code(),
            message: self.message.clone(),
            // A struct of strings, a bool and an enum always serialises; without `data` the code still stands.
            data: serde_json::value::to_raw_value(&data).ok(),
        }
    }

    /// Reads an error object that the daemon sent. Foreign codes become [`ErrorKind::Internal`].
    pub fn from_object(object: &ErrorObject) -> Self {
        let data = object.data.as_deref().and_then(|raw| serde_json::from_str::<ErrorData>(raw.get()).ok());
        match data {
            Some(data) => {
                Self { kind: data.kind, message: object.message.clone(), remedy: data.remedy, path: data.path }
            }
            None => {
                let kind = match object.code {
                    -32700 => ErrorKind::ParseError,
                    -32600 => ErrorKind::InvalidRequest,
                    -32601 => ErrorKind::MethodNotFound,
                    -32602 => ErrorKind::InvalidParams,
                    _ => ErrorKind::Internal,
                };
                Self::new(kind, object.message.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_the_wire() {
        let error = WireError::new(ErrorKind::Conflict, "job `a` already exists").with_remedy("choose another name");
        let text = serde_json::to_string(&error.to_object()).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32000,"message":"job `a` already exists","data":{"kind":"conflict","message":"job `a` already exists","remedy":"choose another name","retryable":false}}"#
        );
        let back = WireError::from_object(&serde_json::from_str(&text).unwrap());
        assert_eq!(back, error);
    }

    #[test]
    fn names_are_what_serde_writes() {
        for kind in [ErrorKind::ParseError, ErrorKind::NewerSchema, ErrorKind::Down, ErrorKind::AuthRequired] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{}\"", kind.name()));
        }
    }
}
