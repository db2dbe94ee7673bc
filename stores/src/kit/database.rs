//! One database: opened with all its checks, one writer, a few lazy readers, closed without leftovers.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::error::{OpenError, StoreError};
use super::file_system::RealFileSystem;
use super::header::{Found, inspect};
use super::marker::{self, CleanStop, FoundMarker, Marker};
use super::readers::Readers;
use super::unchecked::{self, FoundMeta, SchemaMeta};

/// How long a statement waits for another process's lock before it is [`StoreError::Locked`].
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pages in the write-ahead log before the writer moves them into the file: 16 MiB keeps the log allocated and its
/// syncs cheap (docs/performance.md).
const CHECKPOINT_PAGES: &str = "4000";
/// Statement texts kept prepared by the writer: the multi-row texts of a few tables, up to 64 rows each.
const WRITER_STATEMENTS: usize = 256;
/// How long a close waits for readers in use before it leaves the log behind.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// When a commit is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After it is on stable storage (`synchronous=FULL`).
    Full,
    /// Before; a power cut may take the last commits. Only for what can be rebuilt (`synchronous=NORMAL`).
    Rebuildable,
}

/// What a database is; one `static` a store.
#[derive(Debug)]
pub struct DatabaseSpec {
    /// Its name in errors, in `schema_meta` and in metrics.
    pub role: &'static str,
    /// Its path below `data/`.
    pub file: &'static str,
    /// Its migrations.
    pub migrator: &'static Migrator,
    /// How many readers may be open at once; they are opened when first used.
    pub readers: u32,
    /// When a commit is answered.
    pub durability: Durability,
}

impl DatabaseSpec {
    /// Returns the newest schema version this program knows: its last migration's.
    pub fn known_version(&self) -> i64 {
        self.migrator
            .iter()
            .filter(|migration| migration.migration_type.is_up_migration())
            .map(|migration| migration.version)
            .max()
            .unwrap_or(0)
    }
}

/// What opening needs to know from outside.
#[derive(Debug, Clone, Copy)]
pub struct OpenContext<'a> {
    /// This program's version, noted in the file.
    pub app_version: &'a str,
    /// Now, UTC milliseconds.
    pub now_ms: i64,
}

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Whether the database was made just now.
    pub created: bool,
    /// Whether the last stop was unclean: run [`Readers::quick_check`] in the background.
    pub needs_quick_check: bool,
    /// The schema version it has now.
    pub schema_version: i64,
    /// The version it had before, if migrations were run on an existing file.
    pub migrated_from: Option<i64>,
}

/// An open database. Its owner is the only one who writes.
#[derive(Debug)]
pub struct Database {
    spec: &'static DatabaseSpec,
    path: PathBuf,
    created_at_ms: i64,
    /// The clean stop that the marker tells of.
    marked_stop: Option<CleanStop>,
    writer: SqliteConnection,
    readers: Readers,
    /// Set while a transaction of [`super::run_batch`] is open; still set afterwards if its future was dropped.
    pub(super) mid_transaction: bool,
}

impl Database {
    /// Opens the database at `data_dir/spec.file`; see [`Database::open_at`].
    ///
    /// # Errors
    /// As [`Database::open_at`].
    pub async fn open(
        data_dir: &Path,
        spec: &'static DatabaseSpec,
        context: OpenContext<'_>,
    ) -> Result<(Self, Opened), OpenError> {
        Self::open_at(&data_dir.join(spec.file), spec, context).await
    }

