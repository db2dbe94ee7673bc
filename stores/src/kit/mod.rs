//! What every store is built from: opening and checking a database, group commit, the multi-row insert, idempotency
//! and outbox rows, cursors, and the save protocol for plain files.

pub mod at_rest;
pub mod batch;
pub mod cursor;
pub mod database;
pub mod error;
pub mod file_system;
pub mod header;
pub mod idempotency;
pub mod marker;
pub mod outbox;
pub mod readers;
pub mod row_insert;
pub mod save;
pub mod unchecked;

#[cfg(test)]
mod tests;

pub use at_rest::AtRest;
pub use batch::{BatchOutcome, BatchWork, run_batch};
pub use cursor::{CursorError, CursorKey};
pub use database::{Database, DatabaseSpec, Durability, OpenContext, Opened};
pub use error::{ConstraintKind, OpenError, StoreError};
pub use readers::{Reader, Readers};
