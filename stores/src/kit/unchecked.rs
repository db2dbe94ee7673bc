//! Statements of the kit that can't be checked at compile time, each with its reason.
//!
//! PRAGMA, BEGIN, SAVEPOINT and VACUUM are no queries that `sqlx::query!` can describe; `schema_meta` is made here and
//! not by a migration, so the checking database does not hold it.

use std::path::Path;
use std::sync::Arc;

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row, Sqlite, SqliteConnection};

use super::error::{InStore, StoreError};

/// The one row that says what a database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMeta {
    /// The store's role, as [`super::DatabaseSpec::role`].
    pub role: String,
    /// The last migration that was run to its end.
    pub schema_version: i64,
    /// The program that ran it.
    pub app_version: String,
    /// When the database was made, UTC milliseconds.
    pub created_at_ms: i64,
}

/// What the database says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundMeta {
    /// No table at all: made, but not yet filled.
    Blank,
    /// Tables, but not ours.
    Foreign,
    /// One of ours.
    Meta(SchemaMeta),
}

/// Reads `schema_meta`. Unchecked: the table is made outside the migrations.
///
/// # Errors
/// [`StoreError`]; a foreign table of that name is [`FoundMeta::Foreign`].
pub async fn schema_meta_read(connection: &mut SqliteConnection, store: &'static str) -> Result<FoundMeta, StoreError> {
    const ACTION: &str = "read the schema version";
    let tables: (i64, i64) = sqlx::query_as(
        "SELECT count(*), coalesce(sum(name = 'schema_meta'), 0) FROM sqlite_schema WHERE type = 'table'",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await
    .in_store(store, ACTION)?;
    match tables {
        (0, _) => return Ok(FoundMeta::Blank),
        (_, 0) => return Ok(FoundMeta::Foreign),
        _ => {}
    }
    let row: Option<SqliteRow> =
        match sqlx::query("SELECT role, schema_version, app_version, created_at_ms FROM schema_meta WHERE id = 1")
            .persistent(false)
            .fetch_optional(&mut *connection)
            .await
            .in_store(store, ACTION)
        {
            Ok(row) => row,
            // "no such column": another program's table.
            Err(StoreError::Query { .. }) => return Ok(FoundMeta::Foreign),
            Err(error) => return Err(error),
        };
    let Some(row) = row else { return Ok(FoundMeta::Foreign) };
    let meta = || -> Result<SchemaMeta, sqlx::Error> {
        Ok(SchemaMeta {
            role: row.try_get(0)?,
            schema_version: row.try_get(1)?,
            app_version: row.try_get(2)?,
            created_at_ms: row.try_get(3)?,
        })
    };
    Ok(meta().map_or(FoundMeta::Foreign, FoundMeta::Meta))
}

/// Makes `schema_meta` and its row, version 0, in one transaction. Unchecked: DDL outside the migrations.
///
/// # Errors
/// [`StoreError`].
pub async fn schema_meta_create(
    connection: &mut SqliteConnection,
    store: &'static str,
    app_version: &str,
    now_ms: i64,
) -> Result<(), StoreError> {
    const ACTION: &str = "make the schema table";
    begin_immediate(connection, store).await?;
    execute(
        connection,
        "CREATE TABLE schema_meta (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            role TEXT NOT NULL,
            schema_version INTEGER NOT NULL,
            app_version TEXT NOT NULL,
            created_at_ms INTEGER NOT NULL
        ) STRICT",
    )
    .await
    .in_store(store, ACTION)?;
    sqlx::query(
        "INSERT INTO schema_meta (id, role, schema_version, app_version, created_at_ms) VALUES (1, ?, 0, ?, ?)",
    )
    .bind(store)
    .bind(app_version)
    .bind(now_ms)
    .persistent(false)
    .execute(&mut *connection)
    .await
    .in_store(store, ACTION)?;
    commit(connection, store).await
}

/// Notes that the migrations up to `schema_version` have been run. Unchecked: the table is made outside the migrations.
///
/// # Errors
/// [`StoreError`].
pub async fn schema_meta_set_version(
    connection: &mut SqliteConnection,
    store: &'static str,
    schema_version: i64,
    app_version: &str,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE schema_meta SET schema_version = ?, app_version = ? WHERE id = 1")
        .bind(schema_version)
        .bind(app_version)
        .persistent(false)
        .execute(&mut *connection)
        .await
        .in_store(store, "note the schema version")
        .map(|_| ())
}

/// Takes the write lock, waiting for it at the door and not half-way through.
///
/// Unchecked: BEGIN is no query. Not sqlx's own transaction: that loses count of its depth when SQLite has already
/// rolled back by itself, as it does on a full disk.
///
/// # Errors
/// [`StoreError::Locked`] after the busy timeout, or another.
pub async fn begin_immediate(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "BEGIN IMMEDIATE").await.in_store(store, "begin a transaction")
}

/// Commits. Unchecked: COMMIT is no query.
///
/// # Errors
/// [`StoreError`]; the transaction may still be open, so roll back.
pub async fn commit(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "COMMIT").await.in_store(store, "commit")
}