    /// Opens or makes the database at `path`, checks it, and runs the migrations it lacks.
    ///
    /// A missing directory is made with mode 0700, a missing file with 0600, whatever the umask. A file that was
    /// changed after the last clean stop is checked whole before this returns; after an unclean stop the answer asks
    /// for that check, to be run while serving. Opening several databases at once is safe and faster.
    ///
    /// # Errors
    /// [`OpenError`]; the file is then left as it was.
    pub async fn open_at(
        path: &Path,
        spec: &'static DatabaseSpec,
        context: OpenContext<'_>,
    ) -> Result<(Self, Opened), OpenError> {
        let failed = |action| move |source| OpenError::FileSystem { path: path.to_owned(), action, source };
        // A relative path could begin with `file:`, which SQLite takes for a URI.
        let path = std::path::absolute(path).map_err(failed("find"))?;
        let path = path.as_path();
        let failed = |action| move |source| OpenError::FileSystem { path: path.to_owned(), action, source };
        let marker = marker::read(&RealFileSystem, path).map_err(failed("read the marker of"))?;
        let has_log = std::fs::metadata(log_path(path)).is_ok_and(|log| log.len() > 0);
        let found = inspect(path, has_log)?;
        check_marker(path, spec, &marker, found)?;
        let changed = match (&marker, found, has_log) {
            (FoundMarker::Marker(Marker { clean_stop: Some(stop), .. }), Found::Database { .. }, false) => {
                *stop != marker::clean_stop_of(path).map_err(failed("look at"))?
            }
            _ => false,
        };
        let in_store = |source| store_error(path, source);
        match found {
            Found::Missing => create_file(path).map_err(failed("make"))?,
            // Setting WAL mode writes to the file, so that it is ours is made sure of first.
            Found::Database { write_ahead: false } => {
                let mut reader = connect(path, spec, reader_options(path)).await.map_err(in_store)?;
                let meta = unchecked::schema_meta_read(&mut reader, spec.role).await.map_err(in_store)?;
                close_connection(reader, spec).await.map_err(in_store)?;
                our_meta(path, spec, meta)?;
            }
            Found::Empty | Found::Database { write_ahead: true } => {}
        }

        let mut writer = connect(path, spec, writer_options(path, spec)).await.map_err(in_store)?;
        let prepared = prepare(&mut writer, path, spec, context, changed).await;
        let (meta, created, migrated_from) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // The first error says more than that of a close.
                let _ = writer.close().await;
                return Err(error);
            }
        };
        if !matches!(marker, FoundMarker::Marker(_)) {
            let marker = Marker { role: spec.role.to_owned(), created_at_ms: meta.created_at_ms, clean_stop: None };
            write_marker(path, marker).await.map_err(failed("write the marker of"))?;
        }
        let needs_quick_check = match &marker {
            FoundMarker::Marker(marker) => (has_log || marker.clean_stop.is_none()) && !created,
            FoundMarker::Missing | FoundMarker::Unreadable => !created,
        };
        let opened = Opened { created, needs_quick_check, schema_version: meta.schema_version, migrated_from };
        let readers = Readers::new(spec.role, reader_options(path), spec.readers, BUSY_TIMEOUT);
        let database = Self {
            spec,
            path: path.to_owned(),
            created_at_ms: meta.created_at_ms,
            marked_stop: match marker {
                FoundMarker::Marker(marker) => marker.clean_stop,
                FoundMarker::Missing | FoundMarker::Unreadable => None,
            },
            writer,
            readers,
            mid_transaction: false,
        };
        Ok((database, opened))
    }

    /// Returns the store's role.
    pub fn role(&self) -> &'static str {
        self.spec.role
    }

    /// Returns the file's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when the database was made, UTC milliseconds.
    pub fn created_at_ms(&self) -> i64 {
        self.created_at_ms
    }

    /// Returns the one connection that writes.
    pub fn writer(&mut self) -> &mut SqliteConnection {
        &mut self.writer
    }

    /// Returns the readers, to be cloned into tasks that only read.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Returns the bytes of the file and its write-ahead log.
    pub fn size_bytes(&self) -> u64 {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        size(&self.path) + size(&log_path(&self.path))
    }

    /// Moves what it can from the write-ahead log into the file; for a writer that has nothing else to do.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn checkpoint(&mut self) -> Result<(), StoreError> {
        unchecked::checkpoint_passive(&mut self.writer, self.spec.role).await
    }

    /// Opens a new writer, makes sure that it sees a sound schema of ours, and closes the old one.
    ///
    /// For use after [`StoreError::OutcomeUnknown`], when nothing may be assumed about the old connection.
    ///
    /// # Errors
    /// [`OpenError`]: the old writer stays, and the surface should go down.
    pub async fn reopen_writer(&mut self) -> Result<(), OpenError> {
        let path = self.path.clone();
        let in_store = |source| store_error(&path, source);
        inspect_open_file(&path)?;
        let mut writer = connect(&path, self.spec, writer_options(&path, self.spec)).await.map_err(in_store)?;
        let meta = unchecked::schema_meta_read(&mut writer, self.spec.role).await.map_err(in_store)?;
        if our_meta(&path, self.spec, meta)?.is_none() {
            return Err(OpenError::Damaged { path, problem: "its tables are gone".to_owned() });
        }
        let old = std::mem::replace(&mut self.writer, writer);
        self.mid_transaction = false;
        // The old connection is the one that failed: its close has nothing to tell.
        let _ = old.close().await;
        Ok(())
    }

    /// Closes the readers, then the writer, so that no `-wal` and `-shm` stay, and notes the clean stop.
    ///
    /// A reader that stays in use for over 5 s is left behind: the log stays too and the next open asks for a check.
    ///
    /// # Errors
    /// [`StoreError`] when the last checkpoint failed; nothing committed is lost by that.
    pub async fn close(self) -> Result<(), StoreError> {
        let readers_closed = tokio::time::timeout(CLOSE_WAIT, self.readers.close()).await.is_ok();
        close_connection(self.writer, self.spec).await?;
        let log = std::fs::metadata(log_path(&self.path)).is_ok_and(|log| log.len() > 0);
        let clean_stop = if readers_closed && !log { marker::clean_stop_of(&self.path).ok() } else { None };
        if clean_stop.is_some() && clean_stop == self.marked_stop {
            return Ok(());
        }
        let marker = Marker { role: self.spec.role.to_owned(), created_at_ms: self.created_at_ms, clean_stop };
        if let Err(error) = write_marker(&self.path, marker).await {
            // Costs the next open a check, no data.
            tracing::warn!(store = self.spec.role, %error, "the clean stop could not be noted");
        }
        Ok(())
    }
}

