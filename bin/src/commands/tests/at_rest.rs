//! Commands that only read, on the files of an install root whose daemon does not run.

use std::path::Path;
use std::sync::Arc;

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId, TurnId};
use holdfast_protocol::methods::session::SessionScope;
use holdfast_stores::acp_sessions::{
    AcpSessionStatus, AcpSessionsStore, NewAcpSession, RowChange, SessionChange, TurnBegin,
};
use holdfast_stores::config::{InitMode, init};
use holdfast_stores::kit::OpenContext;
use holdfast_stores::leases::{LeaseChange, LeasesStore, NewLease};
use holdfast_stores::sessions::{NewSession, SessionsStore};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;

const CONTEXT: OpenContext<'static> = OpenContext { app_version: "0.0.0-test", now_ms: 1_796_000_000_000 };

/// Makes a root with one chat session and one ACP session whose turn was running when the daemon ended.
async fn root_at_rest(directory: &Path) {
    let root = InstallRoot::at(directory);
    root.prepare().unwrap();
    init(&root, InitMode::Missing).unwrap();
    let (mut chat, _) = SessionsStore::open(&root.data_dir(), CONTEXT).await.unwrap();
    let session = NewSession {
        session_id: SessionId(Uuid::from_u128(0x0199_a3c2_0000_7000_8000_0000_0000_0071)),
        agent_id: "claude".parse().unwrap(),
        session_key: Some("ci".to_owned()),
        scope: SessionScope::Main,
        display_name: None,
        request: None,
    };
    chat.session_insert(&[session], 1_796_068_680_000).await.answers.remove(0).unwrap().unwrap();
    chat.close().await.unwrap();

    let (mut acp, _) = AcpSessionsStore::open(&root.data_dir(), CONTEXT).await.unwrap();
    let session = NewAcpSession {
        session_id: SessionId(Uuid::from_u128(0x0199_a3c2_0000_7000_8000_0000_0000_00c2)),
        agent_id: "demo".parse().unwrap(),
        session_key: None,
        cwd: "/tmp".to_owned(),
        new_params: "{}".to_owned(),
        owner_session_key: None,
        instance_id: InstanceId(Uuid::nil()),
        boot_id: "boot-1".to_owned(),
        created_at_ms: 1_796_068_680_000,
    };
    let row = acp.session_create(&[session]).await.answers.remove(0).unwrap().unwrap();
    let begin = TurnBegin {
        number: 1,
        turn_id: TurnId(Uuid::from_u128(1)),
        prompt: "{}".to_owned(),
        boot_id: "boot-1".to_owned(),
        first_seq: 1,
    };
    let change = SessionChange {
        row_id: row.row_id,
        updates: Vec::new(),
        begin: Some(begin),
        end: None,
        row: RowChange {
            title: Some("hello".to_owned()),
            status: Some(AcpSessionStatus::Active),
            ..RowChange::default()
        },
        at_ms: 1_796_068_740_000,
    };
    acp.change_record(&[Arc::new(change)]).await.answers.remove(0).unwrap();
    acp.close().await.unwrap();

    let (mut leases, _) = LeasesStore::open(&root.data_dir(), CONTEXT).await.unwrap();
    let lease = NewLease {
        lease_id: LeaseId(Uuid::from_u128(0x0199_a3c2_0000_7000_8000_0000_0000_00c2)),
        instance_id: InstanceId(Uuid::nil()),
        session_id: None,
        agent: "demo".to_owned(),
        wrapper_root: directory.to_owned(),
        wrapper_path: "/usr/bin/holdfast".into(),
        command_hash: [7; 32],
        boot_id: "boot-1".to_owned(),
        cgroup_path: None,
    };
    leases.lease_change(&[LeaseChange::Insert(lease)], 1_796_068_680_000).await.answers.remove(0).unwrap().unwrap();
    leases.close().await.unwrap();
}

fn made() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(root_at_rest(directory.path()));
    directory
}

/// The names and bytes of all files below `data/`.
fn lies_there(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut files, mut left) = (Vec::new(), vec![directory.join("data")]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { files.push((path.clone(), std::fs::read(&path).unwrap())) }
        }
    }
    files.sort();
    files
}

