//! What Holdfast keeps: one module a store; SQL, files, crypto. No actors and no sockets.

pub mod acp_sessions;
pub mod config;
pub mod control_plane;
pub mod install_root;
pub mod instance_lock;
pub mod kit;
pub mod leases;
pub mod log;
pub mod sessions;
