//! What both ends of the Holdfast socket say: methods, ids, errors, JSON-RPC framing. No I/O and no runtime.

pub mod acp;
pub mod client;
pub mod error;
pub mod framing;
pub mod health;
pub mod ids;
pub mod jsonrpc;
pub mod method;
pub mod methods;
pub mod raw;
