//! A whole tree in this process, in a temporary directory, with a clock and ids that the test decides.

use std::fs;
use std::sync::Arc;

use holdfast_actors::log::LogRouter;
use holdfast_actors::root::{Root, RootHandle, RootSpec, SurfaceOutcome};
use holdfast_actors::tree::{Handles, HoldfastTree, Processes, config_registry};
use holdfast_stores::config::{ConfigSource, InitMode, Overrides, init};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::instance_lock::InstanceLock;
use tempfile::TempDir;

use crate::daemon::{executable, short_directory};
use crate::ports::{FakeClock, fake_ports};

/// A running tree.
pub struct TestTree {
    /// The root of the tree.
    pub root: RootHandle<HoldfastTree>,
    /// Its clock.
    pub clock: Arc<FakeClock>,
    /// Its directory.
    pub install_root: InstallRoot,
    seed: u64,
    directory: TempDir,
}

impl TestTree {
    /// Starts a tree in a fresh root. Trees of different seeds make different ids.
    pub async fn start(seed: u64) -> Self {
        let directory = short_directory();
        let install_root = InstallRoot::at(directory.path().join("r"));
        init(&install_root, InitMode::New).unwrap();
        Self::start_in(directory, install_root, seed).await
    }

    async fn start_in(directory: TempDir, install_root: InstallRoot, seed: u64) -> Self {
        let (ports, clock) = fake_ports(seed);
        let source = ConfigSource::new(&install_root, config_registry([]).unwrap(), Overrides::default());
        // A router of its own, which no subscriber feeds: what runs in this process is not one daemon.
        let router = LogRouter::new();
        let tree = router.new_tree();
        let lock = InstanceLock::acquire(&install_root, crate::ports::START_MS, "test").unwrap();
        let builder = HoldfastTree {
            root: install_root.clone(),
            source,
            router,
            tree,
            version: env!("CARGO_PKG_VERSION"),
            processes: Processes { wrapper_path: executable(), spawner: None, adopter: None },
            warnings: Vec::new(),
        };
        let root = Root::start(RootSpec::without_listeners(lock, ports, builder)).await.unwrap();
        Self { root, clock, install_root, seed, directory }
    }

    /// Returns the handles of its surfaces.
    pub fn handles(&self) -> &Handles {
        self.root.handles()
    }

    /// Returns the surfaces that could not start.
    pub fn down(&self) -> Vec<&'static str> {
        let failed = |outcome: &SurfaceOutcome| matches!(outcome, SurfaceOutcome::Failed(_));
        self.root.started().iter().filter(|one| failed(&one.outcome)).map(|one| one.name).collect()
    }

    /// Replaces `config.toml`.
    pub fn write_config(&self, text: &str) {
        fs::write(self.install_root.config_file(), text).unwrap();
    }

    /// Ends it in order and starts it again in the same root. Its ids go on from another seed, so none repeats.
    pub async fn restart(self) -> Self {
        self.root.shutdown();
        self.root.wait().await.unwrap();
        let Self { root, install_root, seed, directory, .. } = self;
        drop(root);
        Self::start_in(directory, install_root, seed.wrapping_add(1 << 32)).await
    }

    /// Ends it in order. A test that does not leaves the actors to the end of its runtime.
    pub async fn stop(self) {
        self.root.shutdown();
        self.root.wait().await.unwrap();
    }
}
