//! `session/…`: chat sessions and ACP sessions under one roof.
//!
//! New sessions and appends are the chat store's alone: an ACP session is made and filled by its agent. Reads and closes
//! ask the chat store first, which answers the hot path without a task, and the ACP store for what is not there.

use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::{EventId, SessionId};
use holdfast_protocol::methods::session::{
    Append, Close, CloseParams, CloseResult, Event, Events, EventsParams, EventsResult, List, ListParams, ListResult,
    New, SessionDetail, SessionKind, SessionRow, SessionStatus, Show, ShowParams, TurnState,
};
use holdfast_stores::acp_sessions::{
    AcpSessionRow, AcpSessionStatus, AcpUpdate, SessionFilter, SessionPosition, TurnState as StoredTurnState,
};
use holdfast_stores::kit::CursorKey;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::acp::directory::DirectoryHandle;
use crate::acp::session::SessionMessage;
use crate::acp_sessions::AcpSessionsError;
use crate::address::CallError;
use crate::methods::MethodContext;
use crate::reply::Reply;
use crate::router::{Call, RouterBuilder};
use crate::sessions::{ChatReads, SessionsError, SessionsMessage};
use crate::time::rfc3339_utc;
use crate::tree::Handles;
use crate::visibility::Eyes;

/// Rows or events of a page when the caller names no number.
const PAGE_DEFAULT: u32 = 100;
/// Events of a page at most.
const PAGE_MAX: u32 = 1_000;
/// Rows of a page at most: fewer than a store reads at a time, since one more tells whether there are others.
const LIST_MAX: u32 = 500;
/// An agent may take this long to end.
const CLOSE_LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    let address = context.handles.sessions.address().clone();
    builder.on::<New>(move |_call, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::New { params, reply });
    });
    let address = context.handles.sessions.address().clone();
    builder.on::<Append>(move |_call, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::Append { params, reply });
    });
    let handles = context.handles.clone();
    builder.on::<Events>(move |call, params, reply| {
        let asked = params.clone();
        let reply = or_else(&handles, call, reply, move |eyes| acp_events(eyes, asked));
        handles.sessions.address().post(reply, |reply| SessionsMessage::Events { params, reply });
    });
    let handles = context.handles.clone();
    builder.on::<Show>(move |call, ShowParams { session_id }, reply| {
        let reply = or_else(&handles, call, reply, move |eyes| acp_show(eyes, session_id));
        handles.sessions.address().post(reply, |reply| SessionsMessage::Show { session_id, reply });
    });
    let handles = context.handles.clone();
    builder.on::<Close>(move |call, params, reply| {
        let (CloseParams { session_id, .. }, directory) = (params.clone(), handles.acp_directory.clone());
        let reply = or_else(&handles, call, reply, move |eyes| acp_close(eyes, directory, session_id));
        handles.sessions.address().post(reply, |reply| SessionsMessage::Close { params, reply });
    });
    let handles = context.handles.clone();
    builder.on_async::<List, _, _>(move |call, params| {
        let handles = handles.clone();
        async move {
            let stores = Stores {
                chat: ChatReads::Owner(handles.sessions.clone()),
                acp: Eyes::of(&call.caller, &handles).await,
                cursors: handles.acp.cursors.clone(),
            };
            list(&stores, params).await
        }
    });
}

/// Where sessions are read from, and what makes the cursors of lists over both kinds.
#[derive(Clone)]
pub(crate) struct Stores {
    /// Chat sessions.
    pub(crate) chat: ChatReads,
    /// ACP sessions, as far as they are seen.
    pub(crate) acp: Eyes,
    /// Makes and reads cursors.
    pub(crate) cursors: CursorKey,
}

/// Registers what only reads, for stores whose owners do not run.
pub(crate) fn register_at_rest(builder: &mut RouterBuilder, stores: &Stores) {
    let list_stores = stores.clone();
    builder.on_async::<List, _, _>(move |_call, params| {
        let stores = list_stores.clone();
        async move { list(&stores, params).await }
    });
    let show_stores = stores.clone();
    builder.on_async::<Show, _, _>(move |_call, ShowParams { session_id }| {
        let stores = show_stores.clone();
        async move {
            match stores.chat.show(session_id).await {
                Err(SessionsError::NotFound { .. }) => acp_show(stores.acp, session_id).await,
                answer => answer.map_err(WireError::from),
            }
        }
    });
    let events_stores = stores.clone();
    builder.on_async::<Events, _, _>(move |_call, params| {
        let stores = events_stores.clone();
        async move {
            match stores.chat.events(params.clone()).await {
                Err(SessionsError::NotFound { .. }) => acp_events(stores.acp, params).await,
                answer => answer.map_err(WireError::from),
            }
        }
    });
}

