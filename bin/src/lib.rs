//! The Holdfast program as a library: command line, renderer, daemon edges.

pub mod cli;
pub mod render;
