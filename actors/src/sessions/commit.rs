//! Committing on a task of its own, with the store in its hands; the actor goes on reading meanwhile.

use std::time::Instant;

use holdfast_protocol::methods::session::{AppendResult, CloseResult, NewResult};
use holdfast_stores::kit::BatchOutcome;
use holdfast_stores::sessions::ROLE;
use holdfast_stores::sessions::{Refusal, SessionsStore};
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::error::{SessionsError, is_damage};
use super::message::SessionsMessage;
use super::pending::Run;
use crate::address::{CallError, Down};
use crate::reply::Reply;
use crate::stats::SurfaceStats;
use crate::store::{chain, damaged, down, note_writes};
use crate::surface::{Context, Fault};

/// How often old idempotency keys are removed, in commits: rarely enough to cost nothing, and never without a write.
const PURGE_EVERY_COMMITS: u64 = 1_024;

/// A commit on its way. Dropping it ends the task, so that no second owner outlives a killed actor.
pub(super) struct Away {
    number: u64,
    task: JoinHandle<(SessionsStore, Option<Down>)>,
}

impl Away {
    /// Commits the runs in order and answers each; then tells the actor that commit `number` has ended.
    pub(super) fn start(
        context: &Context<SessionsMessage>,
        number: u64,
        mut store: SessionsStore,
        runs: Vec<Run>,
    ) -> Self {
        let (reporter, stats) = (context.reporter(), std::sync::Arc::clone(&context.stats));
        let now_ms = context.ports.clock.now_ms();
        let work = async move {
            let down = commit(&mut store, runs, now_ms, &stats).await;
            // Refused while the actor drains; it looks for itself then.
            let _draining = reporter.report(SessionsMessage::Committed { number });
            (store, down)
        };
        Self { number, task: tokio::spawn(work.in_current_span()) }
    }

    /// Returns the number of the commit.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Says whether [`Self::join`] returns at once, or nearly so.
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the end. Returns the store, and why the surface can't go on, if it can't.
    pub(super) async fn join(&mut self) -> Result<(SessionsStore, Option<Down>), Fault> {
        (&mut self.task).await.map_err(|error| Fault::Restart(format!("the commit of the sessions died: {error}")))
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn commit(store: &mut SessionsStore, runs: Vec<Run>, now_ms: i64, stats: &SurfaceStats) -> Option<Down> {
    let before = stats.commits();
    let mut runs = runs.into_iter();
    while let Some(run) = runs.next() {
        let begun = Instant::now();
        let committed = match run {
            Run::News(requests, replies) => {
                let outcome = store.session_insert(&requests, now_ms).await;
                stats.commit_took(begun.elapsed());
                answer(outcome, replies, (now_ms, stats), |inserted| NewResult {
                    session_id: inserted.session_id,
                    created: inserted.created,
                })
            }
            Run::Appends(requests, replies) => {
                let outcome = store.events_append(&requests).await;
                stats.commit_took(begun.elapsed());
                answer(outcome, replies, (now_ms, stats), |appended| AppendResult { seqs: appended.seqs })
            }
            Run::Closes(requests, replies) => {
                let outcome = store.session_close(&requests, now_ms).await;
                stats.commit_took(begun.elapsed());
                answer(outcome, replies, (now_ms, stats), |closed_now| CloseResult { closed_now })
            }
        };
        if let Err(down) = committed {
            for run in runs {
                run.refuse(&CallError::Down(down.clone()));
            }
            return Some(down);
        }
    }
    stats.set_size_bytes(store.size_bytes());
    if before / PURGE_EVERY_COMMITS != stats.commits() / PURGE_EVERY_COMMITS
        && let Err(error) = store.idempotency_purge(now_ms).await
    {
        // They only take space; the next round tries again.
        tracing::warn!(error = %chain(&error), "old idempotency keys of sessions could not be removed");
    }
    None
}

/// Answers a batch in order. `Err`: the surface can't go on.
fn answer<A, T>(
    outcome: BatchOutcome<Result<A, Refusal>>,
    replies: Vec<Reply<Result<T, SessionsError>>>,
    (now_ms, stats): (i64, &SurfaceStats),
    result: impl Fn(A) -> T,
) -> Result<(), Down> {
    // Before the answers: whoever is told of a refusal finds it in health.
    note_writes(
        stats,
        now_ms,
        outcome.answers.iter().filter_map(|answer| match answer {
            Ok(Ok(_)) => Some(Ok(())),
            Ok(Err(_refused_by_a_rule)) => None,
            Err(error) => Some(Err(error)),
        }),
    );
    let mut damage = None;
    for (answer, reply) in outcome.answers.into_iter().zip(replies) {
        if let Err(error) = &answer
            && damage.is_none()
        {
            tracing::warn!(error = %chain(error), "a write to the sessions failed");
            damage = is_damage(error).then(|| damaged(ROLE, &chain(error)));
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
