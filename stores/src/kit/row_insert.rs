//! One INSERT statement in two forms: a row at a time, checked at compile time, and many rows in one statement, built
//! from the same text.
//!
//! With this driver each statement costs a hop to the connection's thread, so the number of statements is the cost of
//! a batch, not the number of rows (docs/performance.md).

use std::future::Future;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteArguments;

use super::error::{InStore, StoreError};
use super::unchecked;

/// SQLite's limit of variables in a statement. Source: sqlite.org/limits.html, `SQLITE_MAX_VARIABLE_NUMBER`.
const VARIABLES_MAX: usize = 32_766;
/// Up to this many rows the statement stays prepared: its text is one of few, and small batches are the common ones.
const PERSISTENT_ROWS_MAX: usize = 64;

/// A row that [`row_insert!`](crate::row_insert) declares.
pub trait RowInsert: Sync {
    /// The store's role.
    const STORE: &'static str;
    /// What inserting it is, for errors ("append events").
    const ACTION: &'static str;
    /// The INSERT of one row: `... VALUES (?, ...)`, perhaps with a clause after it that has no variables.
    const SQL: &'static str;
    /// Variables of one row.
    const COLUMNS: usize;
    /// Most rows that one statement takes.
    const ROWS_MAX: usize = VARIABLES_MAX / Self::COLUMNS;

    /// Adds the row's values in the order of [`RowInsert::SQL`].
    ///
    /// # Errors
    /// When a value can't be encoded.
    fn bind(&self, arguments: &mut SqliteArguments) -> Result<(), sqlx::error::BoxDynError>;

    /// Inserts this row alone, with the checked statement; returns how many rows were stored.
    ///
    /// # Errors
    /// [`StoreError`].
    fn insert_one<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send + 'a;
}

/// Returns the statement for `rows` rows, built from the text for one.
pub fn many_rows_sql(sql: &'static str, rows: usize) -> String {
    const VALUES: &str = "VALUES";
    // A statement without the word is one that the compile-time check has already refused.
    let at = sql.rfind(VALUES).map_or(sql.len(), |at| at + VALUES.len());
    let (head, tail) = sql.split_at(at);
    let end = tail.find(')').map_or(tail.len(), |end| end + 1);
    let (group, rest) = tail.split_at(end);
    let mut text = String::with_capacity(head.len() + rows * (group.len() + 1) + rest.len());
    text.push_str(head);
    for row in 0..rows {
        if row > 0 {
            text.push(',');
        }
        text.push_str(group);
    }
    text.push_str(rest);
    text
}

/// Inserts all rows, with one statement up to [`RowInsert::ROWS_MAX`]; returns how many were stored.
///
/// More than that takes several statements: open a transaction first.
///
/// # Errors
/// [`StoreError`]; of the failing statement no row is stored.
pub async fn rows_insert<R: RowInsert>(connection: &mut SqliteConnection, rows: &[R]) -> Result<u64, StoreError> {
    if let [row] = rows {
        return row.insert_one(connection).await;
    }
    let mut stored = 0;
    for chunk in rows.chunks(R::ROWS_MAX) {
        let mut arguments = SqliteArguments::default();
        sqlx::Arguments::reserve(&mut arguments, chunk.len() * R::COLUMNS, 0);
        for row in chunk {
            row.bind(&mut arguments).map_err(sqlx::Error::Encode).in_store(R::STORE, R::ACTION)?;
        }
        let done = unchecked::many_rows(many_rows_sql(R::SQL, chunk.len()), arguments)
            .persistent(chunk.len() <= PERSISTENT_ROWS_MAX)
            .execute(&mut *connection)
            .await
            .in_store(R::STORE, R::ACTION)?;
        stored += done.rows_affected();
    }
    Ok(stored)
}

/// Declares a row with its INSERT statement, checked at compile time.
///
/// The fields are the statement's variables, in its order. The struct becomes a [`RowInsert`], and [`rows_insert`] takes
/// slices of it. Each store tests that both forms store the same.
#[macro_export]
macro_rules! row_insert {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),+ $(,)?
        }
        store: $store:expr,
        action: $action:literal,
        sql: $sql:literal $(,)?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        $visibility struct $name $(<$life>)? {
            $($(#[$field_meta])* $visibility $field: $type),+
        }

        impl $(<$life>)? $crate::kit::row_insert::RowInsert for $name $(<$life>)? {
            const STORE: &'static str = $store;
            const ACTION: &'static str = $action;
            const SQL: &'static str = $sql;
            const COLUMNS: usize = [$(stringify!($field)),+].len();

            fn bind(&self, arguments: &mut ::sqlx::sqlite::SqliteArguments) -> Result<(), ::sqlx::error::BoxDynError> {
                $(::sqlx::Arguments::add(arguments, &self.$field)?;)+
                Ok(())
            }

            async fn insert_one(
                &self,
                connection: &mut ::sqlx::SqliteConnection,
            ) -> Result<u64, $crate::kit::StoreError> {
                let done = ::sqlx::query!($sql, $(self.$field),+).execute(connection).await;
                $crate::kit::error::InStore::in_store(done, $store, $action).map(|done| done.rows_affected())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_many_rows_repeats_the_group_of_one() {
        let sql = "INSERT INTO a (b, c) VALUES (?, ?) ON CONFLICT (b) DO NOTHING";
        assert_eq!(many_rows_sql(sql, 1), sql);
        assert_eq!(many_rows_sql(sql, 2), "INSERT INTO a (b, c) VALUES (?, ?), (?, ?) ON CONFLICT (b) DO NOTHING");
    }
}
