//! The tree of a Holdfast daemon: which surfaces there are, in what order they start, and how they hold each other.

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::health::{HealthWarning, ListenerHealth};
use holdfast_stores::config::{
    AgentsConfig, ConfigError, ConfigSection, ConfigSnapshot, ConfigSource, DuplicateSection, PermissionsConfig,
    SectionDescriptor, SectionRegistry,
};
use holdfast_stores::install_root::InstallRoot;

use crate::address::{Address, CallError, Down};
use crate::config::{ConfigHandle, ConfigSurface};
use crate::control_plane::{ControlPlaneHandle, ControlPlaneSurface};
use crate::health::{HealthMessage, HealthProbe, HealthSurface, Observations, ServingPhase};
use crate::leases::{Adopter, InstanceSource, LeasesConfig, LeasesHandle, LeasesPlace, LeasesSurface, Spawner};
use crate::log::{LogMessage, LogRouter, LogSurface, LogsConfig, TreeId};
use crate::process::ProcTable;
use crate::root::{BuildContext, Built, ListenerStatus, LoadPurpose, Phase, RootControl, TreeBuilder};
use crate::sessions::{SessionsHandle, SessionsSurface};
use crate::supervisor::{Child, Limits, Slot};

/// How long the Log may take to apply a changed section.
const CONFIGURE_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

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
    /// How processes are started and adopted.
    pub processes: Processes,
    /// What health says for the life of the process.
    pub warnings: Vec<HealthWarning>,
}

/// How a tree starts processes, and what becomes of orphans. They belong to the operating system's process, not to a tree.
#[derive(Clone)]
pub struct Processes {
    /// The program that has the wrapper as a subcommand; see [`Spawner::wrapper_path`].
    pub wrapper_path: PathBuf,
    /// Who starts wrappers; without one no adapter can be started.
    pub spawner: Option<Spawner>,
    /// Who adopts the orphans of a killed wrapper; without one they are reported and left alone.
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
    /// Leases.
    pub leases: LeasesHandle,
    /// Sessions.
    pub sessions: SessionsHandle,
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
        let leases_slot = Slot::new("leases", Limits::default());
        let sessions_slot = Slot::new("sessions", Limits::default());
        let health_slot = Slot::new("health", Limits::default());
        let probe = HealthProbe::new(self.version, Arc::clone(&context.ports.clock), self.warnings.clone(), {
            let control = context.control.clone();
            move || observations(&control)
        });
        let handles = Handles {
            log: log_slot.address(),
            config: ConfigHandle::new(config_slot.address()),
            control_plane: ControlPlaneHandle::new(control_plane_slot.address()),
            leases: LeasesHandle::new(leases_slot.address()),
            sessions: SessionsHandle::new(sessions_slot.address()),
            health: health_slot.address(),
            probe: probe.clone(),
        };

        let log = LogSurface::new(self.root.state_dir(), self.router.clone(), self.tree, logs);
        let log: Vec<Box<dyn Child>> = vec![Box::new(log_slot.fill(&context.ports, log))];
        let config = config_slot.fill(&context.ports, ConfigSurface::new(context.config.clone(), self.source.clone()));
        let control_plane = ControlPlaneSurface::new(self.root.data_dir(), self.version, handles.config.clone());
        let control_plane = control_plane_slot.fill(&context.ports, control_plane);
        let leases = self.leases(context, &handles.control_plane);
        let leases = leases_slot.fill(&context.ports, leases);
        let sessions = SessionsSurface::new(self.root.data_dir(), self.version);
        let sessions = sessions_slot.fill(&context.ports, sessions);
        let health = health_slot.fill(&context.ports, HealthSurface::new(probe));
        let tree: Vec<Box<dyn Child>> =
            vec![Box::new(config), Box::new(control_plane), Box::new(leases), Box::new(sessions), Box::new(health)];
        Built { log, tree, live: Vec::new(), handles }
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

impl HoldfastTree {
    fn leases(&self, context: &BuildContext<ConfigSnapshot>, control_plane: &ControlPlaneHandle) -> LeasesSurface {
        let place = LeasesPlace {
            install_root: self.root.path().to_owned(),
            wrapper_path: self.processes.wrapper_path.clone(),
            run_started_at_ms: context.ports.clock.now_ms(),
            spawner: self.processes.spawner.clone(),
        };
        let control_plane = control_plane.clone();
        let instance: InstanceSource = Arc::new(move || {
            let control_plane = control_plane.clone();
            Box::pin(
                async move { control_plane.instance().await.map(|instance| instance.instance_id).map_err(no_instance) },
            )
        });
        let adopter = self.processes.adopter.clone();
        let config = context.config.clone();
        LeasesSurface::new(self.root.data_dir(), place, instance, Arc::new(ProcTable), adopter, config, self.version)
    }
}

/// Without an identity no process can be told to be ours, so nothing may be started or signalled.
fn no_instance(error: CallError) -> Down {
    let remedy = match &error {
        CallError::Down(down) => down.remedy.clone(),
        _ => "holdfast reload".to_owned(),
    };
    let kind = match &error {
        CallError::Down(down) => down.kind,
        _ => ErrorKind::Down,
    };
    Down { kind, reason: format!("ControlPlane does not say which install this is: {error}"), remedy }
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
