//! A small database for the kit's own tests.

use std::path::Path;
use std::sync::LazyLock;

use sqlx::migrate::{Migration, MigrationType, Migrator};

use crate::kit::database::{Database, DatabaseSpec, Durability, OpenContext, Opened};
use crate::kit::error::OpenError;

const SCHEMA_1: &str = "
CREATE TABLE test_rows (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL CHECK (size >= 0)) STRICT;
CREATE TABLE test_idempotency (
    key TEXT NOT NULL PRIMARY KEY,
    method TEXT NOT NULL,
    body_hash BLOB NOT NULL CHECK (length(body_hash) = 32),
    result_json TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX test_idempotency_created ON test_idempotency (created_at_ms);
CREATE TABLE test_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    origin_key TEXT NOT NULL UNIQUE,
    target TEXT NOT NULL,
    payload_json TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    applied_at_ms INTEGER
) STRICT;
CREATE INDEX test_outbox_open ON test_outbox (id) WHERE applied_at_ms IS NULL;
";

fn migration(version: i64, sql: &'static str) -> Migration {
    Migration::new(version, "test".into(), MigrationType::Simple, sqlx::SqlSafeStr::into_sql_str(sql), false)
}

fn leak_spec(role: &'static str, migrations: Vec<Migration>) -> DatabaseSpec {
    DatabaseSpec {
        role,
        file: "test/test.db",
        migrator: Box::leak(Box::new(Migrator::with_migrations(migrations))),
        readers: 1,
        durability: Durability::Full,
    }
}

pub(crate) static SPEC: LazyLock<DatabaseSpec> = LazyLock::new(|| leak_spec("test", vec![migration(1, SCHEMA_1)]));
/// The same with one more migration.
pub(crate) static NEWER_SPEC: LazyLock<DatabaseSpec> = LazyLock::new(|| {
    leak_spec("test", vec![migration(1, SCHEMA_1), migration(2, "ALTER TABLE test_rows ADD COLUMN note TEXT")])
});
/// The same, but whose second migration can't work.
pub(crate) static BROKEN_SPEC: LazyLock<DatabaseSpec> = LazyLock::new(|| {
    leak_spec(
        "test",
        vec![
            migration(1, SCHEMA_1),
            migration(2, "CREATE TABLE test_half (id INTEGER PRIMARY KEY) STRICT; ALTER TABLE nothing ADD COLUMN a"),
        ],
    )
});
/// Another role at the same path.
pub(crate) static OTHER_SPEC: LazyLock<DatabaseSpec> =
    LazyLock::new(|| leak_spec("other", vec![migration(1, SCHEMA_1)]));

pub(crate) const CONTEXT: OpenContext<'static> = OpenContext { app_version: "0.0.0-test", now_ms: 1_000 };

pub(crate) async fn open_test_database(directory: &Path) -> Result<(Database, Opened), OpenError> {
    Database::open(directory, &SPEC, CONTEXT).await
}
