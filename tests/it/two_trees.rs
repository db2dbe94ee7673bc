//! Two complete trees in one process share nothing, also while both are reloaded under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_actors::root::SurfaceOutcome;
use holdfast_actors::tree::Handles;
use holdfast_stores::config::AgentsConfig;
use holdfast_tests::tree::TestTree;
use tokio::task::JoinSet;

const RELOADS: u64 = 20;
const CALLERS: usize = 32;

/// Calls surfaces of a tree until told to stop; every call has to be answered.
async fn call(handles: Handles, over: Arc<AtomicBool>, answered: Arc<AtomicU64>) {
    let instance = handles.control_plane.instance().await.unwrap().instance_id;
    while !over.load(Ordering::Relaxed) {
        assert_eq!(handles.control_plane.instance().await.unwrap().instance_id, instance);
        handles.control_plane.agent_started("demo".parse().unwrap()).await.unwrap();
        assert_eq!(handles.config.section::<AgentsConfig>().await.unwrap().0.len(), 1);
        answered.fetch_add(3, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_trees_are_reloaded_under_load_and_lose_nothing() {
    let trees = [TestTree::start(1).await, TestTree::start(2).await];
    let over = Arc::new(AtomicBool::new(false));
    let answered = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let mut callers = JoinSet::new();
    for (tree, answered) in trees.iter().zip(&answered) {
        assert_eq!(tree.down(), Vec::<&str>::new());
        for _ in 0..CALLERS {
            callers.spawn(call(tree.handles().clone(), Arc::clone(&over), Arc::clone(answered)));
        }
    }
    let reload = async |tree: &TestTree| {
        for round in 0..RELOADS {
            let report = tree.root.reload().await.unwrap();
            assert_eq!(report.generation, round + 2);
            for surface in report.surfaces {
                let expected = match surface.name {
                    // What lives above the tree.
                    "log" | "acp-directory" => SurfaceOutcome::Unchanged,
                    _ => SurfaceOutcome::Restarted,
                };
                assert_eq!(surface.outcome, expected, "{}", surface.name);
            }
        }
    };
    tokio::join!(reload(&trees[0]), reload(&trees[1]));
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let instance = async |tree: &TestTree| tree.handles().control_plane.instance().await.unwrap().instance_id;
    assert_ne!(instance(&trees[0]).await, instance(&trees[1]).await);
    assert!(answered.iter().all(|answered| answered.load(Ordering::Relaxed) > 0));
    let [first, second] = trees;
    first.stop().await;
    // The other goes on.
    second.root.reload().await.unwrap();
    instance(&second).await;
    let second = second.restart().await;
    assert_eq!(second.down(), Vec::<&str>::new());
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_file_leaves_the_tree_as_it_was() {
    let tree = TestTree::start(3).await;
    let before = tree.root.control().view();
    tree.write_config("[logs]\nlevel = 3\n");
    let error = tree.root.reload().await.unwrap_err();
    assert!(error.to_string().contains("config.toml line 2"), "{error}");
    let after = tree.root.control().view();
    assert_eq!((after.generation, after.config_revision), (before.generation, before.config_revision));
    assert_eq!(tree.handles().config.agents().await.unwrap().0.len(), 1);
    tree.write_config("[logs]\nlevel = \"debug\"\n");
    let report = tree.root.reload().await.unwrap();
    assert_eq!(report.generation, 2);
    assert!(tree.handles().config.agents().await.unwrap().0.is_empty());
    tree.stop().await;
}
