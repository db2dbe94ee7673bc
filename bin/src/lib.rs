//! The daemon, the command line and the stdio bridges of Holdfast.

pub mod demo_agent;
