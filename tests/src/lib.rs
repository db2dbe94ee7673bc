//! The harness: whole trees in this process, real daemons in processes of their own, kill -9, fake agents, clients, and
//! what fuzz targets and tests share.
//!
//! Everything a test starts lives in a temporary directory with a short path and ends with the test, also when it fails.

// The harness is test code: what goes wrong in it must fail the test at once, with the place.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod acp_client;
pub mod acp_socket;
pub mod acp_stage;
pub mod bench;
pub mod crash;
pub mod daemon;
pub mod eventually;
pub mod fake_agent;
pub mod family;
pub mod fuzz;
pub mod interop;
pub mod lock_holder;
pub mod ports;
pub mod private;
pub mod processes;
pub mod random;
pub mod stores;
pub mod tree;
