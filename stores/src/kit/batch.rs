//! Group commit: many requests of one kind in one transaction, and what happens when it fails.
//!
//! A batch that breaks a rule of the schema is run again a request at a time under savepoints, so that the bad one
//! fails alone. A full disk fails all. After an I/O error nobody knows what is stored: all are told so, and the writer
//! is replaced by a new connection that has been checked.

use std::future::Future;

use sqlx::SqliteConnection;

use super::database::Database;
use super::error::{OpenError, StoreError};
use super::unchecked;

/// Requests of one kind and how they are stored.
///
/// What the work remembers between requests (counters, say) must follow what is committed; the last four methods tell
/// it. Work that remembers nothing leaves them as they are.
pub trait BatchWork: Send {
    /// One request.
    type Request: Sync;
    /// What one request is answered. A refusal that is no failure of the store belongs in here too.
    type Answer: Send;

    /// Says whether [`BatchWork::run_all`] needs only one statement, which SQLite commits by itself.
    fn is_single_statement(&self, requests: &[Self::Request]) -> bool;

    /// Stores all requests with as few statements as possible; answers in their order, one each.
    fn run_all<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        requests: &'a [Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, StoreError>> + Send + 'a;

    /// Stores one request, after the batch has failed for one of them. May look closer at why it is refused.
    fn run_one<'a>(
        &'a mut self,
        writer: &'a mut SqliteConnection,
        request: &'a Self::Request,
    ) -> impl Future<Output = Result<Self::Answer, StoreError>> + Send + 'a;

    /// What was run since the last `committed` or `undone` is committed.
    fn committed(&mut self) {}

    /// Of what was run since the last `committed`, nothing is stored (or nobody knows, and it will be read again).
    fn undone(&mut self) {}

    /// What the last [`BatchWork::run_one`] did is kept, but not committed yet.
    fn one_kept(&mut self) {}

    /// What the last [`BatchWork::run_one`] did is undone; what earlier ones did is not.
    fn one_undone(&mut self) {}
}

/// What became of a batch.
#[derive(Debug)]
pub struct BatchOutcome<A> {
    /// The answers, in the order of the requests, one each.
    pub answers: Vec<Result<A, StoreError>>,
    /// Set when the writer failed and could not be replaced: the surface can't go on.
    pub writer_lost: Option<OpenError>,
}

/// Runs a batch and commits it; when this returns, the answers may be sent.
///
/// If the future is dropped, the outcome is unknown; the next batch begins by rolling back what is open.
pub async fn run_batch<W: BatchWork>(
    database: &mut Database,
    work: &mut W,
    requests: &[W::Request],
) -> BatchOutcome<W::Answer> {
    if requests.is_empty() {
        return BatchOutcome { answers: Vec::new(), writer_lost: None };
    }
    let answers = match run_together(database, work, requests).await {
        Ok(answers) => {
            debug_assert_eq!(answers.len(), requests.len(), "one answer a request");
            return BatchOutcome { answers: answers.into_iter().map(Ok).collect(), writer_lost: None };
        }
        Err(error) if error.concerns_one_request() => run_singly(database, work, requests).await,
        Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
    };
    let unknown = answers.iter().any(|answer| matches!(answer, Err(StoreError::OutcomeUnknown { .. })));
    let writer_lost = if unknown { database.reopen_writer().await.err() } else { None };
    BatchOutcome { answers, writer_lost }
}

async fn run_together<W: BatchWork>(
    database: &mut Database,
    work: &mut W,
    requests: &[W::Request],
) -> Result<Vec<W::Answer>, StoreError> {
    let store = database.role();
    end_abandoned(database).await?;
    let result = if work.is_single_statement(requests) {
        work.run_all(database.writer(), requests).await
    } else {
        begin(database).await?;
        let result = match work.run_all(database.writer(), requests).await {
            Ok(answers) => unchecked::commit(database.writer(), store).await.map(|()| answers),
            Err(error) => Err(error),
        };
        end(database, result).await
    };
    match &result {
        Ok(_) => work.committed(),
        Err(_) => work.undone(),
    }
    result
}

async fn run_singly<W: BatchWork>(
    database: &mut Database,
    work: &mut W,
    requests: &[W::Request],
) -> Vec<Result<W::Answer, StoreError>> {
    let store = database.role();
    let mut answers = Vec::with_capacity(requests.len());
    let result = match begin(database).await {
        Ok(()) => {
            let result = run_each(database.writer(), store, work, requests, &mut answers).await;
            end(database, result).await
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => work.committed(),
        Err(error) => {
            work.undone();
            // Those refused for their own sake keep their own reason; all others share the failure.
            for answer in &mut answers {
                if answer.is_ok() {
                    *answer = Err(error.clone());
                }
            }
            answers.resize_with(requests.len(), || Err(error.clone()));
        }
    }
    answers
}

async fn run_each<W: BatchWork>(
    writer: &mut SqliteConnection,
    store: &'static str,
    work: &mut W,
    requests: &[W::Request],
    answers: &mut Vec<Result<W::Answer, StoreError>>,
) -> Result<(), StoreError> {
    for request in requests {
        unchecked::savepoint(writer, store).await?;
        match work.run_one(writer, request).await {
            Ok(answer) => {
                unchecked::savepoint_release(writer, store).await?;
                work.one_kept();
                answers.push(Ok(answer));
            }
            Err(error) if error.concerns_one_request() => {
                unchecked::savepoint_undo(writer, store).await?;
                work.one_undone();
                answers.push(Err(error));
            }
            Err(error) => return Err(error),
        }
    }
    unchecked::commit(writer, store).await
}

async fn begin(database: &mut Database) -> Result<(), StoreError> {
    let store = database.role();
    database.mid_transaction = true;
    let result = unchecked::begin_immediate(database.writer(), store).await;
    if result.is_err() {
        database.mid_transaction = false;
    }
    result
}

/// Ends a transaction: rolls back unless it was committed. The first error is the one that counts.
async fn end<T>(database: &mut Database, result: Result<T, StoreError>) -> Result<T, StoreError> {
    let store = database.role();
    let result = match result {
        Ok(value) => Ok(value),
        Err(error) => match unchecked::rollback(database.writer(), store).await {
            Ok(()) => Err(error),
            // A transaction that can't be rolled back needs a new connection, whatever the first reason was.
            Err(second) => Err(StoreError::OutcomeUnknown {
                store,
                action: "roll back",
                source: std::sync::Arc::new(sqlx::Error::Protocol(format!("{error}; then: {second}"))),
            }),
        },
    };
    database.mid_transaction = false;
    result
}

/// Rolls back what a dropped future left open.
async fn end_abandoned(database: &mut Database) -> Result<(), StoreError> {
    if database.mid_transaction {
        let store = database.role();
        unchecked::rollback(database.writer(), store).await?;
        database.mid_transaction = false;
    }
    Ok(())
}