fn typed<T: Send + 'static>(reply: Reply<Result<T, WireError>>) -> Reply<Result<T, SessionsError>> {
    reply.map(|answer: Result<T, SessionsError>| answer.map_err(WireError::from))
}

/// Makes the chat store's reply: what it has goes on as it is, what it has not is asked of the ACP store on a task.
fn or_else<T, F>(
    handles: &Handles,
    call: &Call,
    reply: Reply<Result<T, WireError>>,
    elsewhere: impl FnOnce(Eyes) -> F + Send + 'static,
) -> Reply<Result<T, SessionsError>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, WireError>> + Send + 'static,
{
    let (handles, caller) = (handles.clone(), Arc::clone(&call.caller));
    Reply::sink(move |answer: Result<Result<T, SessionsError>, CallError>| match answer {
        Ok(Ok(value)) => reply.send(Ok(value)),
        Ok(Err(SessionsError::NotFound { .. })) => {
            tokio::spawn(async move { reply.send(elsewhere(Eyes::of(&caller, &handles).await).await) });
        }
        Ok(Err(error)) => reply.send(Err(error.into())),
        Err(error) => reply.fail(error),
    })
}

/// A row that is not seen is not there.
async fn acp_row(acp: &Eyes, session_id: SessionId) -> Result<AcpSessionRow, WireError> {
    match acp.get(session_id).await {
        Ok(row) => Ok(row),
        Err(AcpSessionsError::NotFound(_)) => {
            let error = WireError::new(ErrorKind::NotFound, format!("no session `{session_id}`"));
            Err(error.with_remedy("`holdfast session list` shows all"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn acp_events(acp: Eyes, params: EventsParams) -> Result<EventsResult, WireError> {
    let row = acp_row(&acp, params.session_id).await?;
    let limit = i64::from(params.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX));
    let after_seq = i64::try_from(params.after_seq).unwrap_or(i64::MAX);
    let updates = acp.reads().updates_after(row.row_id, after_seq, limit).await?;
    let more = updates.last().is_some_and(|last| last.seq < row.update_count);
    let events = updates.into_iter().map(|update| acp_event(params.session_id, update)).collect::<Result<_, _>>()?;
    Ok(EventsResult { events, more })
}

/// An update as an event: the kind of the update, and who spoke; the body is the update's params, byte for byte.
fn acp_event(session_id: SessionId, update: AcpUpdate) -> Result<Event, WireError> {
    let role = match update.kind.as_str() {
        "user_message_chunk" => Some("user"),
        "agent_message_chunk" | "agent_thought_chunk" => Some("assistant"),
        "tool_call" | "tool_call_update" => Some("tool"),
        _ => None,
    };
    // A notification without params has no body.
    let params = if update.params.is_empty() { "null".to_owned() } else { update.params };
    let body = RawValue::from_string(params).map_err(|error| {
        WireError::new(ErrorKind::Damaged, format!("update {} of session {session_id} is no JSON: {error}", update.seq))
    })?;
    Ok(Event {
        seq: u64::try_from(update.seq).unwrap_or(0),
        event_id: acp_event_id(session_id, update.seq),
        kind: update.kind,
        role: role.map(str::to_owned),
        body,
        created_at_ms: update.created_at_ms,
    })
}

/// An update has no id of its own: this one is made from the session and the position, so it is the same each time.
fn acp_event_id(session_id: SessionId, seq: i64) -> EventId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(session_id.0.as_bytes());
    hasher.update(&seq.to_be_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    EventId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

async fn acp_show(acp: Eyes, session_id: SessionId) -> Result<SessionDetail, WireError> {
    let row = acp_row(&acp, session_id).await?;
    let last_turn = acp.reads().turns(row.row_id).await?.pop();
    let running = last_turn.as_ref().filter(|turn| turn.state == "running").map(|turn| turn.turn_id);
    Ok(SessionDetail {
        scope: None,
        cwd: Some(row.cwd.clone()),
        agent_session_id: row.agent_session_id.clone(),
        model: None,
        turn_id: running,
        last_seq: u64::try_from(row.update_count).unwrap_or(0),
        reason: last_turn.and_then(|turn| turn.error),
        row: acp_session_row(row),
    })
}

async fn acp_close(acp: Eyes, directory: DirectoryHandle, session_id: SessionId) -> Result<CloseResult, WireError> {
    let row = acp_row(&acp, session_id).await?;
    if row.status == AcpSessionStatus::Closed {
        return Ok(CloseResult { closed_now: false });
    }
    let told = |error: &holdfast_protocol::error::ErrorObject| WireError::from_object(error);
    let session = directory.find(session_id, None).await.map_err(|error| told(&error))?;
    let closed = session.call_waiting(CLOSE_LIMIT, |reply| SessionMessage::Close { reply }).await?;
    closed.map_err(|error| told(&error))?;
    Ok(CloseResult { closed_now: true })
}

fn acp_session_row(row: AcpSessionRow) -> SessionRow {
    SessionRow {
        session_id: row.session_id,
        agent_id: row.agent_id,
        kind: SessionKind::Acp,
        session_key: row.session_key,
        title: row.title,
        status: match row.status {
            AcpSessionStatus::Starting | AcpSessionStatus::Active => SessionStatus::Active,
            AcpSessionStatus::Closed => SessionStatus::Closed,
            AcpSessionStatus::Failed => SessionStatus::Failed,
        },
        turn_state: match row.turn_state {
            StoredTurnState::Idle => TurnState::Idle,
            StoredTurnState::Running => TurnState::Running,
            StoredTurnState::Interrupted => TurnState::Interrupted,
            StoredTurnState::Error => TurnState::Error,
        },
        turn_count: u64::try_from(row.turn_count).unwrap_or(0),
        message_count: u64::try_from(row.update_count).unwrap_or(0),
        created_at: rfc3339_utc(row.created_at_ms),
        created_at_ms: row.created_at_ms,
        updated_at: rfc3339_utc(row.updated_at_ms),
        updated_at_ms: row.updated_at_ms,
    }
}

/// Where a listing over both stores goes on: in each store behind what was shown of it, or nowhere when it is through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ListPlace {
    chat: Option<String>,
    chat_through: bool,
    acp: Option<SessionPosition>,
    acp_through: bool,
}

/// Lists both stores as one, the last changed first.
async fn list(stores: &Stores, params: ListParams) -> Result<ListResult, WireError> {
    let limit = params.limit.unwrap_or(PAGE_DEFAULT).clamp(1, LIST_MAX);
    let ListParams { agent, kind, status, session_key, id_prefix, cursor, limit: _ } = &params;
    // A cursor is good only with the conditions it was made with.
    let name =
        serde_json::to_string(&("session/list", agent, kind, status, session_key, id_prefix)).unwrap_or_default();
    let mut place = match cursor {
        Some(cursor) => {
            let decoded = stores.cursors.decode::<ListPlace>(&name, cursor);
            decoded.map_err(|error| error.to_wire().at_path("cursor"))?
        }
        None => ListPlace {
            chat_through: *kind == Some(SessionKind::Acp),
            acp_through: *kind == Some(SessionKind::Chat),
            ..ListPlace::default()
        },
    };
    let chat = if place.chat_through { None } else { Some(chat_page(&stores.chat, &params, &place, limit).await?) };
    let acp = if place.acp_through { Vec::new() } else { acp_page(&stores.acp, &params, &place, limit).await? };
    let chat_rows = chat.as_ref().map_or_else(Vec::new, |page| page.sessions.clone());
    let size = usize::try_from(limit).unwrap_or(usize::MAX);
    let (sessions, of_chat, of_acp) = merge(chat_rows, &acp, size);

    if let Some(page) = chat {
        if of_chat == page.sessions.len() {
            place.chat_through = page.next_cursor.is_none();
            place.chat = page.next_cursor;
        } else if of_chat > 0 {
            // The store makes cursors at the end of a page only, so a page that ends here is asked for.
            let count = u32::try_from(of_chat).unwrap_or(limit);
            place.chat = chat_page(&stores.chat, &params, &place, count).await?.next_cursor;
        }
    }
    if let Some(last) = of_acp.checked_sub(1).and_then(|last| acp.get(last)) {
        place.acp = Some(SessionPosition { updated_at_ms: last.updated_at_ms, row_id: last.row_id.0 });
    }
    place.acp_through |= of_acp == acp.len() && acp.len() <= size;
    let through = place.chat_through && place.acp_through;
    Ok(ListResult { sessions, next_cursor: (!through).then(|| stores.cursors.encode(&name, &place)) })
}

async fn chat_page(
    chat: &ChatReads,
    params: &ListParams,
    place: &ListPlace,
    limit: u32,
) -> Result<ListResult, WireError> {
    let asked = ListParams { cursor: place.chat.clone(), limit: Some(limit), ..params.clone() };
    Ok(chat.list(asked).await?)
}

/// One more than the page, so that its end shows.
async fn acp_page(
    acp: &Eyes,
    params: &ListParams,
    place: &ListPlace,
    limit: u32,
) -> Result<Vec<AcpSessionRow>, WireError> {
    let statuses = match params.status {
        None => vec![AcpSessionStatus::Starting, AcpSessionStatus::Active, AcpSessionStatus::Closed],
        Some(SessionStatus::Active) => vec![AcpSessionStatus::Starting, AcpSessionStatus::Active],
        Some(SessionStatus::Closed) => vec![AcpSessionStatus::Closed],
        Some(SessionStatus::Failed) => vec![AcpSessionStatus::Failed],
        Some(SessionStatus::Idle) => return Ok(Vec::new()),
    };
    let filter = SessionFilter {
        agent_id: params.agent.clone(),
        statuses,
        session_key: params.session_key.clone(),
        id_prefix: params.id_prefix.clone(),
        cwd: None,
        after: place.acp,
        limit: i64::from(limit) + 1,
    };
    Ok(acp.list(&filter).await?)
}

/// Merges two lists, the last changed first; returns the page and how many of each list are on it.
fn merge(chat: Vec<SessionRow>, acp: &[AcpSessionRow], size: usize) -> (Vec<SessionRow>, usize, usize) {
    let (mut of_chat, mut of_acp) = (0, 0);
    let mut merged = Vec::with_capacity(size.min(chat.len() + acp.len()));
    let mut chat = chat.into_iter().peekable();
    while merged.len() < size {
        let next_acp = acp.get(of_acp);
        let chat_first = match (chat.peek(), next_acp) {
            (Some(row), Some(other)) => row.updated_at_ms >= other.updated_at_ms,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        if chat_first {
            merged.extend(chat.next());
            of_chat += 1;
        } else if let Some(row) = next_acp {
            merged.push(acp_session_row(row.clone()));
            of_acp += 1;
        }
    }
    (merged, of_chat, of_acp)
}

#[cfg(test)]
mod tests {
    use holdfast_stores::acp_sessions::AcpSessionRowId;
    use uuid::Uuid;

    use super::*;

    fn acp_session(id: u128, updated_at_ms: i64) -> AcpSessionRow {
        AcpSessionRow {
            row_id: AcpSessionRowId(1),
            session_id: SessionId(Uuid::from_u128(id)),
            agent_id: "demo".parse().unwrap(),
            agent_session_id: None,
            session_key: None,
            cwd: "/".to_owned(),
            new_params: "{}".to_owned(),
            setup: None,
            title: None,
            status: AcpSessionStatus::Active,
            turn_state: StoredTurnState::Idle,
            turn_count: 0,
            update_count: 0,
            owner_session_key: None,
            created_at_ms: 0,
            updated_at_ms,
        }
    }

    #[test]
    fn a_page_holds_the_last_changed_of_both() {
        let chat: Vec<SessionRow> =
            [9, 5, 1].map(|at| SessionRow { kind: SessionKind::Chat, ..acp_session_row(acp_session(7, at)) }).into();
        let acp = [acp_session(1, 8), acp_session(2, 7), acp_session(3, 2)];
        let (page, of_chat, of_acp) = merge(chat.clone(), &acp, 4);
        assert_eq!(page.iter().map(|row| row.updated_at_ms).collect::<Vec<_>>(), [9, 8, 7, 5]);
        assert_eq!((of_chat, of_acp), (2, 2));
        let (page, of_chat, of_acp) = merge(chat, &acp, 100);
        assert_eq!((page.len(), of_chat, of_acp), (6, 3, 3));
    }

    #[test]
    fn an_update_has_the_same_id_each_time_it_is_read() {
        let session = SessionId(Uuid::from_u128(1));
        assert_eq!(acp_event_id(session, 1), acp_event_id(session, 1));
        assert_ne!(acp_event_id(session, 1), acp_event_id(session, 2));
        assert_eq!(acp_event_id(session, 1).0.get_version_num(), 8);
    }
}
