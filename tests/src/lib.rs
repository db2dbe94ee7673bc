//! The harness of the tests that need more than one crate: fake agents, clients, and what fuzz targets and tests share.

pub mod acp_client;
pub mod fake_agent;
pub mod fuzz;
