//! Holdfast: the daemon, the command line and the stdio bridges.

pub mod lease_exec;
