//! The kit's own tests that need a database.

mod at_rest;
pub(crate) mod database;
mod fault;
