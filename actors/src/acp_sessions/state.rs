//! What the owner of the ACP sessions holds: the store, and the changes that wait for the next commit.

use std::sync::Arc;
use std::time::Instant;

use holdfast_stores::acp_sessions::{AcpSessionRow, AcpSessionsStore, NewAcpSession, SessionChange};
use holdfast_stores::kit::{OpenError, StoreError};

use crate::acp_sessions::{AcpSessionsError, AcpSessionsMessage};
use crate::reply::Reply;
use crate::store::{down, judge_check, note_writes};
use crate::surface::{Context, Fault};

/// One commit holds at most this many sessions' changes; more wait for the next.
const CHANGES_MAX: usize = 1_024;

/// The store and what waits for it.
pub struct AcpSessionsState {
    store: AcpSessionsStore,
    changes: Vec<Arc<SessionChange>>,
    replies: Vec<Reply<Result<(), StoreError>>>,
}

impl AcpSessionsState {
    pub(super) fn new(store: AcpSessionsStore) -> Self {
        Self { store, changes: Vec::new(), replies: Vec::new() }
    }

    pub(super) async fn create(
        &mut self,
        context: &Context<AcpSessionsMessage>,
        session: NewAcpSession,
        reply: Reply<Result<AcpSessionRow, AcpSessionsError>>,
    ) -> Result<(), Fault> {
        let (agent, key) = (session.agent_id.to_string(), session.session_key.clone().unwrap_or_default());
        let outcome = self.store.session_create(&[session]).await;
        note_writes(
            &context.stats,
            context.ports.clock.now_ms(),
            outcome.answers.iter().filter_map(|answer| match answer {
                Ok(Some(_)) => Some(Ok(())),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            }),
        );
        // One answer a request; a batch without one drops the reply, which says that the outcome is unknown.
        if let Some(answer) = outcome.answers.into_iter().next() {
            reply.send(match answer {
                Ok(Some(row)) => Ok(row),
                Ok(None) => Err(AcpSessionsError::KeyTaken { agent, key }),
                Err(error) => Err(error.into()),
            });
        }
        writer_lost(outcome.writer_lost)
    }

    /// Takes a change; returns whether it is the first that waits.
    pub(super) fn push(&mut self, change: Arc<SessionChange>, reply: Reply<Result<(), StoreError>>) -> bool {
        self.changes.push(change);
        self.replies.push(reply);
        self.changes.len() == 1
    }

    /// Commits what waits, then answers, in order.
    pub(super) async fn flush(&mut self, context: &Context<AcpSessionsMessage>) -> Result<(), Fault> {
        while !self.changes.is_empty() {
            let count = self.changes.len().min(CHANGES_MAX);
            let changes: Vec<_> = self.changes.drain(..count).collect();
            let replies: Vec<_> = self.replies.drain(..count).collect();
            let began = Instant::now();
            let outcome = self.store.change_record(&changes).await;
            context.stats.commit_took(began.elapsed());
            let answers = outcome.answers.iter().map(|answer| answer.as_ref().map(|()| ()));
            note_writes(&context.stats, context.ports.clock.now_ms(), answers);
            for (reply, answer) in replies.into_iter().zip(outcome.answers) {
                reply.send(answer);
            }
            writer_lost(outcome.writer_lost)?;
        }
        context.stats.set_size_bytes(self.store.size_bytes());
        Ok(())
    }

    pub(super) fn checked(&self, problems: Result<Vec<String>, StoreError>) -> Result<(), Fault> {
        judge_check(holdfast_stores::acp_sessions::ROLE, problems)
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store of ACP sessions was not closed cleanly");
        }
    }
}

/// A writer that could not be replaced after an I/O error: the surface can't go on.
fn writer_lost(lost: Option<OpenError>) -> Result<(), Fault> {
    lost.map_or(Ok(()), |error| Err(Fault::Down(down(&error))))
}
