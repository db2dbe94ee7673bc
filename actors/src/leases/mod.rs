//! The Leases actor: owns `data/leases.db`. It records which adapter processes are ours before they exist, verifies
//! before any signal, and looks after what earlier runs left open.
//!
//! Waiting and ending run beside the actor and report by message; the mailbox never waits for a process. A reload
//! forgets who waited for a close, not what is to be closed: the tasks report to whichever incarnation lives then.

pub mod adopt;
pub mod command;
mod config;
mod ending;
mod error;
mod handle;
mod inspection;
mod launch;
pub mod leased;
mod message;
mod reads;
mod reap;
pub mod requester;
pub mod run;
pub mod spawn;
mod state;
#[cfg(test)]
mod tests;
pub mod wrapper;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_protocol::ids::{AgentAlias, InstanceId};
use holdfast_stores::config::{AgentConfig, AgentsConfig, ConfigSnapshot};
use holdfast_stores::kit::OpenContext;
use holdfast_stores::leases::{LeasesStore, ROLE};
use tokio::sync::watch;

pub use adopt::{Adopter, Orphans, Ownership};
pub use config::LeasesConfig;
pub use ending::{Ender, StoredEnd, TreeEnd};
pub use error::{Bound, LeasesError};
pub use handle::{LeasesHandle, LeasesShown};
pub use inspection::{Inspection, ReapReport, Verdict};
pub use launch::{LaunchError, LaunchPlan, LeaseLauncher, LeasedAdapter};
pub use leased::{ExitWatch, LeasedProcess, ProcessExit, RootIdentity};
pub use message::{LeasesMessage, LeasesReply, LeasesStatus, OpenLease};
pub(crate) use reads::LeaseReads;
pub use requester::{Proof, Requester, SessionRequester};
pub use run::{Captured, CommandEnd, CommandOutcome, CommandPlan};
pub use spawn::{SpawnError, SpawnRequest, Spawner};

use crate::address::Down;
use crate::process::{Cgroups, ProcessTable};
use crate::reply::Reply;
use crate::shown::Shown;
use crate::store::{check_in_background, down, judge_check};
use crate::surface::{Context, Fault, Surface};
use state::LeasesState;

/// How often is looked after what nobody looks after, and old leases are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Says which install this is. A function, since another surface knows and starts just before this one.
pub type InstanceSource = Arc<dyn Fn() -> BoxFuture<'static, Result<InstanceId, Down>> + Send + Sync>;

/// Where leases are made.
#[derive(Clone)]
pub struct LeasesPlace {
    /// The install root.
    pub install_root: PathBuf,
    /// The wrapper's executable; see [`Spawner::wrapper_path`].
    pub wrapper_path: PathBuf,
    /// When this run of the daemon began, UTC milliseconds: leases made since are not left open by anyone.
    pub run_started_at_ms: i64,
    /// Who starts wrappers in this process.
    pub spawner: Option<Spawner>,
    /// Where each tree gets a cgroup of its own, if it can have one.
    pub cgroups: Option<Cgroups>,
}

/// The Leases surface of one tree.
pub struct LeasesSurface {
    /// `data/`.
    data_dir: PathBuf,
    place: Arc<LeasesPlace>,
    instance: InstanceSource,
    table: Arc<dyn ProcessTable>,
    adopter: Option<Adopter>,
    /// What was validated last.
    config: watch::Receiver<ConfigSnapshot>,
    app_version: &'static str,
    shown: Shown<LeasesShown>,
}

impl LeasesSurface {
    /// Declares the surface. Without an adopter, orphans of a killed wrapper are reported and left alone. What is read
    /// without asking goes to `shown`.
    #[expect(clippy::too_many_arguments, reason = "one call, and each is a thing of its own")]
    pub fn new(
        data_dir: PathBuf,
        place: LeasesPlace,
        instance: InstanceSource,
        table: Arc<dyn ProcessTable>,
        adopter: Option<Adopter>,
        config: watch::Receiver<ConfigSnapshot>,
        app_version: &'static str,
        shown: Shown<LeasesShown>,
    ) -> Self {
        Self { data_dir, place: Arc::new(place), instance, table, adopter, config, app_version, shown }
    }
}

impl Surface for LeasesSurface {
    type Message = LeasesMessage;
    type State = LeasesState;