/// Ends the transaction if one is open; SQLite may have rolled back by itself. Unchecked: ROLLBACK is no query.
///
/// # Errors
/// [`StoreError`] for anything but "no transaction is active".
pub async fn rollback(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    match execute(connection, "ROLLBACK").await.in_store(store, "roll back") {
        // SQLITE_ERROR (1) is what "no transaction is active" comes as.
        Err(StoreError::Query { .. }) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Begins a part of a transaction that can be undone alone. Unchecked: SAVEPOINT is no query.
///
/// # Errors
/// [`StoreError`].
pub async fn savepoint(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "SAVEPOINT one_request").await.in_store(store, "set a savepoint")
}

/// Keeps what happened since [`savepoint`]. Unchecked: RELEASE is no query.
///
/// # Errors
/// [`StoreError`].
pub async fn savepoint_release(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "RELEASE one_request").await.in_store(store, "release a savepoint")
}

/// Undoes what happened since [`savepoint`]. Unchecked: ROLLBACK TO is no query.
///
/// # Errors
/// [`StoreError`].
pub async fn savepoint_undo(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "ROLLBACK TO one_request; RELEASE one_request").await.in_store(store, "undo a savepoint")
}

/// Checks all pages and indexes, without the costly comparison of index and table content. Unchecked: a PRAGMA.
///
/// Holds a read transaction for about a second a gigabyte, so the write-ahead log grows meanwhile.
/// Returns what is wrong; empty means sound.
///
/// # Errors
/// [`StoreError`] when the check itself could not run.
pub async fn quick_check(connection: &mut SqliteConnection, store: &'static str) -> Result<Vec<String>, StoreError> {
    let rows = sqlx::query_scalar::<_, String>("PRAGMA quick_check(20)")
        .persistent(false)
        .fetch_all(connection)
        .await
        .in_store(store, "check its file");
    match rows {
        Ok(rows) => Ok(rows.into_iter().filter(|row| row != "ok").collect()),
        Err(StoreError::Damaged { source, .. }) => Ok(vec![source.to_string()]),
        Err(error) => Err(error),
    }
}

/// Moves what it can from the write-ahead log to the file, without waiting for readers. Unchecked: a PRAGMA.
///
/// For the writer when its queue is empty; another connection's checkpoints never let the log start over.
///
/// # Errors
/// [`StoreError`].
pub async fn checkpoint_passive(connection: &mut SqliteConnection, store: &'static str) -> Result<(), StoreError> {
    execute(connection, "PRAGMA wal_checkpoint(PASSIVE)").await.in_store(store, "move the log into the file")
}

/// Writes a compact, consistent copy to `target`, which must not exist. Unchecked: VACUUM is no query.
///
/// The copy is not synced: sync the file and its directory. Works on a reader.
///
/// # Errors
/// [`StoreError`].
pub async fn vacuum_into(
    connection: &mut SqliteConnection,
    store: &'static str,
    target: &Path,
) -> Result<(), StoreError> {
    let Some(target) = target.to_str() else {
        return Err(StoreError::Row {
            store,
            action: "copy the database",
            problem: format!("the target `{}` is not UTF-8", target.display()),
        });
    };
    sqlx::query("VACUUM INTO ?")
        .bind(target)
        .persistent(false)
        .execute(connection)
        .await
        .in_store(store, "copy the database")
        .map(|_| ())
}

/// Returns the flags SQLite was built with ("DEFAULT_MEMSTATUS=0"). Unchecked: a PRAGMA.
///
/// # Errors
/// [`StoreError`].
pub async fn compile_options(
    connection: &mut SqliteConnection,
    store: &'static str,
) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar("PRAGMA compile_options")
        .persistent(false)
        .fetch_all(connection)
        .await
        .in_store(store, "read the build flags")
}

/// Returns the flags SQLite was built with, asked of a database in memory: they are the process's, not a file's.
///
/// # Errors
/// [`StoreError`].
pub async fn compile_options_of_process() -> Result<Vec<String>, StoreError> {
    const STORE: &str = "memory";
    let options = SqliteConnectOptions::new().in_memory(true);
    let mut connection = options.connect().await.in_store(STORE, "open a database in memory")?;
    let flags = compile_options(&mut connection, STORE).await?;
    connection.close().await.in_store(STORE, "close a database in memory")?;
    Ok(flags)
}

/// Says whether SQLite was built so that connections of one process share no page-cache lock.
///
/// `.cargo/config.toml` sees to it; `cargo install` and embedders do not read that file, and health warns then.
pub fn build_flags_are_ours(options: &[String]) -> bool {
    let has = |name: &str| options.iter().any(|option| option == name);
    has("DEFAULT_MEMSTATUS=0") && !has("ENABLE_MEMORY_MANAGEMENT") && !has("ENABLE_API_ARMOR")
}

/// A statement on a table whose name differs from store to store: the idempotency and outbox tables.
///
/// Unchecked: the macros need the text as a literal. The name is a literal of the store, never input.
pub(super) fn for_table(sql: &Arc<str>) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// An INSERT of many rows, made by repeating the values of a checked one.
///
/// Unchecked: its length is known only when it runs. Each store tests it against the checked one.
pub(super) fn many_rows(sql: String, arguments: SqliteArguments) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query_with(AssertSqlSafe(sql), arguments)
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    connection.execute(sqlx::query(sql)).await.map(|_| ())
}
