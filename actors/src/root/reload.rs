//! One reload: all that can refuse it comes first, then nothing can.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::root::builder::{LoadPurpose, TreeBuilder};
use crate::root::listener::Listeners;
use crate::root::report::{ReloadError, ReloadReport, SurfaceReport};
use crate::supervisor::{Observed, Supervisor};

pub(super) struct Reload<B: TreeBuilder> {
    pub(super) builder: Arc<B>,
    pub(super) config: watch::Sender<B::Config>,
    /// The generation the Tree gets.
    pub(super) generation: u64,
    pub(super) tree: Supervisor,
    pub(super) handles: B::Handles,
    /// What lives above the Tree.
    pub(super) unchanged: Vec<Observed>,
}

/// Reads, validates and binds; then puts the new configuration in force, restarts the Tree and moves the listeners.
pub(super) async fn run<B: TreeBuilder>(
    reload: Reload<B>,
    mut listeners: Listeners<B::Config>,
) -> (Result<ReloadReport, ReloadError>, Listeners<B::Config>) {
    let outcome = run_with(&reload, &mut listeners).await;
    (outcome, listeners)
}

async fn run_with<B: TreeBuilder>(
    reload: &Reload<B>,
    listeners: &mut Listeners<B::Config>,
) -> Result<ReloadReport, ReloadError> {
    let began = Instant::now();
    let config = reload.builder.load(LoadPurpose::Reload).await.map_err(ReloadError::Config)?;
    listeners.prepare(&config).await.map_err(|(name, error)| ReloadError::Listener { name, error })?;
    let config_revision = reload.builder.revision(&config);
    reload.config.send_replace(config.clone());
    reload.builder.configure_upper(&reload.handles, &config).await;
    let outcomes = match reload.tree.reload(reload.generation).await {
        Ok(outcomes) => outcomes,
        Err(gone) => {
            listeners.abort().await;
            return Err(ReloadError::Failed(gone.to_string()));
        }
    };
    listeners.commit().await;
    let surfaces = outcomes
        .into_iter()
        .map(SurfaceReport::of_child)
        .chain(reload.unchanged.iter().map(SurfaceReport::unchanged))
        .collect();
    Ok(ReloadReport { generation: reload.generation, config_revision, surfaces, took: began.elapsed() })
}
