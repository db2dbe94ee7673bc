//! What the store of ACP sessions holds, as domain types.

use holdfast_protocol::ids::{AgentAlias, InstanceId, SessionId, TurnId};

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcpSessionStatus {
    /// The row is there; the agent has not answered `session/new` yet.
    Starting,
    /// It can be prompted.
    Active,
    /// A client closed it; its history stays and it can be resumed.
    Closed,
    /// The agent refused to make it.
    Failed,
}

/// What the last turn of a session did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnState {
    /// No turn runs; the last one ended by itself or was cancelled.
    Idle,
    /// A turn runs.
    Running,
    /// The last turn was cut by the end of the daemon or of the adapter.
    Interrupted,
    /// The last turn failed.
    Error,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The agent gave a stop reason.
    Ended,
    /// It was cancelled.
    Cancelled,
    /// The agent answered an error.
    Failed,
    /// The adapter or the daemon died.
    Interrupted,
}

macro_rules! text_enum {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $name {
            /// Returns the name as the database and the wire have it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads the name; the table's CHECK admits no other.
            pub fn from_name(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

text_enum!(AcpSessionStatus { Starting = "starting", Active = "active", Closed = "closed", Failed = "failed" });
text_enum!(TurnState { Idle = "idle", Running = "running", Interrupted = "interrupted", Error = "error" });
text_enum!(TurnOutcome { Ended = "ended", Cancelled = "cancelled", Failed = "failed", Interrupted = "interrupted" });

impl TurnOutcome {
    /// Returns what the session's turn state is after such an end.
    pub fn turn_state(self) -> TurnState {
        match self {
            Self::Ended | Self::Cancelled => TurnState::Idle,
            Self::Failed => TurnState::Error,
            Self::Interrupted => TurnState::Interrupted,
        }
    }
}

/// The key of a session inside the store. Small, so that the updates' index stays small; never shown outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcpSessionRowId(pub i64);

/// A session to be made.
#[derive(Debug, Clone)]
pub struct NewAcpSession {
    /// Its id.
    pub session_id: SessionId,
    /// The agent.
    pub agent_id: AgentAlias,
    /// A route people type, unique an agent.
    pub session_key: Option<String>,
    /// The working directory, absolute.
    pub cwd: String,
    /// `session/new` params as the client sent them.
    pub new_params: String,
    /// The session that asked for it, if one did.
    pub owner_session_key: Option<String>,
    /// This install.
    pub instance_id: InstanceId,
    /// This run of the daemon.
    pub boot_id: String,
    /// Now, UTC milliseconds.
    pub created_at_ms: i64,
}

/// A session as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpSessionRow {
    /// The key inside the store.
    pub row_id: AcpSessionRowId,
    /// The session as clients know it.
    pub session_id: SessionId,
    /// The agent.
    pub agent_id: AgentAlias,
    /// The agent's own id of it; may change when an adapter is replaced.
    pub agent_session_id: Option<String>,
    /// A route people type.
    pub session_key: Option<String>,
    /// The working directory.
    pub cwd: String,
    /// `session/new` params as the client sent them, raw JSON.
    pub new_params: String,
    /// The agent's last answer to new, load or resume, raw JSON.
    pub setup: Option<String>,
    /// What it is about: the agent's title, else the beginning of the first prompt.
    pub title: Option<String>,
    /// Where it stands.
    pub status: AcpSessionStatus,
    /// What its last turn did.
    pub turn_state: TurnState,
    /// Turns so far.
    pub turn_count: i64,
    /// Updates so far; also the position of the last one.
    pub update_count: i64,
    /// The session that asked for it.
    pub owner_session_key: Option<String>,
    /// When it was made, UTC milliseconds.
    pub created_at_ms: i64,
    /// When anything of it changed last, UTC milliseconds.
    pub updated_at_ms: i64,
}

/// One update to be stored, or as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpUpdate {
    /// Its position in the session, from 1, gapless.
    pub seq: i64,
    /// The turn it belongs to, if one ran.
    pub turn_number: Option<i64>,
    /// The `sessionUpdate` discriminator, or the method of another notification.
    pub kind: String,
    /// The method of a notification that is not `session/update`.
    pub method: Option<String>,
    /// The notification's params, raw, with our session id in place of the agent's. Empty: it had none.
    pub params: String,
    /// When it came, UTC milliseconds.
    pub created_at_ms: i64,
}

/// A turn that begins.
#[derive(Debug, Clone)]
pub struct TurnBegin {
    /// Its place in the session, from 1.
    pub number: i64,
    /// Its id.
    pub turn_id: TurnId,
    /// The prompt's params, raw.
    pub prompt: String,
    /// Which run of the daemon carries it.
    pub boot_id: String,
    /// The position its first update will have.
    pub first_seq: i64,
}

/// A turn that ends.
#[derive(Debug, Clone)]
pub struct TurnEnd {
    /// Its place in the session.
    pub number: i64,
    /// How.
    pub outcome: TurnOutcome,
    /// The agent's stop reason.
    pub stop_reason: Option<String>,
    /// The agent's answer to the prompt, raw.
    pub result: Option<String>,
    /// Why it failed or was interrupted, for people.
    pub error: Option<String>,
}

/// A turn as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRow {
    /// Its place in the session, from 1.
    pub number: i64,
    /// Its id.
    pub turn_id: TurnId,
    /// `running`, or how it ended.
    pub state: String,
    /// The agent's stop reason.
    pub stop_reason: Option<String>,
    /// The agent's answer to the prompt, raw.
    pub result: Option<String>,
    /// Why it failed or was interrupted.
    pub error: Option<String>,
    /// The position of its first update.
    pub first_seq: i64,
    /// UTC milliseconds.
    pub started_at_ms: i64,
    /// UTC milliseconds.
    pub ended_at_ms: Option<i64>,
}

/// What changes of a session's row beside its counters. `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct RowChange {
    /// The agent's own id of it.
    pub agent_session_id: Option<String>,
    /// The agent's answer to new, load or resume.
    pub setup: Option<String>,
    /// What it is about.
    pub title: Option<String>,
    /// Where it stands.
    pub status: Option<AcpSessionStatus>,
}

impl RowChange {
    /// Says whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.agent_session_id.is_none() && self.setup.is_none() && self.title.is_none() && self.status.is_none()
    }
}

/// All that happened in one session since its last commit; stored whole or not at all.
///
/// It may be sent again after an unknown outcome: what is there already is left as it is.
#[derive(Debug, Clone)]
pub struct SessionChange {
    /// Which session.
    pub row_id: AcpSessionRowId,
    /// New updates, in order.
    pub updates: Vec<AcpUpdate>,
    /// A turn that begins before these updates.
    pub begin: Option<TurnBegin>,
    /// A turn that ends after these updates.
    pub end: Option<TurnEnd>,
    /// What else changes.
    pub row: RowChange,
    /// Now, UTC milliseconds.
    pub at_ms: i64,
}
