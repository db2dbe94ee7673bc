//! How an agent's process comes to be: a port, so that tests can put an agent inside the process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::{AgentAlias, LeaseId, SessionId};
use tokio::io::{AsyncRead, AsyncWrite};

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCommand {
    /// The agent's name in the configuration.
    pub alias: AgentAlias,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub cwd: PathBuf,
}

/// Ends an agent's process tree.
pub type EndTree = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A running agent process, under its lease.
pub struct Launched {
    /// The lease it runs under.
    pub lease_id: LeaseId,
    /// What it reads.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it says: one ACP message a line.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Ends when its whole tree has gone; the text says how the agent itself ended ("exit status 1", "signal 9").
    pub exited: BoxFuture<'static, String>,
    /// Ends the tree: asks, waits, kills. Idempotent. Returns when the tree has gone or cannot be ended.
    pub end: EndTree,
}

/// Why an agent could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LaunchError {
    /// What failed, with the program's name.
    pub message: String,
    /// What to do, where that is known.
    pub remedy: Option<String>,
    /// What kind of failure it is.
    pub kind: ErrorKind,
}

/// Starts agents.
pub trait AgentLauncher: Send + Sync + 'static {
    /// Starts `command` for `session_id` under a new lease.
    ///
    /// # Errors
    /// [`LaunchError`]; nothing is left running then.
    fn launch(
        &self,
        command: AgentCommand,
        session_id: Option<SessionId>,
    ) -> BoxFuture<'_, Result<Launched, LaunchError>>;
}
