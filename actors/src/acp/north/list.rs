//! `session/list` from our own store: newest change first, the agent's sessions only.

use holdfast_protocol::acp::META_KEY;
use holdfast_protocol::acp::errors::acp_error;
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::ids::AgentAlias;
use holdfast_protocol::jsonrpc::OwnedId;
use holdfast_protocol::raw;
use holdfast_stores::acp_sessions::{AcpSessionRow, SessionFilter, SessionPosition};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::{Client, answer_frame};
use crate::acp::directory::DirectoryHandle;
use crate::acp::environment::Environment;
use crate::time::rfc3339_utc;

/// Sessions of one page.
const PAGE: i64 = 50;
/// What the cursors of this list are for.
const LIST: &str = "acp/session/list";

impl Client {
    pub(super) fn session_list(&self, id: OwnedId, params: Option<&RawValue>) {
        let text = params.map_or("{}", RawValue::get);
        let [cwd, cursor] = raw::pick(text, ["cwd", "cursor"]).map(|raw| raw.and_then(raw::string));
        let (cwd, cursor) = (cwd.map(|cwd| cwd.into_owned()), cursor.map(|cursor| cursor.into_owned()));
        let (environment, agent, out) = (self.environment.clone(), self.agent.clone(), self.out.clone());
        let directory = self.directory.clone();
        tokio::spawn(async move {
            let outcome = list(&environment, &directory, agent, cwd, cursor).await;
            // A client that has gone needs no answer.
            let _gone = out.push_now(answer_frame(id, outcome));
        });
    }
}

async fn list(
    environment: &Environment,
    directory: &DirectoryHandle,
    agent: AgentAlias,
    cwd: Option<String>,
    cursor: Option<String>,
) -> Result<Box<RawValue>, ErrorObject> {
    let told = |error: WireError| acp_error(&error, None);
    let after = match cursor {
        Some(cursor) => {
            let decoded = environment.cursors.decode::<SessionPosition>(LIST, &cursor);
            Some(decoded.map_err(|error| told(error.to_wire().at_path("cursor")))?)
        }
        None => None,
    };
    // One more than the page tells whether there is a next one.
    let filter = SessionFilter { agent_id: Some(agent), cwd, after, limit: PAGE + 1, ..SessionFilter::default() };
    let mut rows = directory.list(&environment.store, &filter).await.map_err(|error| told(error.into()))?;
    let page = usize::try_from(PAGE).unwrap_or(usize::MAX);
    let more = rows.len() > page;
    rows.truncate(page);
    let next = rows.last().filter(|_| more).map(|last| {
        let position = SessionPosition { updated_at_ms: last.updated_at_ms, row_id: last.row_id.0 };
        environment.cursors.encode(LIST, &position)
    });
    let sessions: Vec<_> = rows.iter().map(entry).collect();
    let mut result = json!({ "sessions": sessions });
    if let Some(next) = next {
        result["nextCursor"] = json!(next);
    }
    to_raw_value(&result).map_err(|error| told(WireError::new(ErrorKind::Internal, error.to_string())))
}

fn entry(row: &AcpSessionRow) -> serde_json::Value {
    let mut entry = json!({
        "sessionId": row.session_id,
        "cwd": row.cwd,
        "updatedAt": rfc3339_utc(row.updated_at_ms),
        "_meta": { META_KEY: {
            "agentSessionId": row.agent_session_id,
            "sessionKey": row.session_key,
            "status": row.status.name(),
            "turnState": row.turn_state.name(),
            "turnCount": row.turn_count,
        } },
    });
    if let Some(title) = &row.title {
        entry["title"] = json!(title);
    }
    entry
}
