//! What goes into the store and comes out of it.

use holdfast_protocol::ids::{AgentAlias, EventId, SessionId, TurnId};
use holdfast_protocol::methods::session::{SessionScope, SessionStatus, TurnState};

use crate::kit::idempotency::BodyHash;

/// A closed set of names that a column holds.
macro_rules! names {
    ($type:ty { $($variant:ident = $name:literal),+ $(,)? } $to:ident $from:ident) => {
        /// Returns the name in the store.
        pub(super) fn $to(value: $type) -> &'static str {
            match value {
                $(<$type>::$variant => $name),+
            }
        }

        /// Reads the name in the store.
        pub(super) fn $from(name: &str) -> Option<$type> {
            match name {
                $($name => Some(<$type>::$variant),)+
                _ => None,
            }
        }
    };
}

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Something said.
    Message,
    /// A tool that the model wants to use.
    ToolCall,
    /// What the tool gave.
    ToolResult,
    /// What the model thought.
    Thought,
    /// A marker that hides older events from the model's view.
    Compaction,
    /// A marker that a turn was cut off.
    Interrupted,
    /// Anything else that the runtime keeps.
    Custom,
}

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventRole {
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The runtime.
    System,
    /// A tool.
    Tool,
}

names!(EventKind {
    Message = "message",
    ToolCall = "tool_call",
    ToolResult = "tool_result",
    Thought = "thought",
    Compaction = "compaction",
    Interrupted = "interrupted",
    Custom = "custom",
} kind_name kind_named);

names!(EventRole {
    User = "user",
    Assistant = "assistant",
    System = "system",
    Tool = "tool",
} role_name role_named);

names!(SessionScope {
    Main = "main",
    Direct = "direct",
    Group = "group",
    Channel = "channel",
    Thread = "thread",
    Task = "task",
    Web = "web",
} scope_name scope_named);

names!(SessionStatus {
    Active = "active",
    Idle = "idle",
    Closed = "closed",
    Failed = "failed",
} status_name status_named);

/// Reads where a turn stands.
pub(super) fn turn_state_named(name: &str) -> Option<TurnState> {
    match name {
        "idle" => Some(TurnState::Idle),
        "running" => Some(TurnState::Running),
        "error" => Some(TurnState::Error),
        "interrupted" => Some(TurnState::Interrupted),
        _ => None,
    }
}

impl EventKind {
    /// All names.
    pub const NAMES: [&str; 7] =
        ["message", "tool_call", "tool_result", "thought", "compaction", "interrupted", "custom"];

    /// Returns the name, as on the wire.
    pub fn name(self) -> &'static str {
        kind_name(self)
    }

    /// Reads the name.
    pub fn named(name: &str) -> Option<Self> {
        kind_named(name)
    }
}

impl EventRole {
    /// All names.
    pub const NAMES: [&str; 4] = ["user", "assistant", "system", "tool"];

    /// Returns the name, as on the wire.
    pub fn name(self) -> &'static str {
        role_name(self)
    }

    /// Reads the name.
    pub fn named(name: &str) -> Option<Self> {
        role_named(name)
    }
}

/// A session to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// Its id, should it be made.
    pub session_id: SessionId,
    /// Whose it is.
    pub agent_id: AgentAlias,
    /// Its route: 1 to 512 bytes. While the route leads to a session that is not closed, that one is the answer.
    pub session_key: Option<String>,
    /// What kind of conversation it is.
    pub scope: SessionScope,
    /// What listings show.
    pub display_name: Option<String>,
    /// The key of the request and the hash of its body.
    pub request: Option<(String, BodyHash)>,
}

/// What became of a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionInserted {
    /// The session.
    pub session_id: SessionId,
    /// Whether it was made now.
    pub created: bool,
}

/// Events for one session, stored whole or not at all.
#[derive(Debug, Clone)]
pub struct Append {
    /// To which session.
    pub session_id: SessionId,
    /// What, in order.
    pub events: Vec<EventDraft>,
    /// The key of the whole append, for this session.
    pub request_key: Option<String>,
}

/// An event to be stored.
#[derive(Debug, Clone)]
pub struct EventDraft {
    /// Its id, should it be stored.
    pub event_id: EventId,
    /// The event it follows, if not simply the one before.
    pub parent_event_id: Option<EventId>,
    /// What it is.
    pub kind: EventKind,
    /// Who said it.
    pub role: Option<EventRole>,
    /// Its own key, for this session.
    pub idempotency_key: Option<String>,
    /// When it was said, UTC milliseconds.
    pub created_at_ms: i64,
    /// JSON, kept byte for byte.
    pub body_json: String,
}

/// Where appended events lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The position of each event, in the order in which they were given.
    pub seqs: Vec<u64>,
    /// Whether anything was stored now; false when all of it had been stored before.
    pub stored: bool,
}

/// An event as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its position: from 1, without gaps.
    pub seq: u64,
    /// Its id.
    pub event_id: EventId,
    /// The event it follows, if not simply the one before.
    pub parent_event_id: Option<EventId>,
    /// What it is.
    pub kind: EventKind,
    /// Who said it.
    pub role: Option<EventRole>,
    /// When it was said, UTC milliseconds.
    pub created_at_ms: i64,
    /// The body, as it was given.
    pub body_json: String,
}

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its id.
    pub session_id: SessionId,
    /// Whose it is.
    pub agent_id: AgentAlias,
    /// The route it was made for.
    pub session_key: Option<String>,
    /// What kind of conversation it is.
    pub scope: SessionScope,
    /// Where it stands.
    pub status: SessionStatus,
    /// What listings show.
    pub display_name: Option<String>,
    /// The model in use.
    pub model: Option<String>,
    /// Where its last turn stands.
    pub turn_state: TurnState,
    /// The turn that runs.
    pub turn_id: Option<TurnId>,
    /// Turns so far.
    pub turn_count: u64,
    /// Messages so far.
    pub message_count: u64,
    /// The position of the last event; 0 before the first.
    pub last_seq: u64,
    /// When it was made, UTC milliseconds.
    pub created_at_ms: i64,
    /// When it last changed, UTC milliseconds.
    pub updated_at_ms: i64,
}

/// Which sessions a list shows. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Of this agent.
    pub agent_id: Option<AgentAlias>,
    /// In this status.
    pub status: Option<SessionStatus>,
    /// Made for this route.
    pub session_key: Option<String>,
    /// Whose id begins with these hexadecimal digits (hyphens do not count).
    pub id_prefix: Option<String>,
}

/// The place in a list after which the next page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListPosition {
    /// When the last session of the page before had changed.
    pub updated_at_ms: i64,
    /// Its place among those that changed in the same millisecond.
    pub row: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_are_known_and_none_is_missing() {
        let kinds: Vec<_> = EventKind::NAMES.iter().map(|name| EventKind::named(name).unwrap().name()).collect();
        assert_eq!(kinds, EventKind::NAMES);
        let roles: Vec<_> = EventRole::NAMES.iter().map(|name| EventRole::named(name).unwrap().name()).collect();
        assert_eq!(roles, EventRole::NAMES);
    }
}
