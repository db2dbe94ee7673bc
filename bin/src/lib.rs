//! The Holdfast program as a library: command line, renderer, the daemon's edges, and the wrapper around adapters.

pub mod cli;
pub mod daemon;
pub mod demo_agent;
pub mod lease_exec;
pub mod render;
