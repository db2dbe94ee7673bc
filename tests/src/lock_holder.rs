//! A stranger who holds the write lock of a store.

use std::path::Path;

use rusqlite::Connection;

use crate::eventually::PATIENCE;

/// Holds the write lock of a store from a connection of its own; dropping it lets go.
#[derive(Debug)]
pub struct LockHolder {
    _connection: Connection,
}

impl LockHolder {
    /// Takes the lock, waiting for whoever has it.
    ///
    /// # Panics
    /// When that takes too long, or there is no store.
    pub fn take(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self { _connection: connection }
    }

    /// Lets go.
    pub fn release(self) {
        // Closing rolls back (sqlite3_close).
        drop(self);
    }
}
