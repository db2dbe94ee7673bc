//! The Log: owns `data/state/runtime-trace.jsonl`. Above the tree that reload restarts, so nothing a reload says is lost.
//!
//! Events reach it over a bounded queue ([`route`]); what does not fit is counted, and the count is logged. A restart
//! forgets what waited in the queue, the repeat counts and the subscriptions. `kill -9` loses what waited in the queue.

mod config;
mod error;
mod layer;
mod levels;
mod message;
pub mod route;
mod rpc;
mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use holdfast_protocol::error::ErrorKind;
use tokio::sync::{oneshot, watch};

pub use config::{LogsConfig, LogsMode};
pub use error::LogsError;
pub use levels::{InvalidLevels, Levels};
pub use message::{LogItem, LogMessage, LogStatus};
pub use route::{LogRouter, TreeId};
pub use rpc::{register, register_at_rest};

use crate::address::Down;
use crate::surface::{Context, Fault, Reporter, Surface};
use state::LogState;

/// How long folded repeats may wait for a look at the clock. Real time: it only decides when to look.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The Log of one tree.
pub struct LogSurface {
    /// `data/state`, made when it is not there.
    directory: PathBuf,
    router: LogRouter,
    tree: TreeId,
    /// The section that applies; a later incarnation starts with what was configured last.
    config: watch::Sender<LogsConfig>,
}

impl LogSurface {
    /// Declares the Log that keeps the events of `tree` in `directory`.
    pub fn new(directory: PathBuf, router: LogRouter, tree: TreeId, config: LogsConfig) -> Self {
        Self { directory, router, tree, config: watch::Sender::new(config) }
    }
}

impl Surface for LogSurface {
    type Message = LogMessage;
    type State = LogState;

    async fn start(&self, context: &Context<LogMessage>) -> Result<LogState, Down> {
        let config = self.config.borrow().clone();
        let levels: Levels = config.level.parse().map_err(|error: InvalidLevels| Down {
            kind: ErrorKind::ConfigInvalid,
            reason: error.to_string(),
            remedy: "correct `logs.level` in config.toml, then `holdfast reload`".to_owned(),
        })?;
        let queue = self.router.attach(self.tree, levels.clone(), context.ports.clock.clone());
        wake_when_due(context.reporter(), queue.wake.clone());
        let state = LogState::open(self.directory.clone(), config, levels, queue).await;
        state.map_err(|error| {
            self.router.detach(self.tree);
            Down {
                kind: error.kind(),
                reason: crate::store::chain(&error),
                remedy: "check the disk and the permissions of `data/state`, then restart the daemon".to_owned(),
            }
        })
    }

    async fn handle(
        &self,
        context: &Context<LogMessage>,
        message: LogMessage,
        state: &mut LogState,
    ) -> Result<(), Fault> {
        match message {
            LogMessage::Query { query, reply } => state.query(query, reply),
            LogMessage::Subscribe { filter, capacity, reply } => reply.send(state.subscribe(filter, capacity)),
            LogMessage::SetLevels { levels, reply } => {
                self.router.set_levels(self.tree, levels.clone());
                state.levels = levels;
                reply.send(());
            }
            LogMessage::Configure { config, reply } => {
                let applied = self.configure(config, state).await;
                reply.send(applied);
            }
            LogMessage::Status { reply } => reply.send(state.status()),
            LogMessage::Flush { reply } => {
                state.write_queued(context).await?;
                reply.send(());
            }
            LogMessage::Wake { done } => {
                state.write_queued(context).await?;
                drop(done);
            }
        }
        Ok(())
    }

    async fn stop(&self, context: &Context<LogMessage>, mut state: LogState) {
        self.router.detach(self.tree);
        state.finish(context).await;
    }
}

impl LogSurface {
    async fn configure(&self, config: LogsConfig, state: &mut LogState) -> Result<(), LogsError> {
        let levels: Levels = config.level.parse()?;
        state.configure(&self.directory, config.clone()).await?;
        self.router.set_levels(self.tree, levels.clone());
        state.levels = levels;
        self.config.send_replace(config);
        Ok(())
    }
}

/// Tells the Log of waiting events, one message at a time, until its incarnation ends.
fn wake_when_due(reporter: Reporter<LogMessage>, wake: std::sync::Arc<tokio::sync::Notify>) {
    tokio::spawn(async move {
        loop {
            // The limit passing is a reason to look, too.
            let _either = tokio::time::timeout(LOOK_EVERY, wake.notified()).await;
            let (done, looked) = oneshot::channel();
            if reporter.report(LogMessage::Wake { done }).is_err() {
                return;
            }
            // Dropped, answered or never handled: all mean that the next look is due.
            let _looked = looked.await;
        }
    });
}
