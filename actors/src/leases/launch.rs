//! Lease first, process second: the only way an adapter comes to be.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_protocol::ids::{LeaseId, SessionId};
use tokio::sync::oneshot;

use super::command::command_hash;
use super::error::LeasesError;
use super::handle::LeasesHandle;
use super::leased::LeasedProcess;
use super::message::OpenLease;
use super::spawn::{SpawnError, SpawnRequest, Spawner};

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The agent's name in the configuration.
    pub agent: String,
    /// The session it is for, if for one.
    pub session_id: Option<SessionId>,
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Where it runs; where we run when `None`.
    pub directory: Option<PathBuf>,
    /// Added to our own environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// Time between TERM and KILL when the wrapper ends the tree by itself.
    pub kill_grace: Duration,
}

/// A running adapter under its lease.
#[derive(Debug)]
pub struct LeasedAdapter {
    /// The lease.
    pub lease_id: LeaseId,
    /// The process.
    pub process: LeasedProcess,
}

/// Why no adapter runs.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The lease could not be recorded.
    #[error(transparent)]
    Lease(#[from] LeasesError),
    /// The process could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The plan names no program.
    #[error("agent `{agent}` has no command")]
    NoCommand {
        /// The agent.
        agent: String,
    },
    /// The launch died half-way; its lease says what became of it.
    #[error("the launch of agent `{agent}` was interrupted")]
    Interrupted {
        /// The agent.
        agent: String,
    },
}

/// Starts adapters under leases. Cheap to clone.
#[derive(Clone)]
pub struct LeaseLauncher {
    leases: LeasesHandle,
    spawner: Spawner,
}

impl LeaseLauncher {
    /// Makes a launcher.
    pub fn new(leases: LeasesHandle, spawner: Spawner) -> Self {
        Self { leases, spawner }
    }

    /// Returns the handle of the leases.
    pub fn leases(&self) -> &LeasesHandle {
        &self.leases
    }

    /// Makes a lease, starts the adapter, records it. When this returns an error nothing is left running; when its
    /// future is dropped, what was started is ended and its lease closed.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn launch(&self, plan: LaunchPlan) -> Result<LeasedAdapter, LaunchError> {
        let agent = plan.agent.clone();
        let (sender, receiver) = oneshot::channel();
        let launcher = self.clone();
        // A task of its own, so that a caller who gives up does not leave a process behind that no lease knows of.
        tokio::spawn(async move {
            let launched = launcher.start(plan).await;
            if let Err(Ok(unwanted)) = sender.send(launched) {
                launcher.close(unwanted.lease_id, "nobody waits for it any more").await;
            }
        });
        receiver.await.unwrap_or(Err(LaunchError::Interrupted { agent }))
    }

    async fn start(&self, plan: LaunchPlan) -> Result<LeasedAdapter, LaunchError> {
        let command_hash = command_hash(&plan.argv);
        let mut argv = plan.argv.into_iter();
        let Some(program) = argv.next() else {
            return Err(LaunchError::NoCommand { agent: plan.agent });
        };
        let lease = OpenLease { session_id: plan.session_id, agent: plan.agent, command_hash };
        let record = self.leases.open(lease).await?;
        let lease_id = record.lease_id;
        let request = SpawnRequest {
            lease_id,
            instance_id: record.instance_id,
            session_id: plan.session_id,
            program,
            arguments: argv.collect(),
            directory: plan.directory,
            environment: plan.environment.into_iter().collect(),
            kill_grace: plan.kill_grace,
            cgroup_path: record.cgroup_path,
        };
        let process = match self.spawner.spawn(request).await {
            Ok(process) => process,
            Err(error) => {
                // A lease that stays `starting` is looked after at the next start.
                if let Err(second) = self.leases.failed(lease_id, error.to_string()).await {
                    tracing::warn!(%lease_id, error = %second, "a failed start could not be recorded");
                }
                return Err(error.into());
            }
        };
        match self.leases.opened(lease_id, process.identity, process.exit.clone()).await {
            Ok(_record) => Ok(LeasedAdapter { lease_id, process }),
            Err(error) => {
                process.abandon();
                self.close(lease_id, "its start could not be recorded").await;
                Err(error.into())
            }
        }
    }

    pub(super) async fn close(&self, lease_id: LeaseId, reason: &str) {
        if let Err(error) = self.leases.close(lease_id, Some(reason.to_owned())).await {
            tracing::warn!(%lease_id, %error, reason, "a lease could not be closed");
        }
    }
}
