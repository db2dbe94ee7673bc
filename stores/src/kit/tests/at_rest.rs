//! A database read while its owner does not run.

use std::path::Path;

use super::database::{CONTEXT, NEWER_SPEC, SPEC, open_test_database};
use crate::kit::at_rest::AtRest;
use crate::kit::database::Database;
use crate::kit::error::OpenError;

/// What lies in the directory: names and bytes, SQLite's shared memory left out, which is no data.
fn lies_there(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(directory.join("test"))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| !name.ends_with("-shm"))
        .collect();
    files.sort();
    files
}

async fn insert(database: &mut Database, name: &str) {
    let statement = sqlx::query("INSERT INTO test_rows (name, size) VALUES (?, 1)").bind(name);
    statement.execute(database.writer()).await.unwrap();
}

async fn names(at_rest: &AtRest) -> Vec<String> {
    let mut reader = at_rest.readers().reader().await.unwrap();
    sqlx::query_scalar("SELECT name FROM test_rows ORDER BY id").fetch_all(&mut *reader).await.unwrap()
}

#[tokio::test]
async fn what_was_never_made_is_nothing_and_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    assert!(AtRest::open(directory.path(), &SPEC).await.unwrap().is_none());
    assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none());
}

#[tokio::test]
async fn a_closed_database_is_read_and_nothing_of_it_changes_until_an_owner_comes() {
    let directory = tempfile::tempdir().unwrap();
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    insert(&mut database, "a").await;
    database.close().await.unwrap();
    let before = lies_there(directory.path());
    let at_rest = AtRest::open(directory.path(), &SPEC).await.unwrap().unwrap();
    assert_eq!(names(&at_rest).await, ["a"]);
    assert!(at_rest.is_unchanged());
    assert_eq!(lies_there(directory.path()), before);
    assert!(!directory.path().join("test/test.db-shm").exists());

    let (mut database, opened) = open_test_database(directory.path()).await.unwrap();
    assert!(!opened.needs_quick_check, "the read left its traces");
    assert!(!at_rest.is_unchanged(), "a log is there now");
    insert(&mut database, "b").await;
    database.close().await.unwrap();
    assert!(!at_rest.is_unchanged(), "the file has another time and size");
    let again = AtRest::open(directory.path(), &SPEC).await.unwrap().unwrap();
    assert_eq!(names(&again).await, ["a", "b"]);
}

#[tokio::test]
async fn what_only_the_log_of_an_unclean_stop_holds_is_read() {
    let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut database, _) = open_test_database(directory.path()).await.unwrap();
    insert(&mut database, "a").await;
    // As kill -9 leaves it: copied while the owner lives.
    std::fs::create_dir(killed.path().join("test")).unwrap();
    for (name, bytes) in lies_there(directory.path()) {
        std::fs::write(killed.path().join("test").join(name), bytes).unwrap();
    }
    database.close().await.unwrap();
    let before = lies_there(killed.path());
    let at_rest = AtRest::open(killed.path(), &SPEC).await.unwrap().unwrap();
    assert_eq!(names(&at_rest).await, ["a"]);
    assert!(at_rest.is_unchanged());
    assert_eq!(lies_there(killed.path()), before);
}

#[tokio::test]
async fn another_version_and_damage_are_told_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    open_test_database(directory.path()).await.unwrap().0.close().await.unwrap();
    let older = AtRest::open(directory.path(), &NEWER_SPEC).await.unwrap_err();
    assert!(matches!(older, OpenError::OlderSchema { found: 1, known: 2, .. }), "{older}");
    Database::open(directory.path(), &NEWER_SPEC, CONTEXT).await.unwrap().0.close().await.unwrap();
    let before = lies_there(directory.path());
    let newer = AtRest::open(directory.path(), &SPEC).await.unwrap_err();
    assert!(matches!(newer, OpenError::NewerSchema { found: 2, known: 1, .. }), "{newer}");
    assert_eq!(lies_there(directory.path()), before);

    let file = directory.path().join("test/test.db");
    std::fs::write(&file, &before[0].1[..5_000]).unwrap();
    let cut = AtRest::open(directory.path(), &NEWER_SPEC).await.unwrap_err();
    assert!(matches!(cut, OpenError::Damaged { .. }), "{cut}");
    std::fs::remove_file(&file).unwrap();
    let gone = AtRest::open(directory.path(), &NEWER_SPEC).await.unwrap_err();
    assert!(matches!(gone, OpenError::MissingButExpected { .. }), "{gone}");
}
