//! The tree of a Holdfast daemon: which surfaces there are, in what order they start, and how they hold each other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::health::{HealthWarning, ListenerHealth};
use holdfast_stores::config::{
    AgentsConfig, ConfigError, ConfigSection, ConfigSnapshot, ConfigSource, DuplicateSection, PermissionsConfig,
    SectionDescriptor, SectionRegistry,
};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::kit::CursorKey;

use crate::acp::catalog::InstalledAgents;
use crate::acp::directory::{Directory, DirectoryHandle};
use crate::acp::environment::Environment;
use crate::acp::leased::LeasedAgents;
use crate::acp_sessions::{AcpSessionsHandle, AcpSessionsSurface};
use crate::address::{Address, CallError, Down};
use crate::config::{ConfigHandle, ConfigSurface};
use crate::control_plane::{ControlPlaneHandle, ControlPlaneSurface};
use crate::health::{HealthMessage, HealthProbe, HealthSurface, Observations, ServingPhase};
use crate::leases::{
    Adopter, InstanceSource, LeaseLauncher, LeasesConfig, LeasesHandle, LeasesPlace, LeasesSurface, Spawner,
};
use crate::log::{LogMessage, LogRouter, LogSurface, LogsConfig, TreeId};
use crate::process::{Cgroups, ProcTable};
use crate::root::{BuildContext, Built, ListenerStatus, LoadPurpose, Phase, RootControl, TreeBuilder};
use crate::sessions::{SessionsHandle, SessionsSurface};
use crate::shown::Shown;
use crate::supervisor::{Limits, Slot, Stage};

/// How long the Log may take to apply a changed section.
const CONFIGURE_LIMIT: Duration = Duration::from_secs(10);
/// How long Leases may take to end trees that are being ended when it stops.
const LEASES_DRAIN: Duration = Duration::from_secs(30);

/// Returns the sections of `config.toml` that the surfaces own. A program adds those of its listeners.
pub fn config_sections() -> Vec<SectionDescriptor> {
    vec![
        SectionDescriptor::of::<AgentsConfig>(),
        SectionDescriptor::of::<PermissionsConfig>(),
        SectionDescriptor::of::<LogsConfig>(),
        SectionDescriptor::of::<LeasesConfig>(),
    ]
}

/// Returns the registry of [`config_sections`] and `more`.
///
/// # Errors
/// When two have the same name.
pub fn config_registry(
    more: impl IntoIterator<Item = SectionDescriptor>,
) -> Result<Arc<SectionRegistry>, DuplicateSection> {
    SectionRegistry::new(config_sections().into_iter().chain(more)).map(Arc::new)
}

/// The tree of one install root.
pub struct HoldfastTree {
    /// The install root, prepared.
    pub root: InstallRoot,
    /// Where the configuration comes from.
    pub source: ConfigSource,
    /// The way of events to the Log.
    pub router: LogRouter,
    /// Which of the router's trees this is.
    pub tree: TreeId,
    /// The version of the program.
    pub version: &'static str,
    /// What health says for the life of the process.
    pub warnings: Vec<HealthWarning>,
    /// This program: it is also the wrapper around adapters and the built-in agents.
    pub program: PathBuf,
    /// Starts wrappers; one a process.
    pub spawner: Spawner,
    /// Ends the orphans of killed wrappers, if this process adopts them.
    pub adopter: Option<Adopter>,
}

/// The typed handles of the surfaces.
#[derive(Clone)]
pub struct Handles {
    /// The Log.
    pub log: Address<LogMessage>,
    /// Config.
    pub config: ConfigHandle,
    /// ControlPlane.
    pub control_plane: ControlPlaneHandle,
    /// Sessions.
    pub sessions: SessionsHandle,
    /// Leases.
    pub leases: LeasesHandle,
    /// AcpSessions.
    pub acp_sessions: AcpSessionsHandle,
    /// ACP sessions in flight.
    pub acp_directory: DirectoryHandle,
    /// What sessions in flight and their clients share.
    pub acp: Arc<Environment>,
    /// Health.
    pub health: Address<HealthMessage>,
    /// Looks at the tree without asking any actor.
    pub probe: HealthProbe,
}

