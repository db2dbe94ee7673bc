//! The Holdfast program as a library: command line, renderer, the daemon and its listeners, the bridge for editors, the wrapper around adapters,
//! and the demonstration agent.

pub mod bridge;
pub mod cli;
pub mod commands;
pub mod daemon;
pub mod demo_agent;
pub mod http;
pub mod lease_exec;
pub mod reference;
pub mod render;
pub mod socket;
