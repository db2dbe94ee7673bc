//! A database met in every bad state: damaged, cut, emptied, gone, foreign, newer, locked, full, not writable.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_protocol::error::ErrorKind;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection};

use super::database::{BROKEN_SPEC, CONTEXT, NEWER_SPEC, OTHER_SPEC, open_test_database};
use crate::kit::batch::{BatchWork, run_batch};
use crate::kit::database::{Database, Opened};
use crate::kit::error::{ConstraintKind, InStore, OpenError, StoreError};
use crate::kit::marker;
use crate::kit::unchecked;

/// Inserts names of a given size; remembers how many were committed.
#[derive(Default)]
struct Names {
    single_statement: bool,
    committed: usize,
    run: usize,
}

type Name = (String, i64);

impl BatchWork for Names {
    type Request = Name;
    type Answer = ();

    fn is_single_statement(&self, _: &[Name]) -> bool {
        self.single_statement
    }

    async fn run_all(&mut self, writer: &mut SqliteConnection, requests: &[Name]) -> Result<Vec<()>, StoreError> {
        if self.single_statement {
            let json = serde_json::to_string(requests).unwrap();
            sqlx::query(
                "INSERT INTO test_rows (name, size)
                 SELECT value ->> 0, CAST(value ->> 1 AS INTEGER) FROM json_each(?)",
            )
            .bind(json)
            .execute(writer)
            .await
            .in_store("test", "insert")?;
        } else {
            for request in requests {
                insert(writer, request).await?;
            }
        }
        self.run += requests.len();
        Ok(vec![(); requests.len()])
    }

    async fn run_one(&mut self, writer: &mut SqliteConnection, request: &Name) -> Result<(), StoreError> {
        insert(writer, request).await
    }

    fn committed(&mut self) {
        self.committed += std::mem::take(&mut self.run);
    }

    fn undone(&mut self) {
        self.run = 0;
    }

    fn one_kept(&mut self) {
        self.run += 1;
    }
}

async fn insert(writer: &mut SqliteConnection, (name, size): &Name) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO test_rows (name, size) VALUES (?, ?)")
        .bind(name)
        .bind(size)
        .execute(writer)
        .await
        .in_store("test", "insert")
        .map(|_| ())
}

async fn count(database: &Database) -> i64 {
    let mut reader = database.readers().reader().await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM test_rows").fetch_one(&mut *reader).await.unwrap()
}

fn names(range: std::ops::Range<i64>) -> Vec<Name> {
    range.map(|number| (format!("name {number}"), number)).collect()
}

/// Makes a database with rows on many pages and closes it.
async fn filled(directory: &Path) -> PathBuf {
    let (mut database, opened) = open_test_database(directory).await.unwrap();
    assert_eq!(opened, Opened { created: true, needs_quick_check: false, schema_version: 1, migrated_from: None });
    let outcome = run_batch(&mut database, &mut Names::default(), &names(0..500)).await;
    assert!(outcome.answers.iter().all(Result::is_ok));
    let path = database.path().to_owned();
    database.close().await.unwrap();
    path
}

