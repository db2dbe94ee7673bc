//! Holdfast: the daemon, the command line and the stdio bridges.

pub mod cli;
pub mod http;
pub mod lease_exec;
pub mod render;