/// Refuses what contradicts the marker.
pub(super) fn check_marker(
    path: &Path,
    spec: &DatabaseSpec,
    marker: &FoundMarker,
    found: Found,
) -> Result<(), OpenError> {
    if let FoundMarker::Marker(marker) = marker
        && marker.role != spec.role
    {
        let found = format!("marked as the store `{}`", marker.role);
        return Err(OpenError::WrongRole { path: path.to_owned(), found, expected: spec.role });
    }
    let state = match found {
        Found::Missing => "missing",
        Found::Empty => "empty",
        Found::Database { .. } => return Ok(()),
    };
    match marker {
        FoundMarker::Missing => Ok(()),
        FoundMarker::Unreadable | FoundMarker::Marker(_) => {
            Err(OpenError::MissingButExpected { path: path.to_owned(), marker: marker::marker_path(path), state })
        }
    }
}

/// Brings an opened database up to the known version. Returns its meta, whether it is new, and its former version.
async fn prepare(
    writer: &mut SqliteConnection,
    path: &Path,
    spec: &'static DatabaseSpec,
    context: OpenContext<'_>,
    changed: bool,
) -> Result<(SchemaMeta, bool, Option<i64>), OpenError> {
    let in_store = |source| store_error(path, source);
    let found = unchecked::schema_meta_read(writer, spec.role).await.map_err(in_store)?;
    let (mut meta, created) = match our_meta(path, spec, found)? {
        Some(meta) => (meta, false),
        None => {
            unchecked::schema_meta_create(writer, spec.role, context.app_version, context.now_ms)
                .await
                .map_err(in_store)?;
            let meta = SchemaMeta {
                role: spec.role.to_owned(),
                schema_version: 0,
                app_version: context.app_version.to_owned(),
                created_at_ms: context.now_ms,
            };
            (meta, true)
        }
    };
    if changed {
        let problems = unchecked::quick_check(writer, spec.role).await.map_err(in_store)?;
        if let Some(problem) = problems.first() {
            return Err(OpenError::Damaged { path: path.to_owned(), problem: problem.clone() });
        }
    }
    let known = spec.known_version();
    if meta.schema_version == known {
        return Ok((meta, created, None));
    }
    // Not `run`: its future is not Send for a borrowed connection, and stores are opened in tasks.
    spec.migrator
        .run_direct(None, &mut *writer, false)
        .await
        .map_err(|error| migration_error(path, spec, known, error))?;
    unchecked::schema_meta_set_version(writer, spec.role, known, context.app_version).await.map_err(in_store)?;
    let before = (!created).then_some(meta.schema_version);
    meta.schema_version = known;
    Ok((meta, created, before))
}

