//! Config in a supervisor, with a real file.

use std::fs;
use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_stores::config::{
    AgentsConfig, Overrides, PermissionsConfig, Revision, SectionDescriptor, SectionRegistry, UnattendedPolicy,
};
use holdfast_stores::install_root::InstallRoot;

use super::*;
use crate::ports::Ports;
use crate::supervisor::{Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};

struct Rig {
    supervisor: Supervisor,
    config: ConfigHandle,
    cell: watch::Sender<ConfigSnapshot>,
    source: ConfigSource,
    root: InstallRoot,
    // Last, so that the files go after the actor.
    _home: tempfile::TempDir,
}

impl Rig {
    async fn start(text: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = InstallRoot::at(home.path().join("root"));
        root.prepare().unwrap();
        fs::write(root.config_file(), text).unwrap();
        let sections = [SectionDescriptor::of::<AgentsConfig>(), SectionDescriptor::of::<PermissionsConfig>()];
        let registry = Arc::new(SectionRegistry::new(sections).unwrap());
        let source = ConfigSource::new(&root, registry, Overrides::default());
        let cell = watch::Sender::new(source.load_for_start().unwrap());
        let surface = ConfigSurface::new(cell.subscribe(), source.clone());
        let (one, address) = child("config", Limits::default(), &Ports::system(), surface);
        let stages: Vec<Stage> = vec![vec![Box::new(one)]];
        let spec =
            SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, _) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, config: ConfigHandle::new(address), cell, source, root, _home: home }
    }

    fn write(&self, text: &str) {
        fs::write(self.root.config_file(), text).unwrap();
    }
}

#[tokio::test]
async fn what_was_validated_is_what_applies_whatever_became_of_the_file() {
    let rig = Rig::start("[permissions]\nunattended = 'wait'\n").await;
    let unattended = || async { rig.config.section::<PermissionsConfig>().await.unwrap().unattended };
    assert_eq!(unattended().await, UnattendedPolicy::Wait);

    rig.write("[permissions]\nunattended = 'deny'\n");
    let candidate = rig.source.load_for_reload().unwrap();
    rig.write("broken = = 1\n");
    assert_eq!(unattended().await, UnattendedPolicy::Wait);
    rig.cell.send_replace(candidate.clone());
    let outcomes = rig.supervisor.reload(2).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.down.is_none()));
    assert_eq!(unattended().await, UnattendedPolicy::Deny);
    let status = rig.config.status().await.unwrap();
    assert_eq!((status.applied, status.generation), (candidate.revision(), 2));
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn status_tells_saved_from_applied() {
    let rig = Rig::start("unknown = 1\n").await;
    let status = rig.config.status().await.unwrap();
    assert!(!status.reload_pending());
    assert_eq!(status.saved, Ok(Revision::of(b"unknown = 1\n")));
    assert_eq!(status.warnings.first().map(|warning| warning.path.to_string()), Some("unknown".to_owned()));
    rig.write("");
    let status = rig.config.status().await.unwrap();
    assert!(status.reload_pending());
    assert_eq!(status.applied, Revision::of(b"unknown = 1\n"));
    fs::remove_file(rig.root.config_file()).unwrap();
    let status = rig.config.status().await.unwrap();
    assert!(status.saved.unwrap_err().contains("does not exist"));
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_section_that_is_wrong_downs_who_asks_for_it_and_no_other() {
    let rig = Rig::start("agents = 5\n[permissions]\nunattended = 'wait'\n").await;
    let error = rig.config.agents().await.unwrap_err();
    let down = Down::from(error.clone());
    assert_eq!(down.kind, ErrorKind::ConfigInvalid);
    assert_eq!(down.reason, "config.toml line 1, column 10: `agents`: expected a table, found integer `5`");
    assert!(down.remedy.contains("line 1"), "{}", down.remedy);
    assert_eq!(WireError::from(error).path.as_deref(), Some("agents"));
    assert_eq!(rig.config.section::<PermissionsConfig>().await.unwrap().unattended, UnattendedPolicy::Wait);
    assert_eq!(rig.config.status().await.unwrap().problems.len(), 1);
    rig.supervisor.stop().await;
}
