//! ControlPlane in a supervisor beside Config, with real files.

use std::fs;
use std::sync::Arc;

use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::config::{
    AgentsConfig, ConfigSnapshot, ConfigSource, Overrides, SectionDescriptor, SectionRegistry,
};
use holdfast_stores::control_plane::AgentInitialize;
use holdfast_stores::install_root::InstallRoot;
use tokio::sync::watch;

use super::*;
use crate::address::CallError;
use crate::config::ConfigSurface;
use crate::ports::Ports;
use crate::supervisor::{Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};

struct Rig {
    supervisor: Supervisor,
    control_plane: ControlPlaneHandle,
    cell: watch::Sender<ConfigSnapshot>,
    source: ConfigSource,
}

impl Rig {
    async fn start(root: &InstallRoot) -> Self {
        let registry = Arc::new(SectionRegistry::new([SectionDescriptor::of::<AgentsConfig>()]).unwrap());
        let source = ConfigSource::new(root, registry, Overrides::default());
        let cell = watch::Sender::new(source.load_for_start().unwrap());
        let ports = Ports::system();
        let config = ConfigSurface::new(cell.subscribe(), source.clone());
        let (config, config_address) = child("config", Limits::default(), &ports, config);
        let (config_handle, shown) = (ConfigHandle::new(config_address), Shown::default());
        let surface = ControlPlaneSurface::new(root.data_dir(), "0.0.0-test", config_handle, shown.clone());
        let (surface, address) = child("control-plane", Limits::default(), &ports, surface);
        let stages: Vec<Stage> = vec![vec![Box::new(config)], vec![Box::new(surface)]];
        let spec =
            SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, _) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, control_plane: ControlPlaneHandle::new(address, shown), cell, source }
    }

    async fn reload(&self, generation: u64) {
        self.cell.send_replace(self.source.load_for_start().unwrap());
        self.supervisor.reload(generation).await.unwrap();
    }

    async fn agents(&self) -> Vec<(String, bool)> {
        let rows = self.control_plane.agent_list().await.unwrap();
        rows.into_iter().map(|row| (row.alias.to_string(), row.configured)).collect()
    }
}

fn root(text: &str) -> (tempfile::TempDir, InstallRoot) {
    let home = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(home.path().join("root"));
    root.prepare().unwrap();
    fs::write(root.config_file(), text).unwrap();
    (home, root)
}

#[tokio::test]
async fn the_instance_outlives_reloads_and_restarts() {
    let (_home, root) = root("");
    let rig = Rig::start(&root).await;
    let instance = rig.control_plane.instance().await.unwrap();
    assert_eq!(instance.instance_id.0.get_version_num(), 7);
    rig.reload(2).await;
    assert_eq!(rig.control_plane.instance().await.unwrap(), instance);
    rig.supervisor.stop().await;
    let rig = Rig::start(&root).await;
    assert_eq!(rig.control_plane.instance().await.unwrap(), instance);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn two_installs_have_two_instances() {
    let ((_home, one), (_other_home, other)) = (root(""), root(""));
    let (one, other) = (Rig::start(&one).await, Rig::start(&other).await);
    assert_ne!(one.control_plane.instance().await.unwrap(), other.control_plane.instance().await.unwrap());
    one.supervisor.stop().await;
    other.supervisor.stop().await;
}

#[tokio::test]
async fn the_registry_follows_the_configuration_but_not_a_broken_one() {
    let (_home, root) = root("[agents.a]\nbuiltin = 'demo'\n[agents.b]\ncommand = 'b'\n");
    let rig = Rig::start(&root).await;
    let (a, b): (AgentAlias, AgentAlias) = ("a".parse().unwrap(), "b".parse().unwrap());
    rig.control_plane.agent_started(a.clone()).await.unwrap();
    let unknown = rig.control_plane.agent_started("c".parse().unwrap()).await.unwrap_err();
    assert!(matches!(unknown, ControlPlaneError::UnknownAgent(_)), "{unknown}");
    let rows = rig.control_plane.agent_list().await.unwrap();
    assert_eq!(
        rows.iter().map(|row| (&row.alias, row.last_started_at_ms.is_some())).collect::<Vec<_>>(),
        [(&a, true), (&b, false)]
    );
    let answer = AgentInitialize {
        launch_hash: rows[0].launch_hash.clone(),
        agent_version: None,
        result_json: "{}".to_owned(),
        recorded_at_ms: 5,
    };
    rig.control_plane.initialize_put(answer.clone()).await.unwrap();

    fs::write(root.config_file(), "agents = 5\n").unwrap();
    rig.reload(2).await;
    assert_eq!(rig.agents().await, [("a".to_owned(), true), ("b".to_owned(), true)]);
    assert_eq!(rig.control_plane.initialize_get(&answer.launch_hash).await.unwrap(), Some(answer));

    fs::write(root.config_file(), "[agents.a]\nbuiltin = 'demo'\n").unwrap();
    rig.reload(3).await;
    assert_eq!(rig.agents().await, [("a".to_owned(), true), ("b".to_owned(), false)]);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_file_that_is_no_database_downs_the_surface_and_is_left_alone() {
    let (_home, root) = root("");
    fs::write(root.control_plane_database(), "this is no database, and it is precious to somebody").unwrap();
    let rig = Rig::start(&root).await;
    let Err(CallError::Down(down)) = rig.control_plane.instance().await else { panic!("not down") };
    assert_eq!(down.kind, ErrorKind::Damaged, "{down:?}");
    assert!(down.reason.contains("control_plane.db"), "{}", down.reason);
    assert!(fs::read_to_string(root.control_plane_database()).unwrap().starts_with("this is no database"));
    rig.supervisor.stop().await;
}
