//! What Holdfast keeps: one module a store. No actors, no sockets.

pub mod log;
