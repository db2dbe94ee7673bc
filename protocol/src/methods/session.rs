//! Sessions: make, append, read, list, close. Chat and ACP sessions alike where nothing else is said.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::{AgentAlias, EventId, SessionId, TurnId};
use crate::method;

method!(
    New = "session/new", true, NewParams => NewResult,
    "Makes a chat session, or returns the current one of the session key."
);
method!(
    Append = "session/append", true, AppendParams => AppendResult,
    "Appends events to a chat session, all or none; durable when answered."
);
method!(
    Events = "session/events", false, EventsParams => EventsResult,
    "Returns a page of a session's events in order."
);
method!(
    List = "session/list", false, ListParams => ListResult,
    "Returns a page of sessions, the last changed first."
);
method!(
    Show = "session/show", false, ShowParams => SessionDetail,
    "Returns one session with all that is known of it except its events."
);
method!(
    Close = "session/close", true, CloseParams => CloseResult,
    "Closes a session: it stays readable and listed, and takes no more events."
);

/// Params of `session/new`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewParams {
    /// Whose session.
    pub agent_id: AgentAlias,
    /// The route of the conversation, any text up to 512 bytes. While it has a current session, that one is returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// What listings show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What kind of conversation it is; `main` when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<SessionScope>,
    /// The same key with the same params returns the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// What kind of conversation a chat session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionScope {
    /// The agent's main conversation.
    #[default]
    Main,
    /// With one person.
    Direct,
    /// With a group.
    Group,
    /// In a channel.
    Channel,
    /// In a thread of a channel.
    Thread,
    /// Of a background task.
    Task,
    /// From a web page.
    Web,
}

/// Result of `session/new`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewResult {
    /// The session.
    pub session_id: SessionId,
    /// Whether it was made now.
    pub created: bool,
}

/// Params of `session/append`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AppendParams {
    /// To which session.
    pub session_id: SessionId,
    /// What, in order.
    pub events: Vec<NewEvent>,
    /// For the request as a whole: the same key with the same events returns the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// An event to append.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewEvent {
    /// What it is: `message`, `tool_call`, `tool_result`, `thought`, `compaction`, `custom`.
    pub kind: String,
    /// Who said it: `user`, `assistant`, `system`, `tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The same key with the same body returns the first `seq`; with another body it is a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Any JSON, kept byte for byte.
    pub body: Box<RawValue>,
}

/// Result of `session/append`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppendResult {
    /// The position of each event, in the order in which they were given.
    pub seqs: Vec<u64>,
}

/// Params of `session/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsParams {
    /// Of which session.
    pub session_id: SessionId,
    /// Events behind this position; 0 and missing mean from the beginning.
    #[serde(default)]
    pub after_seq: u64,
    /// Events at most; 100 when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Result of `session/events`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EventsResult {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// One event of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its position: from 1, without gaps.
    pub seq: u64,
    /// Its id, the same for ever.
    pub event_id: EventId,
    /// What it is; see [`NewEvent::kind`].
    pub kind: String,
    /// Who said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The body, as it was given.
    pub body: Box<RawValue>,
    /// When it was appended.
    pub created_at_ms: i64,
}

/// Params of `session/list`. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListParams {
    /// Of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentAlias>,
    /// Of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<SessionKind>,
    /// In this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// On this session key, exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// Whose id begins with this; so a shortened id is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Goes on from `next_cursor` of an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Sessions at most; 100 when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Result of `session/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListResult {
    /// The sessions.
    pub sessions: Vec<SessionRow>,
    /// Where to go on; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What listings show of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRow {
    /// Its id.
    pub session_id: SessionId,
    /// Whose it is.
    pub agent_id: AgentAlias,
    /// Which store keeps it.
    pub kind: SessionKind,
    /// The route to it, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Where it stands.
    pub status: SessionStatus,
    /// Where its last turn stands.
    pub turn_state: TurnState,
    /// Turns so far.
    pub turn_count: u64,
    /// Messages so far.
    pub message_count: u64,
    /// When it was made, RFC 3339 in UTC.
    pub created_at: String,
    /// When it was made.
    pub created_at_ms: i64,
    /// When it last changed, RFC 3339 in UTC.
    pub updated_at: String,
    /// When it last changed.
    pub updated_at_ms: i64,
}

/// Which store keeps a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// With an agent that speaks ACP.
    Acp,
    /// A chat or channel session, appended to by its runtime.
    Chat,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// In use.
    Active,
    /// Not in use.
    Idle,
    /// Closed: readable only.
    Closed,
    /// It cannot go on.
    Failed,
}

/// Where the last turn of a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// It has ended, or there was none.
    Idle,
    /// It runs.
    Running,
    /// It ended with an error.
    Error,
    /// The daemon or the agent died in the middle of it.
    Interrupted,
}

/// Params of `session/show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShowParams {
    /// Which session.
    pub session_id: SessionId,
}

/// Result of `session/show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDetail {
    /// What listings show.
    #[serde(flatten)]
    pub row: SessionRow,
    /// What kind of conversation it is (chat sessions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<SessionScope>,
    /// The working directory (ACP sessions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The agent's own id of the session (ACP sessions). It changes when the session is resumed in a fresh one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session_id: Option<String>,
    /// The model in use, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The turn that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The position of the last event; 0 when there is none.
    pub last_seq: u64,
    /// Why the last turn failed or the session cannot go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Params of `session/close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CloseParams {
    /// Which session.
    pub session_id: SessionId,
    /// Closing twice is no error, with or without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Result of `session/close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CloseResult {
    /// Whether it was open until now.
    pub closed_now: bool,
}