fn side_files(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn foreign_connection(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

#[tokio::test]
async fn a_closed_database_leaves_one_file_and_its_marker_and_opens_again_without_a_check() {
    let directory = tempfile::tempdir().unwrap();
    let path = filled(directory.path()).await;
    assert_eq!(side_files(&path), ["test.db", "test.db.marker"]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (database, opened) = open_test_database(directory.path()).await.unwrap();
    assert_eq!(opened, Opened { created: false, needs_quick_check: false, schema_version: 1, migrated_from: None });
    assert_eq!(count(&database).await, 500);
    assert_eq!(database.readers().quick_check().await.unwrap(), Vec::<String>::new());
    let (wal, shm) = (path.with_extension("db-wal"), path.with_extension("db-shm"));
    for side in [wal, shm] {
        assert_eq!(std::fs::metadata(&side).unwrap().permissions().mode() & 0o777, 0o600, "{side:?}");
    }
    database.close().await.unwrap();
}

#[tokio::test]
async fn pragmas_are_as_the_design_says() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    for (pragma, value) in [
        ("PRAGMA synchronous", "2"),
        ("PRAGMA foreign_keys", "1"),
        ("PRAGMA busy_timeout", "10000"),
        ("PRAGMA wal_autocheckpoint", "4000"),
    ] {
        let row: i64 = sqlx::query_scalar(pragma).fetch_one(database.writer()).await.unwrap();
        assert_eq!(row.to_string(), value, "{pragma}");
    }
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(database.writer()).await.unwrap();
    assert_eq!(mode, "wal");
    let options = unchecked::compile_options(database.writer(), "test").await.unwrap();
    assert!(unchecked::build_flags_are_ours(&options), "flags of .cargo/config.toml are not in force: {options:?}");
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_reader_can_not_write() {
    let directory = tempfile::tempdir().unwrap();
    let (database, _) = open_test_database(directory.path()).await.unwrap();
    let mut reader = database.readers().reader().await.unwrap();
    let error = insert(&mut reader, &("a".to_owned(), 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    drop(reader);
    database.close().await.unwrap();
}

#[tokio::test]
async fn many_databases_open_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut opening = tokio::task::JoinSet::new();
    for number in 0..12 {
        let path = directory.path().join(number.to_string());
        opening.spawn(async move { open_test_database(&path).await.unwrap() });
    }
    while let Some(opened) = opening.join_next().await {
        let (database, opened) = opened.unwrap();
        assert!(opened.created);
        database.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_page_is_found_and_the_bytes_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = filled(directory.path()).await;
    let sound = std::fs::read(&path).unwrap();
    let pages = sound.len() / 4096;
    for page in 1..pages {
        let mut damaged = sound.clone();
        for (at, byte) in damaged[page * 4096..(page + 1) * 4096].iter_mut().enumerate() {
            *byte = (at * 31 + page) as u8 ^ 0xa5;
        }
        std::fs::write(&path, &damaged).unwrap();
        let error = open_test_database(directory.path()).await.unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "page {page}: {error:?}");
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert_eq!(error.path(), path);
        assert!(error.remedy().contains("holdfast doctor"));
        assert_eq!(std::fs::read(&path).unwrap(), damaged, "page {page}: the damaged file was changed");
    }
    std::fs::write(&path, &sound).unwrap();
    let (database, opened) = open_test_database(directory.path()).await.unwrap();
    assert!(!opened.created, "restored");
    database.close().await.unwrap();
}

#[tokio::test]
async fn damage_after_an_unclean_stop_is_found_by_the_background_check() {
    let directory = tempfile::tempdir().unwrap();
    let path = filled(directory.path()).await;
    // As after a kill: the marker knows of no clean stop.
    let stopped = marker::Marker { role: "test".to_owned(), created_at_ms: 1_000, clean_stop: None };
    marker::write(&crate::kit::file_system::RealFileSystem, &path, &stopped).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 4096;
    bytes[last..].fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    let (database, opened) = open_test_database(directory.path()).await.unwrap();
    assert!(opened.needs_quick_check);
    assert_ne!(database.readers().quick_check().await.unwrap(), Vec::<String>::new());
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_log_left_behind_is_replayed_and_asks_for_a_check() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    run_batch(&mut database, &mut Names::default(), &names(0..10)).await;
    // A copy of the files as a power cut would leave them.
    let copy = tempfile::tempdir().unwrap();
    let from = database.path().parent().unwrap().to_owned();
    std::fs::create_dir(copy.path().join("test")).unwrap();
    for name in ["test.db", "test.db-wal", "test.db.marker"] {
        std::fs::copy(from.join(name), copy.path().join("test").join(name)).unwrap();
    }
    database.close().await.unwrap();
    let (database, opened) = open_test_database(copy.path()).await.unwrap();
    assert!(opened.needs_quick_check && !opened.created);
    assert_eq!(count(&database).await, 10);
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_cut_emptied_or_missing_file_is_damage_and_not_a_first_run() {
    for (size, kind) in
        [(Some(1000), "cut"), (Some(8192), "cut"), (Some(4097), "cut"), (Some(0), "empty"), (None, "missing")]
    {
        let directory = tempfile::tempdir().unwrap();
        let path = filled(directory.path()).await;
        match size {
            Some(size) => std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let error = open_test_database(directory.path()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{size:?}: {error}");
        match &error {
            OpenError::MissingButExpected { state, .. } => assert_eq!(*state, kind),
            OpenError::Damaged { .. } => assert_eq!(kind, "cut"),
            other => panic!("{size:?}: {other:?}"),
        }
        assert_eq!(std::fs::metadata(&path).ok().map(|metadata| metadata.len()), size, "the file was changed");
        if kind != "cut" {
            // What the remedy says works.
            std::fs::remove_file(marker::marker_path(&path)).unwrap();
            let (database, opened) = open_test_database(directory.path()).await.unwrap();
            assert!(opened.created);
            database.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn zeroes_and_other_files_are_no_database() {
    for content in [vec![0_u8; 8192], b"not a database at all".repeat(500), b"x".to_vec()] {
        let directory = tempfile::tempdir().unwrap();
        let path = filled(directory.path()).await;
        std::fs::write(&path, &content).unwrap();
        let error = open_test_database(directory.path()).await.unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("test/test.db")).unwrap();
    let error = open_test_database(directory.path()).await.unwrap_err();
    assert!(matches!(error, OpenError::NotAFile { found: "a directory", .. }), "{error:?}");
}

#[tokio::test]
async fn a_foreign_database_is_refused_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test/test.db");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let mut foreign = foreign_connection(&path).await;
    foreign.execute("CREATE TABLE schema_meta (a); CREATE TABLE theirs (b)").await.unwrap();
    foreign.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = open_test_database(directory.path()).await.unwrap_err();
    assert!(matches!(error, OpenError::WrongRole { .. }), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(side_files(&path), ["test.db"]);
}

#[tokio::test]
async fn another_store_of_ours_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = filled(directory.path()).await;
    for marker_there in [true, false] {
        if !marker_there {
            std::fs::remove_file(marker::marker_path(&path)).unwrap();
        }
        let error = Database::open(directory.path(), &OTHER_SPEC, CONTEXT).await.unwrap_err();
        assert!(matches!(error, OpenError::WrongRole { expected: "other", .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_older_schema_is_migrated_and_a_newer_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let (database, opened) = Database::open(directory.path(), &NEWER_SPEC, CONTEXT).await.unwrap();
    assert_eq!((opened.schema_version, opened.migrated_from), (2, Some(1)));
    assert_eq!(count(&database).await, 500);
    database.close().await.unwrap();
    let error = open_test_database(directory.path()).await.unwrap_err();
    assert!(matches!(error, OpenError::NewerSchema { found: 2, known: 1, .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::NewerSchema);
}

#[tokio::test]
async fn a_failed_migration_leaves_the_database_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let error = Database::open(directory.path(), &BROKEN_SPEC, CONTEXT).await.unwrap_err();
    assert!(matches!(error, OpenError::Migration { known: 2, .. }), "{error:?}");
    let (mut database, opened) = open_test_database(directory.path()).await.unwrap();
    assert_eq!(opened.schema_version, 1);
    let halves: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 'test_half'")
        .fetch_one(database.writer())
        .await
        .unwrap();
    assert_eq!(halves, 0);
    assert_eq!(count(&database).await, 500);
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_restored_copy_is_taken_into_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = filled(directory.path()).await;
    let (database, _) = open_test_database(directory.path()).await.unwrap();
    let copy = directory.path().join("copy.db");
    let mut reader = database.readers().reader().await.unwrap();
    unchecked::vacuum_into(&mut reader, "test", &copy).await.unwrap();
    assert!(unchecked::vacuum_into(&mut reader, "test", &copy).await.is_err(), "an existing file was overwritten");
    drop(reader);
    database.close().await.unwrap();
    // The copy's journal mode is DELETE.
    std::fs::rename(&copy, &path).unwrap();
    let (database, opened) = open_test_database(directory.path()).await.unwrap();
    assert!(!opened.created);
    assert_eq!(count(&database).await, 500);
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_write_waits_three_seconds_for_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    let mut other = foreign_connection(database.path()).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    // The time is the point here: the lock must be held for it.
    let release = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        other.execute("COMMIT").await.unwrap();
        other.close().await.unwrap();
    });
    let begun = std::time::Instant::now();
    let outcome = run_batch(&mut database, &mut Names::default(), &names(0..5)).await;
    assert!(outcome.answers.iter().all(Result::is_ok), "{outcome:?}");
    assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() < Duration::from_secs(10));
    release.await.unwrap();
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_lock_held_too_long_is_a_retryable_error_and_nothing_is_half_done() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    // The rule is the same with a shorter wait.
    database.writer().execute("PRAGMA busy_timeout = 50").await.unwrap();
    let mut other = foreign_connection(database.path()).await;
    for single_statement in [true, false] {
        let mut work = Names { single_statement, ..Names::default() };
        other.execute("BEGIN IMMEDIATE").await.unwrap();
        let outcome = run_batch(&mut database, &mut work, &names(0..5)).await;
        for answer in &outcome.answers {
            let error = answer.as_ref().unwrap_err();
            assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
            assert!(error.kind().retryable());
        }
        assert_eq!(count(&database).await, 0);
        other.execute("COMMIT").await.unwrap();
        assert_eq!(work.committed, 0);
    }
    let outcome = run_batch(&mut database, &mut Names::default(), &names(0..5)).await;
    assert!(outcome.answers.iter().all(Result::is_ok), "the next write works");
    other.close().await.unwrap();
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_fails_all_and_the_writer_goes_on_when_there_is_space() {
    for single_statement in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (mut database, _) = open_test_database(directory.path()).await.unwrap();
        let mut work = Names { single_statement, ..Names::default() };
        run_batch(&mut database, &mut work, &names(0..5)).await;
        let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(database.writer()).await.unwrap();
        let limit = format!("PRAGMA max_page_count = {pages}");
        database.writer().execute(sqlx::AssertSqlSafe(limit)).await.unwrap();
        let outcome = run_batch(&mut database, &mut work, &names(100..2000)).await;
        assert!(outcome.writer_lost.is_none());
        for answer in &outcome.answers {
            let error = answer.as_ref().unwrap_err();
            assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        }
        assert_eq!((count(&database).await, work.committed), (5, 5), "half a batch was kept");
        database.writer().execute("PRAGMA max_page_count = 1000000").await.unwrap();
        let outcome = run_batch(&mut database, &mut work, &names(100..2000)).await;
        assert!(outcome.answers.iter().all(Result::is_ok));
        assert_eq!((count(&database).await, work.committed), (1905, 1905));
        database.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_bad_request_fails_alone() {
    for single_statement in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (mut database, _) = open_test_database(directory.path()).await.unwrap();
        let mut work = Names { single_statement, ..Names::default() };
        let mut requests = names(0..20);
        requests[3].1 = -1;
        requests[7].0 = "name 6".to_owned();
        let outcome = run_batch(&mut database, &mut work, &requests).await;
        for (number, answer) in outcome.answers.iter().enumerate() {
            match (number, answer) {
                (3, Err(StoreError::Constraint { kind: ConstraintKind::Check, .. })) => {}
                (7, Err(error)) => assert!(error.is_unique_violation(), "{error:?}"),
                (_, Ok(())) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((count(&database).await, work.committed), (18, 18));
        database.close().await.unwrap();
    }
}

#[tokio::test]
async fn strict_types_and_sizes_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    let error = sqlx::query("INSERT INTO test_rows (name, size) VALUES ('a', 'text')")
        .execute(database.writer())
        .await
        .in_store("test", "insert")
        .unwrap_err();
    assert!(matches!(error, StoreError::Constraint { kind: ConstraintKind::DataType, .. }), "{error:?}");
    assert!(error.concerns_one_request());
    let error = sqlx::query("SELECT zeroblob(2000000000)")
        .fetch_one(database.writer())
        .await
        .in_store("test", "read")
        .unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_batch_after_a_dropped_one_starts_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    // As a dropped future leaves it.
    unchecked::begin_immediate(database.writer(), "test").await.unwrap();
    insert(database.writer(), &("abandoned".to_owned(), 1)).await.unwrap();
    database.mid_transaction = true;
    let outcome = run_batch(&mut database, &mut Names::default(), &names(0..3)).await;
    assert!(outcome.answers.iter().all(Result::is_ok), "{outcome:?}");
    assert_eq!(count(&database).await, 3);
    database.close().await.unwrap();
}

/// Stores nothing and says that the disk failed.
struct FailingDisk;

impl BatchWork for FailingDisk {
    type Request = Name;
    type Answer = ();

    fn is_single_statement(&self, _: &[Name]) -> bool {
        false
    }

    async fn run_all(&mut self, writer: &mut SqliteConnection, requests: &[Name]) -> Result<Vec<()>, StoreError> {
        insert(writer, &requests[0]).await?;
        let error = sqlx::Error::Io(std::io::Error::from_raw_os_error(5));
        Err(StoreError::classify("test", "insert", error))
    }

    async fn run_one(&mut self, _: &mut SqliteConnection, _: &Name) -> Result<(), StoreError> {
        panic!("an unknown outcome is not tried again")
    }
}

#[tokio::test]
async fn after_an_input_output_error_the_outcome_is_unknown_and_the_writer_is_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    // Something that only the old connection has.
    database.writer().execute("CREATE TEMP TABLE old_connection (a)").await.unwrap();
    let outcome = run_batch(&mut database, &mut FailingDisk, &names(0..3)).await;
    assert!(outcome.writer_lost.is_none());
    for answer in &outcome.answers {
        let error = answer.as_ref().unwrap_err();
        assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
    assert!(database.writer().execute("SELECT * FROM old_connection").await.is_err());
    let outcome = run_batch(&mut database, &mut Names::default(), &names(0..3)).await;
    assert!(outcome.answers.iter().all(Result::is_ok), "{outcome:?}");
    assert_eq!(count(&database).await, 3);

    // A file that is gone can't be verified.
    let path = database.path().to_owned();
    let kept = path.with_extension("kept");
    std::fs::rename(&path, &kept).unwrap();
    let outcome = run_batch(&mut database, &mut FailingDisk, &names(3..4)).await;
    assert!(outcome.writer_lost.is_some(), "{outcome:?}");
    std::fs::rename(&kept, &path).unwrap();
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_moves_the_log_into_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    database.checkpoint().await.unwrap();
    let before = std::fs::metadata(database.path()).unwrap().len();
    run_batch(&mut database, &mut Names::default(), &names(0..500)).await;
    assert_eq!(std::fs::metadata(database.path()).unwrap().len(), before);
    let size = database.size_bytes();
    database.checkpoint().await.unwrap();
    assert!(std::fs::metadata(database.path()).unwrap().len() > before);
    assert!(database.size_bytes() > size, "the log stays allocated");
    database.close().await.unwrap();
}

#[tokio::test]
async fn a_replaced_writer_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    run_batch(&mut database, &mut Names::default(), &names(0..3)).await;
    database.reopen_writer().await.unwrap();
    let outcome = run_batch(&mut database, &mut Names::default(), &names(3..6)).await;
    assert!(outcome.answers.iter().all(Result::is_ok));
    assert_eq!(count(&database).await, 6);
    let path = database.path().to_owned();
    database.close().await.unwrap();
    assert_eq!(side_files(&path), ["test.db", "test.db.marker"]);
}

#[tokio::test]
async fn a_directory_that_can_not_be_written_is_an_error_with_a_remedy() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write to any directory");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let error = open_test_database(directory.path()).await.unwrap_err();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error:?}");
    assert!(error.remedy().contains("writable"));
}