    async fn start(&self, context: &Context<LeasesMessage>) -> Result<LeasesState, Down> {
        let instance_id = (self.instance)().await?;
        let open = OpenContext { app_version: self.app_version, now_ms: context.ports.clock.now_ms() };
        let (store, opened) = LeasesStore::open(&self.data_dir, open).await.map_err(|error| down(&error))?;
        context.stats.set_size_bytes(store.size_bytes());
        if opened.needs_quick_check {
            let reporter = context.reporter();
            check_in_background(store.readers().clone(), move |outcome| {
                // An incarnation that is ending is followed by one that checks again.
                let _ended = reporter.report(LeasesMessage::FileChecked { outcome });
            });
        }
        let config = self.config.borrow().section::<LeasesConfig>().unwrap_or_else(|error| {
            // Adapters of earlier runs must be looked after whatever the file says.
            tracing::warn!(%error, "the section `leases` can't be used; its defaults apply");
            LeasesConfig::default()
        });
        let ender = Ender { table: Arc::clone(&self.table), adopter: self.adopter.clone(), grace: config.kill_grace() };
        // A section that can't be used bounds nothing here; the others say what is wrong with it.
        let agents = self.config.borrow().section::<AgentsConfig>().unwrap_or_default();
        let bound = |(alias, agent): (&AgentAlias, &AgentConfig)| Some((alias.to_string(), agent.max_processes?));
        let bounds = agents.0.iter().filter_map(bound).collect();
        let state = LeasesState::new(store, instance_id, Arc::clone(&self.place), ender, config, bounds);
        self.shown.show(state.shown());
        context.stats.set_warnings(Vec::new());
        sweep_when_due(context);
        // Nobody waits for this one: what it does is logged.
        let reap = LeasesMessage::ReapStartupOrphans { reply: Reply::sink(|_report| ()) };
        if context.cast_self(reap).is_err() {
            tracing::warn!("the leases of earlier runs are not looked after: the actor is ending already");
        }
        Ok(state)
    }

    async fn handle(
        &self,
        context: &Context<LeasesMessage>,
        message: LeasesMessage,
        state: &mut LeasesState,
    ) -> Result<(), Fault> {
        match message {
            LeasesMessage::Open { lease, reply } => state.open(context, lease, reply).await,
            LeasesMessage::Opened { lease_id, root, exit, reply } => {
                state.opened(context, lease_id, root, exit, reply).await;
            }
            LeasesMessage::Failed { lease_id, error, reply } => state.failed(context, lease_id, error, reply).await,
            LeasesMessage::Close { lease_id, reason, reply } => state.close(context, lease_id, reason, reply).await,
            LeasesMessage::CloseAll { reply } => state.close_all(context, reply).await,
            LeasesMessage::MarkLost { lease_id, reason, reply } => {
                state.mark_lost(context, lease_id, reason, reply).await;
            }
            LeasesMessage::ReapStartupOrphans { reply } => state.reap(context, reply).await,
            LeasesMessage::Foresee { reply } => state.foresee(context, reply).await,
            LeasesMessage::Verify { lease_id, reply } => state.verify(lease_id, reply),
            LeasesMessage::EndStored { stored, reply } => state.end_stored(stored, reply),
            LeasesMessage::Status { reply } => reply.send(state.status().await),
            LeasesMessage::TreeEnded { lease_id, exit, end } => state.tree_ended(context, lease_id, exit, end).await,
            LeasesMessage::EndTried { lease_id, end } => state.end_tried(context, lease_id, end).await,
            LeasesMessage::WrapperKilled { lease_id } => state.wrapper_killed(context, lease_id).await,
            LeasesMessage::DescendantsSeen { seen } => state.descendants_seen(seen),
            LeasesMessage::SweepDue => state.sweep(context).await,
            LeasesMessage::FileChecked { outcome } => judge_check(ROLE, outcome)?,
        }
        state.fault()
    }

    async fn stop(&self, _context: &Context<LeasesMessage>, state: LeasesState) {
        if let Some(cgroups) = &self.place.cgroups {
            cgroups.tidy();
        }
        self.shown.hide();
        state.close_store().await;
    }
}

/// Reminds this incarnation to sweep until it ends.
fn sweep_when_due(context: &Context<LeasesMessage>) {
    let (clock, reporter) = (Arc::clone(&context.ports.clock), context.reporter());
    let interval_ms = i64::try_from(SWEEP_INTERVAL.as_millis()).unwrap_or(i64::MAX);
    tokio::spawn(async move {
        loop {
            clock.wait_until(clock.now_ms().saturating_add(interval_ms)).await;
            if reporter.report(LeasesMessage::SweepDue).is_err() {
                return;
            }
        }
    });
}
