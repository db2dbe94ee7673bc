//! Method names of the protocol, version 1.

/// Client to agent: versions and capabilities, first on every connection.
pub const INITIALIZE: &str = "initialize";
/// Client to agent: signs in.
pub const AUTHENTICATE: &str = "authenticate";
/// Client to agent: signs out.
pub const LOGOUT: &str = "logout";
/// Client to agent: makes a session.
pub const SESSION_NEW: &str = "session/new";
/// Client to agent: replays a session, then answers.
pub const SESSION_LOAD: &str = "session/load";
/// Client to agent: continues a session without replay.
pub const SESSION_RESUME: &str = "session/resume";
/// Client to agent: a page of sessions.
pub const SESSION_LIST: &str = "session/list";
/// Client to agent: ends the active session, keeps its history.
pub const SESSION_CLOSE: &str = "session/close";
/// Client to agent: takes a session out of the list.
pub const SESSION_DELETE: &str = "session/delete";
/// Client to agent: one turn; answered at its end.
pub const SESSION_PROMPT: &str = "session/prompt";
/// Client to agent, notification: ends the turn.
pub const SESSION_CANCEL: &str = "session/cancel";
/// Client to agent: the older way to choose a mode.
pub const SESSION_SET_MODE: &str = "session/set_mode";
/// Client to agent: chooses an option; the answer holds all of them.
pub const SESSION_SET_CONFIG_OPTION: &str = "session/set_config_option";
/// Client to agent, no longer in the schema: four adapters still take it.
pub const SESSION_SET_MODEL: &str = "session/set_model";
/// Client to agent, unstable: a new session out of another one's history.
pub const SESSION_FORK: &str = "session/fork";
/// Client to agent, unstable.
pub const SESSION_STATUS: &str = "session/status";
/// Client to agent, unstable.
pub const SESSION_SET_TITLE: &str = "session/set_title";
/// Client to agent, unstable.
pub const SESSION_ARCHIVE: &str = "session/archive";
/// Client to agent, unstable.
pub const SESSION_UNARCHIVE: &str = "session/unarchive";
/// Client to agent, unstable.
pub const SESSION_OPTIONS: &str = "session/options";

/// Agent to client, notification: what happens in a session.
pub const SESSION_UPDATE: &str = "session/update";
/// Agent to client: asks before a tool call.
pub const SESSION_REQUEST_PERMISSION: &str = "session/request_permission";
/// Agent to client: asks the user for input.
pub const ELICITATION_CREATE: &str = "elicitation/create";
/// Agent to client, notification: an elicitation ended elsewhere.
pub const ELICITATION_COMPLETE: &str = "elicitation/complete";
/// Agent to client.
pub const FS_READ_TEXT_FILE: &str = "fs/read_text_file";
/// Agent to client.
pub const FS_WRITE_TEXT_FILE: &str = "fs/write_text_file";
/// Agent to client.
pub const TERMINAL_CREATE: &str = "terminal/create";
/// Agent to client.
pub const TERMINAL_OUTPUT: &str = "terminal/output";
/// Agent to client.
pub const TERMINAL_WAIT_FOR_EXIT: &str = "terminal/wait_for_exit";
/// Agent to client.
pub const TERMINAL_KILL: &str = "terminal/kill";
/// Agent to client.
pub const TERMINAL_RELEASE: &str = "terminal/release";

/// Both ways, notification: the sender no longer waits for a request of its own.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

/// Says whether the method is an extension, whose params we pass on untouched but for a top-level `sessionId`.
pub fn is_extension(method: &str) -> bool {
    method.starts_with('_')
}
