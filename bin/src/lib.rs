//! The Holdfast program as a library: command line, renderer, daemon edges, and the wrapper around adapters.
//! Holdfast: the daemon, the command line and the stdio bridges.

pub mod cli;
pub mod daemon;
pub mod lease_exec;
pub mod render;
