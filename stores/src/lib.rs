//! What Holdfast keeps: one module a store; SQL, files, crypto. No actors, no sockets.

pub mod kit;
