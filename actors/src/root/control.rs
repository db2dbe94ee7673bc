//! The two ways to hold a root: [`RootControl`] for those who may ask it something, [`RootHandle`] for whoever started it.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::root::builder::{Live, TreeBuilder};
use crate::root::listener::ListenerStatus;
use crate::root::report::{ReloadError, ReloadReport, RootFailed, SurfaceReport};
use crate::supervisor::Observed;

/// What a root is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It starts its parts.
    Starting,
    /// It serves.
    Running,
    /// It serves, and the Tree is being restarted.
    Reloading,
    /// It ends its parts.
    Stopping,
    /// All has ended.
    Stopped,
}

/// What a root shows without being asked.
#[derive(Clone)]
pub struct RootView {
    /// What it is doing.
    pub phase: Phase,
    /// The generation of the Tree.
    pub generation: u64,
    /// The revision of the configuration in force.
    pub config_revision: String,
    /// How the listeners stood after the last start or reload.
    pub listeners: Vec<ListenerStatus>,
    /// What health sees of the surfaces: Log, Tree, then Live.
    pub surfaces: Arc<[Observed]>,
}

/// What a root can be asked from outside.
pub(super) enum Request {
    Reload { reply: oneshot::Sender<Result<ReloadReport, ReloadError>> },
    Shutdown,
}

/// Asks a root and looks at it. Cheap to clone.
#[derive(Clone)]
pub struct RootControl {
    pub(super) send: Arc<dyn Fn(Request) + Send + Sync>,
    pub(super) view: watch::Receiver<RootView>,
}

impl RootControl {
    /// Reads the configuration anew and restarts the Tree with it. A reload that is asked for while another runs is run once
    /// more after it, and all who wait share that answer.
    ///
    /// Not to be awaited by a surface of the Tree: the reload waits for that surface to end.
    ///
    /// # Errors
    /// [`ReloadError`]; unless it is [`ReloadError::Failed`], nothing has changed.
    pub async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let (reply, answer) = oneshot::channel();
        (self.send)(Request::Reload { reply });
        answer.await.unwrap_or(Err(ReloadError::Stopping))
    }

    /// Asks for an orderly end. A second time hastens it: what is in flight is no longer waited for. Acknowledged writes are
    /// safe either way.
    pub fn shutdown(&self) {
        (self.send)(Request::Shutdown);
    }

    /// Returns what the root shows now.
    pub fn view(&self) -> RootView {
        self.view.borrow().clone()
    }

    /// Returns the generation of the Tree.
    pub fn generation(&self) -> u64 {
        self.view.borrow().generation
    }

    /// Waits until the root is stopping or has ended.
    pub async fn stopping(&self) {
        let mut view = self.view.clone();
        // An error means that the root is gone, which is the same thing.
        let _gone = view.wait_for(|view| matches!(view.phase, Phase::Stopping | Phase::Stopped)).await;
    }
}

impl std::fmt::Debug for RootControl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let view = self.view.borrow();
        formatter
            .debug_struct("RootControl")
            .field("phase", &view.phase)
            .field("generation", &view.generation)
            .finish_non_exhaustive()
    }
}

/// A running root. Dropping it does not end the root; [`RootHandle::shutdown`] does.
pub struct RootHandle<B: TreeBuilder> {
    pub(super) control: RootControl,
    pub(super) handles: B::Handles,
    pub(super) live: Live,
    pub(super) config: watch::Receiver<B::Config>,
    pub(super) started: Vec<SurfaceReport>,
    pub(super) ended: watch::Receiver<Option<Result<(), RootFailed>>>,
}

impl<B: TreeBuilder> RootHandle<B> {
    /// Returns the handles of the surfaces.
    pub fn handles(&self) -> &B::Handles {
        &self.handles
    }

    /// Returns the supervisors of what outlives a reload.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> B::Config {
        self.config.borrow().clone()
    }

    /// Returns how each surface came out of the start, in the order of the start.
    pub fn started(&self) -> &[SurfaceReport] {
        &self.started
    }

    /// Returns what can be handed to others.
    pub fn control(&self) -> &RootControl {
        &self.control
    }

    /// As [`RootControl::reload`].
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        self.control.reload().await
    }

    /// As [`RootControl::shutdown`]; [`Self::wait`] tells when it is done.
    pub fn shutdown(&self) {
        self.control.shutdown();
    }

    /// Waits until everything has ended and the instance lock is free.
    ///
    /// # Errors
    /// [`RootFailed`] when that was not by an orderly shutdown.
    pub async fn wait(&self) -> Result<(), RootFailed> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            Ok(None) | Err(_) => Err(RootFailed { reason: "the root actor was dropped".to_owned() }),
        }
    }
}

impl<B: TreeBuilder> std::fmt::Debug for RootHandle<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RootHandle").field("control", &self.control).finish_non_exhaustive()
    }
}
