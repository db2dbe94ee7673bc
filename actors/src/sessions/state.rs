//! What one incarnation of the Sessions holds: the store, and the writes that wait for the next commit.

use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{AppendParams, AppendResult, CloseParams, CloseResult, NewParams, NewResult};
use holdfast_stores::kit::{CursorKey, Opened};
use holdfast_stores::sessions::ROLE;
use holdfast_stores::sessions::{SessionReads, SessionsStore};
use tracing::Instrument;

use super::commit::Away;
use super::error::SessionsError;
use super::message::SessionsMessage;
use super::pending::Pending;
use super::read::report_damage;
use super::rules;
use crate::address::CallError;
use crate::reply::Reply;
use crate::store::{chain, damaged};
use crate::surface::{Context, Fault};

/// What one incarnation of the Sessions holds.
pub struct SessionsState {
    /// `None` only while a commit is on its way.
    store: Option<SessionsStore>,
    away: Option<Away>,
    pub(super) reads: SessionReads,
    pub(super) cursors: CursorKey,
    pending: Pending,
    /// Whether a `Flush` is on its way.
    flush_sent: bool,
    /// Commits started by this incarnation.
    commits: u64,
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
        Self {
            store: Some(store),
            away: None,
            reads,
            cursors,
            pending: Pending::default(),
            flush_sent: false,
            commits: 0,
        }
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

    /// Sees to it that what is pending will be committed: behind what is queued.
    async fn flush_soon(&mut self, context: &Context<SessionsMessage>) -> Result<(), Fault> {
        if self.pending.is_full() {
            self.take_back().await?;
            self.start_commit(context);
            return Ok(());
        }
        if self.flush_sent {
            return Ok(());
        }
        if context.cast_self(SessionsMessage::Flush).is_ok() {
            self.flush_sent = true;
            return Ok(());
        }
        // Draining: nothing that this actor sends itself arrives any more, the end of a commit neither.
        if self.away.as_ref().is_some_and(Away::is_finished) {
            self.take_back().await?;
        }
        self.start_commit(context);
        Ok(())
    }

    /// The `Flush` that was sent has arrived.
    pub(super) fn flush(&mut self, context: &Context<SessionsMessage>) {
        self.flush_sent = false;
        self.start_commit(context);
    }

    /// A commit has ended; what came meanwhile is next.
    pub(super) async fn committed(&mut self, context: &Context<SessionsMessage>, number: u64) -> Result<(), Fault> {
        // It may have been taken back already, and another be on its way.
        if self.away.as_ref().is_none_or(|away| away.number() != number) {
            return Ok(());
        }
        self.take_back().await?;
        if self.pending.is_empty() { Ok(()) } else { self.flush_soon(context).await }
    }

    /// Starts to commit what is pending, unless a commit is on its way or nothing is pending.
    ///
    /// On a task of its own: reads must not wait for a disk or for another process's lock.
    fn start_commit(&mut self, context: &Context<SessionsMessage>) {
        if self.pending.is_empty() {
            return;
        }
        let Some(store) = self.store.take() else { return };
        self.commits += 1;
        self.away = Some(Away::start(context, self.commits, store, self.pending.take()));
    }

    /// Waits for the commit that is on its way and takes the store back.
    async fn take_back(&mut self) -> Result<(), Fault> {
        let Some(mut away) = self.away.take() else { return Ok(()) };
        let (store, down) = away.join().await?;
        self.store = Some(store);
        let Some(down) = down else { return Ok(()) };
        for run in self.pending.take() {
            run.refuse(&CallError::Down(down.clone()));
        }
        Err(Fault::Down(down))
    }

    /// Ends the surface: what is damaged must not be written further.
    pub(super) fn damage_found(&self, problem: &str) -> Result<(), Fault> {
        tracing::error!(%problem, "the sessions' file is damaged");
        Err(Fault::Down(damaged(ROLE, problem)))
    }

    /// Commits what is pending and closes the store.
    pub(super) async fn stop(mut self, context: &Context<SessionsMessage>) {
        loop {
            if let Err(fault) = self.take_back().await {
                tracing::error!(%fault, "the last commit of the sessions failed; its callers have been told");
                return;
            }
            self.start_commit(context);
            if self.away.is_none() {
                break;
            }
        }
        if let Some(store) = self.store
            && let Err(error) = store.close().await
        {
            tracing::warn!(error = %chain(&error), "the sessions' file was not closed cleanly");
        }
    }
}
