//! Tests of behaviour that no crate has alone.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that can't go on should stop right there")]

mod fake_agent;
mod fuzz;
