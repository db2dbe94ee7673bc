//! The Holdfast program as a library: command line, renderer, daemon edges, and the wrapper around adapters.

pub mod cli;
pub mod lease_exec;
pub mod render;
