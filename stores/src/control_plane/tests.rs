use holdfast_protocol::ids::InstanceId;
use uuid::Uuid;

use super::*;
use crate::kit::{ConstraintKind, OpenContext};

const CONTEXT: OpenContext<'static> = OpenContext { app_version: "0.0.0-test", now_ms: 1_000 };

async fn open(directory: &Path) -> ControlPlaneStore {
    ControlPlaneStore::open(directory, CONTEXT).await.unwrap().0
}

fn agent(alias: &str, hash: char) -> ConfiguredAgent {
    ConfiguredAgent { alias: alias.parse().unwrap(), launch_hash: hash.to_string().repeat(64) }
}

async fn listed(store: &ControlPlaneStore) -> Vec<(String, bool, char, i64, Option<i64>)> {
    let mut reader = store.readers().reader().await.unwrap();
    let rows = agent_list(&mut reader).await.unwrap();
    rows.into_iter()
        .map(|row| {
            let hash = row.launch_hash.chars().next().unwrap();
            (row.alias.to_string(), row.configured, hash, row.first_seen_at_ms, row.last_started_at_ms)
        })
        .collect()
}

#[tokio::test]
async fn the_instance_is_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (InstanceId(Uuid::from_u128(1)), InstanceId(Uuid::from_u128(2)));
    let mut store = open(directory.path()).await;
    let made = store.instance_ensure(first, 5).await.unwrap();
    assert_eq!(made, Instance { instance_id: first, created_at_ms: 5 });
    assert_eq!(store.instance_ensure(second, 6).await.unwrap(), made);
    store.close().await.unwrap();
    let mut store = open(directory.path()).await;
    assert_eq!(store.instance_ensure(second, 7).await.unwrap(), made);
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_registry_follows_the_configuration_and_forgets_no_agent() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    store.agents_follow(vec![agent("a", '1'), agent("b", '2')], 10).await.unwrap();
    assert!(store.agent_started(&"a".parse().unwrap(), 15).await.unwrap());
    assert!(!store.agent_started(&"nobody".parse().unwrap(), 15).await.unwrap());
    store.agents_follow(vec![agent("a", '3')], 20).await.unwrap();
    store.agents_follow(vec![agent("a", '3')], 30).await.unwrap();
    let b = ("b".to_owned(), false, '2', 10, None);
    assert_eq!(listed(&store).await, [("a".to_owned(), true, '3', 10, Some(15)), b.clone()]);
    store.agents_follow(vec![], 40).await.unwrap();
    assert_eq!(listed(&store).await, [("a".to_owned(), false, '3', 10, Some(15)), b]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_start_that_changes_nothing_writes_nothing() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let start = async |now_ms| {
        let mut store = open(directory.path()).await;
        let instance = store.instance_ensure(InstanceId(Uuid::from_u128(1)), now_ms).await.unwrap();
        store.agents_follow(vec![agent("a", '1'), agent("b", '2')], now_ms).await.unwrap();
        store.close().await.unwrap();
        instance
    };
    // A replaced marker would be another file.
    let files = || {
        let files = ["control_plane.db", "control_plane.db.marker"];
        files.map(|name| {
            std::fs::metadata(directory.path().join(name)).map(|file| (file.ino(), file.mtime_nsec())).unwrap()
        })
    };
    let first = start(5).await;
    let before = files();
    assert_eq!(start(6).await, first);
    assert_eq!(files(), before);
}

#[tokio::test]
async fn what_an_agent_can_do_is_kept_as_long_as_its_launch_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    let answer = |hash: char, version: &str, at| AgentInitialize {
        launch_hash: hash.to_string().repeat(64),
        agent_version: Some(version.to_owned()),
        result_json: format!(r#"{{"agentInfo":{{"version":"{version}"}}}}"#),
        recorded_at_ms: at,
    };
    store.agents_follow(vec![agent("a", '1')], 10).await.unwrap();
    for answer in [answer('1', "1.0", 11), answer('1', "1.1", 12)] {
        store.agent_initialize_put(&answer).await.unwrap();
    }
    let readers = store.readers().clone();
    let get = async |hash: char| {
        let mut reader = readers.reader().await.unwrap();
        agent_initialize_get(&mut reader, &hash.to_string().repeat(64)).await.unwrap()
    };
    assert_eq!(get('1').await, Some(answer('1', "1.1", 12)));
    assert_eq!(get('2').await, None);
    store.agents_follow(vec![agent("a", '2')], 20).await.unwrap();
    assert_eq!(get('1').await, None);
    store.close().await.unwrap();
}

#[tokio::test]
async fn many_agents_are_registered_at_once_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let agents: Vec<ConfiguredAgent> = (0..300).map(|index| agent(&format!("agent-{index:03}"), '1')).collect();
    let mut store = open(directory.path()).await;
    store.agents_follow(agents, 10).await.unwrap();
    let rows = listed(&store).await;
    assert_eq!(rows.len(), 300);
    assert!(rows.iter().all(|row| row.1 && row.3 == 10));
    let bad = ConfiguredAgent { launch_hash: "short".to_owned(), ..agent("b", '1') };
    let error = store.agents_follow(vec![agent("c", '1'), bad], 10).await.unwrap_err();
    assert!(matches!(error, StoreError::Constraint { kind: ConstraintKind::Check, .. }), "{error}");
    assert_eq!(listed(&store).await, rows);
    store.close().await.unwrap();
}