impl TreeBuilder for HoldfastTree {
    type Config = ConfigSnapshot;
    type Handles = Handles;

    async fn load(&self, purpose: LoadPurpose) -> Result<ConfigSnapshot, WireError> {
        let source = self.source.clone();
        let read = move || match purpose {
            LoadPurpose::Start => source.load_for_start(),
            LoadPurpose::Reload => source.load_for_reload(),
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(loaded) => loaded.map_err(|error: ConfigError| WireError::from(&error)),
            // Only a panic: the task is never cancelled. It goes on here, to be seen where the load was asked for.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn revision(&self, config: &ConfigSnapshot) -> String {
        config.revision().to_string()
    }

    fn build(&self, context: &BuildContext<ConfigSnapshot>) -> Built<Handles> {
        let logs = section_or_default::<LogsConfig>(&context.config.borrow());
        let log_slot = Slot::new("log", Limits::default());
        let config_slot = Slot::new("config", Limits::default());
        let control_plane_slot = Slot::new("control-plane", Limits::default());
        let sessions_slot = Slot::new("sessions", Limits::default());
        let leases_slot = Slot::new("leases", Limits { drain: LEASES_DRAIN, ..Limits::default() });
        let acp_sessions_slot = Slot::new("acp-sessions", Limits::default());
        let directory_slot = Slot::new("acp-directory", Limits::default());
        let health_slot = Slot::new("health", Limits::default());
        let probe = HealthProbe::new(self.version, Arc::clone(&context.ports.clock), self.warnings.clone(), {
            let control = context.control.clone();
            move || observations(&control)
        })
        .watching(&self.root.data_dir());
        let config_handle = ConfigHandle::new(config_slot.address());
        let (control_plane_shown, leases_shown, acp_sessions_readers) =
            (Shown::default(), Shown::default(), Shown::default());
        let control_plane_handle = ControlPlaneHandle::new(control_plane_slot.address(), control_plane_shown.clone());
        let leases_handle = LeasesHandle::new(leases_slot.address(), leases_shown.clone());
        let acp_sessions_handle = AcpSessionsHandle::new(acp_sessions_slot.address(), acp_sessions_readers.clone());
        let boot_id = context.ports.ids.uuid_v7().to_string();
        let catalog = InstalledAgents::new(
            config_handle.clone(),
            control_plane_handle.clone(),
            self.program.clone(),
            self.root.agents_dir(),
            context.ports.clone(),
        );
        let launcher = LeaseLauncher::new(leases_handle.clone(), self.spawner.clone());
        let acp = Arc::new(Environment {
            store: acp_sessions_handle.clone(),
            launcher: Arc::new(LeasedAgents::new(launcher, config_handle.clone())),
            catalog: Arc::new(catalog),
            adapters: context.live.adapters.clone(),
            ports: context.ports.clone(),
            cursors: CursorKey::new(context.ports.ids.random_key()),
            boot_id: boot_id.clone(),
            version: self.version,
        });
        let handles = Handles {
            log: log_slot.address(),
            config: config_handle,
            control_plane: control_plane_handle.clone(),
            sessions: SessionsHandle::new(sessions_slot.address()),
            leases: leases_handle,
            acp_sessions: acp_sessions_handle,
            acp_directory: DirectoryHandle::new(directory_slot.address()),
            acp: Arc::clone(&acp),
            health: health_slot.address(),
            probe: probe.clone(),
        };

        let log = LogSurface::new(self.root.state_dir(), self.router.clone(), self.tree, logs);
        let log: Vec<Stage> = vec![vec![Box::new(log_slot.fill(&context.ports, log))]];
        let config = config_slot.fill(&context.ports, ConfigSurface::new(context.config.clone(), self.source.clone()));
        let control_plane =
            ControlPlaneSurface::new(self.root.data_dir(), self.version, handles.config.clone(), control_plane_shown);
        let control_plane = control_plane_slot.fill(&context.ports, control_plane);
        let sessions = SessionsSurface::new(self.root.data_dir(), self.version);
        let sessions = sessions_slot.fill(&context.ports, sessions);
        let place = LeasesPlace {
            install_root: self.root.path().to_owned(),
            wrapper_path: self.spawner.wrapper_path().to_owned(),
            run_started_at_ms: context.ports.clock.now_ms(),
            spawner: Some(self.spawner.clone()),
            cgroups: Cgroups::find()
                .inspect_err(|error| tracing::debug!(%error, "agents get no cgroup of their own"))
                .ok(),
        };
        let leases = leases_slot.fill(
            &context.ports,
            LeasesSurface::new(
                self.root.data_dir(),
                place,
                instance_source(control_plane_handle),
                Arc::new(ProcTable),
                self.adopter.clone(),
                context.config.clone(),
                self.version,
                leases_shown,
            ),
        );
        let acp_sessions = AcpSessionsSurface::new(self.root.data_dir(), self.version, boot_id, acp_sessions_readers);
        let acp_sessions = acp_sessions_slot.fill(&context.ports, acp_sessions);
        let health = health_slot.fill(&context.ports, HealthSurface::new(probe));
        let directory = directory_slot.fill(&context.ports, Directory::new(acp, context.live.sessions.clone()));
        // ControlPlane reads the agents from Config, Leases ask ControlPlane which install this is.
        let tree: Vec<Stage> = vec![
            vec![Box::new(config)],
            vec![Box::new(control_plane), Box::new(sessions), Box::new(acp_sessions)],
            vec![Box::new(leases)],
            vec![Box::new(health)],
        ];
        Built { log, tree, live: vec![vec![Box::new(directory)]], handles }
    }

    /// A stop of the daemon ends all adapters. Those of sessions have ended with them; what else runs under a lease, or was
    /// kept, is tried now.
    async fn settle(&self, handles: &Handles) {
        match handles.leases.close_all().await {
            Ok(0) => {}
            Ok(kept) => tracing::warn!(kept, "some leases stay open; the next start looks after them"),
            // A surface that is down has said so.
            Err(error) => tracing::debug!(%error, "the leases could not be closed"),
        }
    }

    async fn configure_upper(&self, handles: &Handles, config: &ConfigSnapshot) {
        let config = section_or_default::<LogsConfig>(config);
        let applied = handles.log.call(CONFIGURE_LIMIT, |reply| LogMessage::Configure { config, reply }).await;
        let problem = match applied {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%problem, "the log keeps its former configuration");
    }
}

/// Leases learn from ControlPlane which install this is.
fn instance_source(control_plane: ControlPlaneHandle) -> InstanceSource {
    Arc::new(move || {
        let control_plane = control_plane.clone();
        Box::pin(async move {
            match control_plane.instance().await {
                Ok(instance) => Ok(instance.instance_id),
                Err(CallError::Down(down)) => {
                    Err(Down { reason: format!("which install this is can't be told: {}", down.reason), ..down })
                }
                Err(error) => Err(Down {
                    kind: ErrorKind::Down,
                    reason: format!("which install this is can't be told: {error}"),
                    remedy: "holdfast reload".to_owned(),
                }),
            }
        })
    })
}

/// Returns a section for a surface that must run whatever the file says. The snapshot keeps what is wrong with it, for
/// status and the doctor.
fn section_or_default<T: ConfigSection>(config: &ConfigSnapshot) -> T {
    config.section::<T>().unwrap_or_else(|error| {
        tracing::warn!(%error, section = T::NAME, "the section can't be used; its defaults apply");
        T::default()
    })
}

fn observations(control: &RootControl) -> Observations {
    let view = control.view();
    let phase = match view.phase {
        Phase::Starting => ServingPhase::Starting,
        Phase::Running | Phase::Reloading => ServingPhase::Serving,
        Phase::Stopping | Phase::Stopped => ServingPhase::Stopping,
    };
    Observations {
        phase,
        generation: view.generation,
        surfaces: view.surfaces,
        listeners: view.listeners.into_iter().map(listener_health).collect(),
    }
}

fn listener_health(status: ListenerStatus) -> ListenerHealth {
    let state = match (&status.failed, &status.address) {
        (Some(_), _) => "failed",
        (None, Some(_)) => "listening",
        (None, None) => "off",
    };
    ListenerHealth {
        name: status.name.to_owned(),
        state: state.to_owned(),
        address: status.address,
        reason: status.failed,
    }
}