/// Refuses a foreign or newer database. None is a blank one.
pub(super) fn our_meta(path: &Path, spec: &DatabaseSpec, found: FoundMeta) -> Result<Option<SchemaMeta>, OpenError> {
    let wrong = |found| OpenError::WrongRole { path: path.to_owned(), found, expected: spec.role };
    let meta = match found {
        FoundMeta::Blank => return Ok(None),
        FoundMeta::Foreign => return Err(wrong("a database of another program".to_owned())),
        FoundMeta::Meta(meta) => meta,
    };
    if meta.role != spec.role {
        return Err(wrong(format!("the store `{}`", meta.role)));
    }
    let known = spec.known_version();
    if meta.schema_version > known {
        return Err(OpenError::NewerSchema { path: path.to_owned(), found: meta.schema_version, known });
    }
    Ok(Some(meta))
}

/// Checks that the path still leads to a file with content, without opening it: connections may be using it.
fn inspect_open_file(path: &Path) -> Result<(), OpenError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(()),
        Ok(metadata) => Err(OpenError::Damaged {
            path: path.to_owned(),
            problem: format!("it has become {} bytes long", metadata.len()),
        }),
        Err(source) => Err(OpenError::FileSystem { path: path.to_owned(), action: "look at", source }),
    }
}

pub(super) fn store_error(path: &Path, source: StoreError) -> OpenError {
    let path = path.to_owned();
    match source {
        StoreError::Damaged { source, .. } => OpenError::Damaged { path, problem: source.to_string() },
        source => OpenError::Store { path, source },
    }
}

fn migration_error(path: &Path, spec: &DatabaseSpec, known: i64, error: MigrateError) -> OpenError {
    let error = match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            match StoreError::classify(spec.role, "migrate", error) {
                StoreError::Query { source, .. } | StoreError::Constraint { source, .. } => {
                    let text = source.to_string();
                    MigrateError::Source(text.into())
                }
                other => return store_error(path, other),
            }
        }
        error => error,
    };
    OpenError::Migration { path: path.to_owned(), known, source: Arc::new(error) }
}

/// Makes the directory (0700) and an empty file (0600): SQLite gives its side files the mode of the file.
fn create_file(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have taken bits away.
    file.set_permissions(Permissions::from_mode(0o600))
}

async fn connect(
    path: &Path,
    spec: &DatabaseSpec,
    options: SqliteConnectOptions,
) -> Result<SqliteConnection, StoreError> {
    options.connect().await.map_err(|error| {
        let error = StoreError::classify(spec.role, "open its file", error);
        tracing::debug!(store = spec.role, path = %path.display(), %error, "the connection was refused");
        error
    })
}

fn writer_options(path: &Path, spec: &DatabaseSpec) -> SqliteConnectOptions {
    let synchronous = match spec.durability {
        Durability::Full => SqliteSynchronous::Full,
        Durability::Rebuildable => SqliteSynchronous::Normal,
    };
    let role = spec.role;
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        .statement_cache_capacity(WRITER_STATEMENTS)
        .thread_name(move |_| format!("{role}-writer"))
        .disable_statement_logging()
}

pub(super) fn reader_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

async fn close_connection(connection: SqliteConnection, spec: &DatabaseSpec) -> Result<(), StoreError> {
    connection.close().await.map_err(|error| StoreError::classify(spec.role, "close its file", error))
}

/// Writes the marker on a thread that may block.
async fn write_marker(path: &Path, marker: Marker) -> io::Result<()> {
    let path = path.to_owned();
    let written = tokio::task::spawn_blocking(move || marker::write(&RealFileSystem, &path, &marker)).await;
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.source),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Returns the path of SQLite's write-ahead log. Source: sqlite.org/walformat.html.
pub(super) fn log_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}
