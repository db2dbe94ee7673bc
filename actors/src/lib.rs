//! Who keeps it: the supervision kit (`address`, `reply`, `surface`, `supervisor`), the ports, and one folder a surface.

pub mod acp;
pub mod acp_sessions;
pub mod address;
pub mod at_rest;
pub mod channel;
pub mod config;
pub mod control_plane;
pub mod health;
pub mod leases;
pub mod log;
pub mod methods;
pub mod ports;
pub mod process;
pub mod reply;
pub mod root;
pub mod router;
pub mod sessions;
pub mod shown;
pub mod stats;
pub mod store;
pub mod supervisor;
pub mod surface;
pub mod time;
pub mod tree;
pub mod visibility;
