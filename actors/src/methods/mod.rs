//! What the methods of the socket do: each hands its params to a handle and turns what comes back into its result.
//!
//! One file a surface, as the declarations have it.

pub(crate) mod agent;
mod daemon;
pub(crate) mod lease;
pub(crate) mod session;

use std::path::PathBuf;
use std::sync::Arc;

pub use daemon::{DaemonFacts, reload_report};

use crate::log;
use crate::ports::Clock;
use crate::root::RootControl;
use crate::router::{Router, RouterBuilder};
use crate::tree::Handles;

/// What the handlers reach.
#[derive(Clone)]
pub struct MethodContext {
    /// The surfaces.
    pub handles: Handles,
    /// The root.
    pub control: RootControl,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What does not change while the daemon runs.
    pub facts: DaemonFacts,
    /// Returns how many clients are on the socket.
    pub connections: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// This program, which is also the built-in agents.
    pub executable: PathBuf,
}

/// Returns a router with every method whose surface there is.
pub fn router(context: &MethodContext) -> Router {
    let mut builder = RouterBuilder::new();
    daemon::register(&mut builder, context);
    agent::register(&mut builder, context);
    log::register(&mut builder, context.handles.log.clone());
    session::register(&mut builder, context);
    lease::register(&mut builder, context);
    builder.build(context.facts.version)
}
