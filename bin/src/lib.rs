//! The Holdfast program as a library: command line, renderer, daemon edges, the wrapper around adapters, the demonstration
//! agent.

pub mod cli;
pub mod daemon;
pub mod demo_agent;
pub mod lease_exec;
pub mod render;
