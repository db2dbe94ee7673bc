//! The kit's own tests that need a database.

pub(crate) mod database;
mod fault;
