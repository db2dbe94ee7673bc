//! What one incarnation of the Sessions holds: the store, and the writes that wait for the next commit.

use std::time::Instant;

use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{
    AppendParams, AppendResult, CloseParams, CloseResult, Event, EventsParams, EventsResult, ListParams, ListResult,
    NewParams, NewResult, SessionDetail, SessionKind, SessionRow,
};
use holdfast_stores::kit::{BatchOutcome, CursorKey, Opened, StoreError};
use holdfast_stores::sessions::{
    EventsPage, ListFilter, ListPosition, Refusal, SessionReads, SessionRecord, SessionsStore, StoredEvent,
};
use serde_json::value::RawValue;
use tracing::Instrument;

use super::error::{SessionsError, chain, down};
use super::message::SessionsMessage;
use super::pending::{Pending, Run};
use super::rules;
use crate::address::{CallError, Down};
use crate::reply::Reply;
use crate::surface::{Context, Fault, Reporter};

/// Events or sessions on a page when the request does not say.
const PAGE_DEFAULT: u32 = 100;
/// How often old idempotency keys are removed, at a write.
const PURGE_EVERY_MS: i64 = 60 * 60 * 1000;

/// What one incarnation of the Sessions holds.
pub struct SessionsState {
    store: SessionsStore,
    reads: SessionReads,
    cursors: CursorKey,
    pending: Pending,
    /// Whether a `Flush` is on its way.
    flush_sent: bool,
    purged_at_ms: i64,
}

impl SessionsState {
    /// Takes the store into use; after an unclean stop its file is checked in the background.
    pub(super) fn new(context: &Context<SessionsMessage>, store: SessionsStore, opened: Opened) -> Self {
        context.stats.set_size_bytes(store.size_bytes());
        if opened.needs_quick_check {
            let (readers, reporter) = (store.readers().clone(), context.reporter());
            let check = async move {
                match readers.quick_check().await {
                    Ok(problems) => {
                        if let Some(problem) = problems.into_iter().next() {
                            report_damage(&reporter, problem);
                        }
                    }
                    Err(error) => tracing::warn!(error = %chain(&error), "the sessions' file could not be checked"),
                }
            };
            tokio::spawn(check.in_current_span());
        }
        let reads = store.reads();
        let cursors = CursorKey::new(context.ports.ids.random_key());
        Self { store, reads, cursors, pending: Pending::default(), flush_sent: false, purged_at_ms: 0 }
    }

    /// Queues a new session.
    pub(super) async fn new_session(
        &mut self,
        context: &Context<SessionsMessage>,
        params: NewParams,
        reply: Reply<Result<NewResult, SessionsError>>,
    ) -> Result<(), Fault> {
        match rules::new_session(params, SessionId(context.ports.ids.uuid_v7())) {
            Ok(request) => self.pending.push_new(request, reply),
            Err(error) => {
                reply.send(Err(error));
                return Ok(());
            }
        }
        self.flush_soon(context).await
    }

    /// Queues an append.
    pub(super) async fn append(
        &mut self,
        context: &Context<SessionsMessage>,
        params: AppendParams,
        reply: Reply<Result<AppendResult, SessionsError>>,
    ) -> Result<(), Fault> {
        let ids = &context.ports.ids;
        match rules::append(params, context.ports.clock.now_ms(), || ids.uuid_v7()) {
            Ok(request) => self.pending.push_append(request, reply),
            Err(error) => {
                reply.send(Err(error));
                return Ok(());
            }
        }
        self.flush_soon(context).await
    }

    /// Queues a close.
    pub(super) async fn close_session(
        &mut self,
        context: &Context<SessionsMessage>,
        params: CloseParams,
        reply: Reply<Result<CloseResult, SessionsError>>,
    ) -> Result<(), Fault> {
        self.pending.push_close(params.session_id, reply);
        self.flush_soon(context).await
    }

    /// Sees to it that what is pending will be committed: behind what is queued, or now.
    async fn flush_soon(&mut self, context: &Context<SessionsMessage>) -> Result<(), Fault> {
        if self.pending.is_full() {
            return self.commit_pending(context).await;
        }
        if self.flush_sent {
            return Ok(());
        }
        match context.cast_self(SessionsMessage::Flush) {
            Ok(()) => {
                self.flush_sent = true;
                Ok(())
            }
            // Draining: nothing that this actor sends itself arrives any more.
            Err(_refused) => self.commit_pending(context).await,
        }
    }

    /// Commits what is pending; the `Flush` that was sent has arrived.
    pub(super) async fn flush(&mut self, context: &Context<SessionsMessage>) -> Result<(), Fault> {
        self.flush_sent = false;
        self.commit_pending(context).await
    }

    /// Commits what is pending and answers it.
    async fn commit_pending(&mut self, context: &Context<SessionsMessage>) -> Result<(), Fault> {
        let now_ms = context.ports.clock.now_ms();
        let mut runs = self.pending.take().into_iter();
        while let Some(run) = runs.next() {
            let begun = Instant::now();
            let committed = match run {
                Run::News(requests, replies) => {
                    let outcome = self.store.session_insert(&requests, now_ms).await;
                    answer(outcome, replies, |inserted| NewResult {
                        session_id: inserted.session_id,
                        created: inserted.created,
                    })
                }
                Run::Appends(requests, replies) => {
                    let outcome = self.store.events_append(&requests).await;
                    answer(outcome, replies, |appended| AppendResult { seqs: appended.seqs })
                }
                Run::Closes(requests, replies) => {
                    let outcome = self.store.session_close(&requests, now_ms).await;
                    answer(outcome, replies, |closed_now| CloseResult { closed_now })
                }
            };
            context.stats.commit_took(begun.elapsed());
            if let Err(down) = committed {
                for run in runs.by_ref() {
                    run.refuse(&CallError::Down(down.clone()));
                }
                return Err(Fault::Down(down));
            }
        }
        context.stats.set_size_bytes(self.store.size_bytes());
        self.purge(now_ms).await;
        Ok(())
    }