#[test]
fn both_kinds_are_listed_from_the_files_and_a_cut_turn_is_not_running() {
    let directory = made();
    let before = lies_there(directory.path());
    assert_eq!(
        typed(&["session", "list"], directory.path().to_owned()),
        "\
session    agent   kind  title  turns  updated    state
0199a3…c2  demo    acp   hello      1  1 min ago  interrupted
0199a3…71  claude  chat  ci         0  2 min ago  active
--- stderr
the daemon is not running; read from its files
--- exit 0
"
    );
    let text = typed(&["session", "list", "--limit", "1", "--format", "tsv"], directory.path().to_owned());
    assert!(text.starts_with("session\tagent\tkind\t") && text.contains("\tdemo\tacp\thello\t1\t"), "{text}");
    let text = typed(&["session", "show", "ci"], directory.path().to_owned());
    assert!(text.contains("\nkind        chat\n"), "{text}");
    let text = typed(&["session", "show", "0199a3…c2"], directory.path().to_owned());
    assert!(text.contains("reason      the daemon ended in the middle of the turn\n"), "{text}");
    let text = typed(&["session", "events", "ci"], directory.path().to_owned());
    assert!(text.contains("no events there\n--- exit 0"), "{text}");
    let text = typed(&["agent", "list"], directory.path().to_owned());
    assert!(text.contains("demo   ready"), "{text}");
    let text = typed(&["lease", "list"], directory.path().to_owned());
    assert!(text.contains("0199a3…c2  demo   –          –  2 min ago  starting\n"), "{text}");
    let text = typed(&["lease", "show", "0199a3…c2"], directory.path().to_owned());
    assert!(text.contains("wrapper          /usr/bin/holdfast\n"), "{text}");
    let text = typed(&["lease", "reap"], directory.path().to_owned());
    assert!(text.starts_with("--- stderr\nerror: no daemon answers at ROOT\n"), "{text}");
    let text = typed(&["rpc", "session/list", r#"{"kind":"chat"}"#], directory.path().to_owned());
    assert!(text.starts_with("{\"sessions\":[{\"session_id\":\"0199a3c2-0000-7000-8000-000000000071\""), "{text}");
    let text = typed(&["rpc", "session/close", r#"{"session_id":"x"}"#], directory.path().to_owned());
    assert!(text.starts_with("--- stderr\nerror: no daemon answers at ROOT\n"), "{text}");
    assert_eq!(lies_there(directory.path()), before, "a command that only reads changed something");
}

#[test]
fn status_without_a_daemon_shows_the_stores_and_which_one_is_damaged() {
    let directory = made();
    let file = directory.path().join("data/sessions/sessions.db");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2 - 7]).unwrap();
    let text = typed(&["status"], directory.path().to_owned());
    assert!(text.starts_with("holdfast 0.1.0 · not running · ROOT\nsurface        state    gen"), "{text}");
    assert!(text.contains("\nacp-sessions   stopped    –") && text.contains("\nsessions       down       –"), "{text}");
    assert!(text.contains("\nsessions → the damaged file is kept as it is") && text.contains("\n1 agent\n"), "{text}");
    assert!(text.ends_with("--- exit 6\n"), "{text}");
    let text = typed(&["session", "list"], directory.path().to_owned());
    assert!(text.contains("is damaged: it was cut") && text.ends_with("--- exit 7\n"), "{text}");
    let text = typed(&["agent", "list"], directory.path().to_owned());
    assert!(text.ends_with("--- exit 0\n"), "{text}");
}

#[test]
fn a_root_that_is_not_there_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("none");
    let text = typed(&["session", "list"], root.clone());
    assert!(text.contains("the daemon is not running, and there is no ROOT yet\nno sessions yet;"), "{text}");
    let text = typed(&["status"], root.clone());
    assert!(text.starts_with("holdfast 0.1.0 · not running · ROOT\nthere is nothing there yet\n"), "{text}");
    assert!(!root.exists());
}
