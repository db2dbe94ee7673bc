//! Holdfast: the daemon, the command line and the stdio bridges.

pub mod lease_exec;
//! The Holdfast program as a library: command line, renderer, daemon edges.

pub mod cli;
pub mod render;