    /// Removes old idempotency keys, now and then.
    async fn purge(&mut self, now_ms: i64) {
        if now_ms.saturating_sub(self.purged_at_ms) < PURGE_EVERY_MS {
            return;
        }
        self.purged_at_ms = now_ms;
        if let Err(error) = self.store.idempotency_purge(now_ms).await {
            // They only take space; the next round tries again.
            tracing::warn!(error = %chain(&error), "old idempotency keys of sessions could not be removed");
        }
    }

    /// Reads a page of events on a task of its own.
    pub(super) fn events(
        &self,
        context: &Context<SessionsMessage>,
        params: EventsParams,
        reply: Reply<Result<EventsResult, SessionsError>>,
    ) -> Result<(), Fault> {
        let reads = self.reads.clone();
        let limit = params.limit.unwrap_or(PAGE_DEFAULT);
        answer_read(context, reply, async move {
            let page = reads.events_page(params.session_id, params.after_seq, limit).await?;
            events_result(params.session_id, page)
        });
        Ok(())
    }

    /// Reads the last events on a task of its own.
    pub(super) fn tail(
        &self,
        context: &Context<SessionsMessage>,
        session_id: SessionId,
        limit: u32,
        reply: Reply<Result<EventsResult, SessionsError>>,
    ) -> Result<(), Fault> {
        let reads = self.reads.clone();
        answer_read(context, reply, async move {
            let page = reads.events_tail(session_id, limit).await?;
            events_result(session_id, page)
        });
        Ok(())
    }

    /// Reads a page of sessions on a task of its own.
    pub(super) fn list(
        &self,
        context: &Context<SessionsMessage>,
        params: ListParams,
        reply: Reply<Result<ListResult, SessionsError>>,
    ) -> Result<(), Fault> {
        let (reads, cursors) = (self.reads.clone(), self.cursors.clone());
        answer_read(context, reply, async move {
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
        });
        Ok(())
    }

    /// Reads one session on a task of its own.
    pub(super) fn show(
        &self,
        context: &Context<SessionsMessage>,
        session_id: SessionId,
        reply: Reply<Result<SessionDetail, SessionsError>>,
    ) -> Result<(), Fault> {
        let reads = self.reads.clone();
        answer_read(context, reply, async move {
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
        });
        Ok(())
    }

    /// Ends the surface: what is damaged must not be written further.
    pub(super) fn damage_found(&self, problem: &str) -> Result<(), Fault> {
        tracing::error!(%problem, "the sessions' file is damaged");
        Err(Fault::Down(damaged(problem)))
    }

    /// Commits what is pending and closes the store.
    pub(super) async fn stop(mut self, context: &Context<SessionsMessage>) {
        if let Err(fault) = self.commit_pending(context).await {
            tracing::error!(%fault, "the last commit of the sessions failed; its callers have been told");
        }
        if let Err(error) = self.store.close().await {
            tracing::warn!(error = %chain(&error), "the sessions' file was not closed cleanly");
        }
    }
}

/// Answers a batch in order. `Err`: the surface can't go on.
fn answer<A, T>(
    outcome: BatchOutcome<Result<A, Refusal>>,
    replies: Vec<Reply<Result<T, SessionsError>>>,
    result: impl Fn(A) -> T,
) -> Result<(), Down> {
    let mut damage = None;
    for (answer, reply) in outcome.answers.into_iter().zip(replies) {
        if let Err(error) = &answer
            && damage.is_none()
        {
            tracing::warn!(error = %chain(error), "a write to the sessions failed");
            damage = is_damage(error).then(|| damaged(&chain(error)));
        }
        reply.send(match answer {
            Ok(Ok(value)) => Ok(result(value)),
            Ok(Err(refusal)) => Err(refusal.into()),
            Err(error) => Err(error.into()),
        });
    }
    match outcome.writer_lost {
        Some(error) => Err(down(&error)),
        None => damage.map_or(Ok(()), Err),
    }
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

fn report_damage(reporter: &Reporter<SessionsMessage>, problem: String) {
    // An incarnation that is ending needs no telling: the next one checks for itself.
    let _ending = reporter.report(SessionsMessage::DamageFound { problem });
}

fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. })
}

fn damaged(problem: &str) -> Down {
    Down {
        kind: ErrorKind::Damaged,
        reason: format!("the sessions' file is damaged: {problem}"),
        remedy: "run `holdfast doctor`; it keeps the damaged file and can restore a backup".to_owned(),
    }
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
        created_at: rfc3339(record.created_at_ms),
        created_at_ms: record.created_at_ms,
        updated_at: rfc3339(record.updated_at_ms),
        updated_at_ms: record.updated_at_ms,
    }
}

/// Returns an instant as people read it; one outside the years -9999 to 9999 as its number.
fn rfc3339(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.to_string())
}
