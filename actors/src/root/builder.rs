//! What a root grows: where its configuration comes from and which surfaces stand in it.

use std::future::Future;

use holdfast_protocol::error::WireError;
use ractor::{ActorCell, ActorProcessingErr};
use tokio::sync::watch;

use crate::ports::Ports;
use crate::root::control::RootControl;
use crate::supervisor::{DynamicSupervisor, Stage};

/// Why the configuration is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPurpose {
    /// The process starts: a section that is wrong downs only the surface it configures, an unreadable file stops the
    /// start.
    Start,
    /// A reload: anything wrong refuses the file as a whole.
    Reload,
}

/// Makes the configuration and the surfaces of a tree. A root knows neither; it starts, reloads and ends them.
pub trait TreeBuilder: Send + Sync + 'static {
    /// A validated configuration: one immutable snapshot, cheap to clone.
    type Config: Clone + Send + Sync + 'static;
    /// The typed handles of the surfaces.
    type Handles: Clone + Send + Sync + 'static;

    /// Reads the configuration and validates it whole. Changes nothing.
    ///
    /// # Errors
    /// What is wrong with it, with line and key.
    fn load(&self, purpose: LoadPurpose) -> impl Future<Output = Result<Self::Config, WireError>> + Send;

    /// Returns the revision of `config`, as reload and status report it.
    fn revision(&self, config: &Self::Config) -> String;

    /// Declares the surfaces. Called once a root; nothing is started yet.
    fn build(&self, context: &BuildContext<Self::Config>) -> Built<Self::Handles>;

    /// Settles what only the Tree can settle, once Live has ended and before the Tree does: at the end for good, never at a
    /// reload. Does nothing by default.
    fn settle(&self, _handles: &Self::Handles) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Tells what outlives a reload of the configuration that is now in force. Called in each reload that can no longer be
    /// refused, before the Tree ends.
    fn configure_upper(&self, handles: &Self::Handles, config: &Self::Config) -> impl Future<Output = ()> + Send;
}

/// What surfaces may be given when they are declared.
pub struct BuildContext<C> {
    /// Time, ids and randomness.
    pub ports: Ports,
    /// The configuration in force. A reload puts the next one in before the surfaces start again.
    pub config: watch::Receiver<C>,
    /// The root, for what lives above the Tree: a surface in the Tree that waits for a reload waits for itself.
    pub control: RootControl,
    /// Where connections, adapters and sessions in flight are put.
    pub live: Live,
}

/// The declared surfaces, each list of stages in the order of its start.
pub struct Built<H> {
    /// Outlive reload and everything else, so that nothing an end says is lost.
    pub log: Vec<Stage>,
    /// What a reload restarts.
    pub tree: Vec<Stage>,
    /// Fixed actors of Live: they outlive reload and know what is in flight.
    pub live: Vec<Stage>,
    /// The handles.
    pub handles: H,
}

/// Supervisors of process-local state that outlives a reload. Empty at first; each child is on its own, so that a panic in
/// one ends only that one.
#[derive(Debug, Clone)]
pub struct Live {
    /// Client connections.
    pub connections: DynamicSupervisor,
    /// Adapter processes.
    pub adapters: DynamicSupervisor,
    /// Sessions with an adapter, and their turns in flight.
    pub sessions: DynamicSupervisor,
}

impl Live {
    pub(super) async fn start(ports: &Ports, generation: u64, root: &ActorCell) -> Result<Self, ActorProcessingErr> {
        Ok(Self {
            connections: DynamicSupervisor::start(ports, generation, Some(root.clone())).await?,
            adapters: DynamicSupervisor::start(ports, generation, Some(root.clone())).await?,
            sessions: DynamicSupervisor::start(ports, generation, Some(root.clone())).await?,
        })
    }

    /// Ends what is in flight: turns before the processes that serve them, the connections last, so that every client
    /// still hears how its turn ended.
    pub(super) async fn stop(&self) {
        self.sessions.stop().await;
        self.adapters.stop().await;
        self.connections.stop().await;
    }
}
