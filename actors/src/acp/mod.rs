//! ACP sessions in flight: what must outlive a reload of the tree.
//!
//! ```text
//! client frames -> north::Client -> session::LiveSession -> adapter::Adapter -> the agent's process
//!                                        |  every update: store first (acp_sessions), then
//! client frames <- feed::Feed     <-----/   forward to each client's feed
//! ```
//!
//! A [`session::LiveSession`] is the only writer of its session's history; it gives each update its position, has it
//! stored, and only then shows it to anyone. A [`feed::Feed`] is one client's cursor over that history: it reads live
//! updates while it keeps up and the store when it does not, so attaching in mid-turn has no gap and no repeat.

pub mod adapter;
pub mod catalog;
pub mod directory;
pub mod environment;
pub mod feed;
pub mod launcher;
pub mod leased;
pub mod north;
pub mod session;
