//! Reads, each on a task of its own, so that no write waits for it.

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{
    Event, EventsParams, EventsResult, ListParams, ListResult, SessionDetail, SessionKind, SessionRow,
};
use holdfast_stores::kit::{CursorKey, StoreError};
use holdfast_stores::sessions::{EventsPage, ListFilter, ListPosition, SessionReads, SessionRecord, StoredEvent};
use serde_json::value::RawValue;
use tracing::Instrument;

use super::error::{SessionsError, is_damage};
use super::message::SessionsMessage;
use super::rules;
use super::state::SessionsState;
use crate::reply::Reply;
use crate::store::chain;
use crate::surface::{Context, Reporter};
use crate::time::rfc3339_utc;

/// Events or sessions on a page when the request does not say.
const PAGE_DEFAULT: u32 = 100;

impl SessionsState {
    /// Reads a page of events on a task of its own.
    pub(super) fn events(
        &self,
        context: &Context<SessionsMessage>,
        params: EventsParams,
        reply: Reply<Result<EventsResult, SessionsError>>,
    ) {
        let reads = self.reads.clone();
        answer_read(context, reply, async move { events_page(&reads, params).await });
    }

    /// Reads the last events on a task of its own.
    pub(super) fn tail(
        &self,
        context: &Context<SessionsMessage>,
        session_id: SessionId,
        limit: u32,
        reply: Reply<Result<EventsResult, SessionsError>>,
    ) {
        let reads = self.reads.clone();
        answer_read(context, reply, async move {
            let page = reads.events_tail(session_id, limit).await?;
            events_result(session_id, page)
        });
    }

    /// Reads a page of sessions on a task of its own.
    pub(super) fn list(
        &self,
        context: &Context<SessionsMessage>,
        params: ListParams,
        reply: Reply<Result<ListResult, SessionsError>>,
    ) {
        let (reads, cursors) = (self.reads.clone(), self.cursors.clone());
        answer_read(context, reply, async move { list_page(&reads, &cursors, params).await });
    }

    /// Reads one session on a task of its own.
    pub(super) fn show(
        &self,
        context: &Context<SessionsMessage>,
        session_id: SessionId,
        reply: Reply<Result<SessionDetail, SessionsError>>,
    ) {
        let reads = self.reads.clone();
        answer_read(context, reply, async move { one(&reads, session_id).await });
    }
}

/// Returns a page of a session's events.
pub(super) async fn events_page(reads: &SessionReads, params: EventsParams) -> Result<EventsResult, SessionsError> {
    let limit = params.limit.unwrap_or(PAGE_DEFAULT);
    let page = reads.events_page(params.session_id, params.after_seq, limit).await?;
    events_result(params.session_id, page)
}

/// Returns a page of sessions.
pub(super) async fn list_page(
    reads: &SessionReads,
    cursors: &CursorKey,
    params: ListParams,
) -> Result<ListResult, SessionsError> {
    let name = rules::list_name(&params);
    let after = match &params.cursor {
        Some(cursor) => Some(cursors.decode::<ListPosition>(&name, cursor)?),
        None => None,
    };
    if params.kind == Some(SessionKind::Acp) {
        return Ok(ListResult { sessions: Vec::new(), next_cursor: None });
    }
    let filter = ListFilter {
        agent_id: params.agent,
        status: params.status,
        session_key: params.session_key,
        id_prefix: params.id_prefix,
    };
    let page = reads.session_list(&filter, after, params.limit.unwrap_or(PAGE_DEFAULT)).await?;
    Ok(ListResult {
        next_cursor: page.next.map(|position| cursors.encode(&name, &position)),
        sessions: page.sessions.into_iter().map(session_row).collect(),
    })
}

/// Returns one session.
pub(super) async fn one(reads: &SessionReads, session_id: SessionId) -> Result<SessionDetail, SessionsError> {
    let record = reads.session_get(session_id).await?.ok_or(SessionsError::NotFound { session_id })?;
    Ok(SessionDetail {
        scope: Some(record.scope),
        cwd: None,
        agent_session_id: None,
        model: record.model.clone(),
        turn_id: record.turn_id,
        last_seq: record.last_seq,
        reason: None,
        row: session_row(record),
    })
}

/// Runs a read on a task of its own, so that no write waits for it; damage it meets ends the surface.
fn answer_read<T: Send + 'static>(
    context: &Context<SessionsMessage>,
    reply: Reply<Result<T, SessionsError>>,
    read: impl Future<Output = Result<T, SessionsError>> + Send + 'static,
) {
    let reporter = context.reporter();
    let task = async move {
        let answer = read.await;
        if let Err(SessionsError::Store(error)) = &answer {
            tracing::warn!(error = %chain(error), "a read of the sessions failed");
            if is_damage(error) {
                report_damage(&reporter, chain(error));
            }
        }
        reply.send(answer);
    };
    tokio::spawn(task.in_current_span());
}

pub(super) fn report_damage(reporter: &Reporter<SessionsMessage>, problem: String) {
    // An incarnation that is ending needs no telling: the next one checks for itself.
    let _ending = reporter.report(SessionsMessage::DamageFound { problem });
}

fn events_result(session_id: SessionId, page: Option<EventsPage>) -> Result<EventsResult, SessionsError> {
    let page = page.ok_or(SessionsError::NotFound { session_id })?;
    let events = page.events.into_iter().map(event).collect::<Result<_, _>>()?;
    Ok(EventsResult { events, more: page.more })
}

fn event(stored: StoredEvent) -> Result<Event, SessionsError> {
    let body = RawValue::from_string(stored.body_json).map_err(|error| StoreError::Row {
        store: holdfast_stores::sessions::ROLE,
        action: "read events",
        problem: format!("the body of event {} is no JSON: {error}", stored.seq),
    })?;
    Ok(Event {
        seq: stored.seq,
        event_id: stored.event_id,
        kind: stored.kind.name().to_owned(),
        role: stored.role.map(|role| role.name().to_owned()),
        body,
        created_at_ms: stored.created_at_ms,
    })
}

fn session_row(record: SessionRecord) -> SessionRow {
    SessionRow {
        session_id: record.session_id,
        agent_id: record.agent_id,
        kind: SessionKind::Chat,
        session_key: record.session_key,
        title: record.display_name,
        status: record.status,
        turn_state: record.turn_state,
        turn_count: record.turn_count,
        message_count: record.message_count,
        created_at: rfc3339_utc(record.created_at_ms),
        created_at_ms: record.created_at_ms,
        updated_at: rfc3339_utc(record.updated_at_ms),
        updated_at_ms: record.updated_at_ms,
    }
}
