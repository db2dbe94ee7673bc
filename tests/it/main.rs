//! Tests of behaviour that no crate has alone, one file a behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that can't go on should stop right there")]

mod acp_lossless;
mod acp_permissions;
mod acp_processes;
mod acp_replay;
mod acp_turns;
mod acpx;
mod attach;
mod bridge_and_run;
mod broken_config;
mod crash;
mod damaged_store;
mod fake_agent;
mod first_start;
mod full_disk;
mod fuzz;
mod lease_life;
mod lease_methods;
mod locked_store;
mod logs;
mod odd_frames;
mod one_daemon;
mod reload;
mod sdk;
mod signals;
mod two_trees;
mod visibility;
