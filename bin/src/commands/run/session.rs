//! Which session a prompt goes to.

use std::path::PathBuf;

use holdfast_protocol::acp::META_KEY;
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_protocol::methods::session::{List, ListParams, SessionDetail, SessionKind, SessionRow, Show, ShowParams};
use serde_json::{Value, json};

use crate::commands::session::find;
use crate::commands::{Connection, Place, connect};
use crate::render::{Exit, Failure, shorten};

/// Where a session's short id is looked for among others.
const NEIGHBOURS_MAX: u32 = 500;

/// What the person wants.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// A new session without a name.
    New,
    /// The agent's latest one.
    Latest,
    /// The one with this id or name.
    Named(&'a str),
}

/// Where the prompt goes.
#[derive(Debug)]
pub(super) enum Target {
    /// To a session to be made, with this name.
    New { key: Option<String> },
    /// To this one.
    Existing(Box<SessionDetail>),
}

impl Target {
    /// Finds the session.
    ///
    /// # Errors
    /// When an id, or the latest session, does not exist, or what was named can't be prompted.
    pub(super) fn find(connection: &mut Connection, agent: &AgentAlias, wanted: Wanted<'_>) -> Result<Self, Failure> {
        let found = match wanted {
            Wanted::New => return Ok(Self::New { key: None }),
            Wanted::Latest => Some(latest(connection, agent)?),
            Wanted::Named(text) => named(connection, agent, text)?,
        };
        let Some(session_id) = found else {
            let Wanted::Named(key) = wanted else { return Ok(Self::New { key: None }) };
            return Ok(Self::New { key: Some(key.to_owned()) });
        };
        let detail = connection.call::<Show>(&ShowParams { session_id })?;
        let row = &detail.row;
        if row.kind != SessionKind::Acp {
            let message = format!("session `{session_id}` is a chat; only its runtime adds to it");
            return Err(Failure::new(Exit::Usage, message).hint("holdfast session list"));
        }
        if row.agent_id != *agent {
            let message = format!("session `{session_id}` belongs to agent `{}`", row.agent_id);
            return Err(Failure::new(Exit::Usage, message)
                .hint(format!("holdfast run {} … --session {session_id}", row.agent_id)));
        }
        Ok(Self::Existing(Box::new(detail)))
    }
}

fn latest(connection: &mut Connection, agent: &AgentAlias) -> Result<SessionId, Failure> {
    first(connection, ListParams { agent: Some(agent.clone()), ..ListParams::default() })?
        .map(|row| row.session_id)
        .ok_or_else(|| {
            Failure::new(Exit::NotFound, format!("agent `{agent}` has no session to resume"))
                .hint(format!("holdfast run {agent} … starts one"))
        })
}

/// A name counts before the beginning of an id: who gave a session the name `cafe` means it.
fn named(connection: &mut Connection, agent: &AgentAlias, text: &str) -> Result<Option<SessionId>, Failure> {
    if let Ok(id) = text.parse::<SessionId>() {
        return Ok(Some(id));
    }
    let by_key = ListParams { agent: Some(agent.clone()), session_key: Some(text.to_owned()), ..ListParams::default() };
    if let Some(row) = first(connection, by_key)? {
        return Ok(Some(row.session_id));
    }
    if !looks_like_id(text) {
        return Ok(None);
    }
    find(connection, text).map(Some)
}

/// Says whether a text is more likely a mistyped id than the name of a session to be made.
fn looks_like_id(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let head: &str = text.split(['…', '.']).next().unwrap_or_default();
    let marked = text.contains('…') || text.contains("..");
    head.len() >= 4
        && head.bytes().all(is_hex)
        && head.bytes().any(|byte| byte.is_ascii_digit())
        && (marked || text.len() == head.len())
}

fn first(connection: &mut Connection, params: ListParams) -> Result<Option<SessionRow>, Failure> {
    let params = ListParams { kind: Some(SessionKind::Acp), limit: Some(1), ..params };
    Ok(connection.call::<List>(&params)?.sessions.into_iter().next())
}

/// Returns the params of `session/new`.
pub(super) fn new_params(cwd: &str, key: Option<&str>) -> Value {
    let mut params = json!({ "cwd": cwd, "mcpServers": [] });
    if let Some(key) = key {
        params["_meta"] = json!({ META_KEY: { "sessionKey": key } });
    }
    params
}

/// Returns the params of `session/resume`.
pub(super) fn resume_params(session_id: &str, cwd: &str) -> Value {
    json!({ "sessionId": session_id, "cwd": cwd, "mcpServers": [] })
}

/// Returns the directory the agent is to work in, absolute.
///
/// # Errors
/// When there is none, or its name is no text, which the protocol can't carry.
pub(super) fn directory(given: Option<&PathBuf>) -> Result<String, Failure> {
    let failed = |error| Failure::new(Exit::Usage, format!("could not find the working directory: {error}"));
    let path = match given {
        Some(path) => path.canonicalize().map_err(failed)?,
        None => std::env::current_dir().map_err(failed)?,
    };
    path.into_os_string().into_string().map_err(|path| {
        Failure::new(Exit::Usage, format!("the name of {} is not UTF-8", path.display()))
            .hint("choose another: --cwd DIR")
    })
}

/// Returns the id short, but long enough to be told from its neighbours.
pub(super) fn short_id(place: &Place, session_id: &str) -> String {
    let head: String = session_id.chars().take(6).collect();
    let params = ListParams { id_prefix: Some(head), limit: Some(NEIGHBOURS_MAX), ..ListParams::default() };
    // Without its neighbours the id is shortened as usual: what is shown may then need more characters to be found.
    let neighbours = connect(place).and_then(|mut connection| connection.call::<List>(&params));
    let mut ids: Vec<String> =
        neighbours.map(|page| page.sessions.iter().map(|row| row.session_id.to_string()).collect()).unwrap_or_default();
    ids.retain(|id| id != session_id);
    let all: Vec<&str> = std::iter::once(session_id).chain(ids.iter().map(String::as_str)).collect();
    shorten(&all).swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_told_apart() {
        for id in ["0199a3", "0199a3…c2", "0199a3..c2", "0199a3c2-0000"] {
            assert!(looks_like_id(id), "{id}");
        }
        for name in ["ci", "cafe", "nightly-3", "2026.11", "fix 0199a3", "v1"] {
            assert!(!looks_like_id(name), "{name}");
        }
    }

    #[test]
    fn a_name_travels_in_meta() {
        assert_eq!(
            new_params("/w", Some("ci")),
            json!({ "cwd": "/w", "mcpServers": [], "_meta": { "holdfast": { "sessionKey": "ci" } } })
        );
        assert_eq!(new_params("/w", None), json!({ "cwd": "/w", "mcpServers": [] }));
    }
}
