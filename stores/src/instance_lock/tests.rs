use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

use super::*;

const NOW_MS: i64 = 1_795_000_000_000;

/// Names the root for the helper process.
const CHILD_ROOT: &str = "HOLDFAST_TEST_LOCK_ROOT";

fn root() -> (tempfile::TempDir, InstallRoot) {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("root"));
    root.prepare().unwrap();
    (directory, root)
}

/// Not a test of its own: the body of the helper process that [`holding_process`] starts. Holds the lock until killed.
#[test]
fn helper_process_that_holds_the_lock() {
    let Some(path) = std::env::var_os(CHILD_ROOT) else { return };
    let lock = InstanceLock::acquire(&InstallRoot::at(path), NOW_MS, "9.9.9").unwrap();
    println!("locked by {}", lock.record().pid);
    // Ends when its stdin does, so it never outlives the test that started it.
    let _ = io::stdin().read(&mut [0]);
}

fn holding_process(root: &InstallRoot) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "instance_lock::tests::helper_process_that_holds_the_lock", "--nocapture"])
        .env(CHILD_ROOT, root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("locked by")));
    child
}

#[test]
fn of_eight_starters_exactly_one_wins_and_all_losers_name_it() {
    for _ in 0..5 {
        let (_directory, root) = root();
        let gate = Barrier::new(8);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let starters: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        gate.wait();
                        InstanceLock::acquire(&root, NOW_MS, "0.1.0")
                    })
                })
                .collect();
            starters.into_iter().map(|starter| starter.join().unwrap()).collect()
        });
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(winners, 1);
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let text = error.to_string();
            assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
            assert!(text.contains(&root.path().display().to_string()), "{text}");
        }
    }
}

#[test]
fn the_loser_is_told_who_since_when_and_what_to_do() {
    let (_directory, root) = root();
    let mut child = holding_process(&root);
    let error = InstanceLock::acquire(&root, NOW_MS + 1, "0.1.0").unwrap_err();
    let started = local_time(NOW_MS);
    assert_eq!(
        error.to_string(),
        format!("another daemon owns {}: pid {}, started {started}, holdfast 9.9.9", root.path().display(), child.id())
    );
    assert!(started.starts_with("2026-11-1"), "{started}");
    assert!(error.remedy().contains("holdfast stop"));
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert_eq!(owner(&root).unwrap().unwrap().pid(), Some(child.id() as i32));

    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(owner(&root).unwrap(), None);
    InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
}

#[test]
fn no_text_in_the_file_keeps_a_daemon_from_starting() {
    let (_directory, root) = root();
    let mut foreign = OwnerRecord::of_this_process(NOW_MS, "0.1.0").unwrap();
    let this = serde_json::to_string(&foreign).unwrap();
    foreign.pid = 1;
    let texts = [
        String::new(),
        "1\n".to_owned(),
        std::process::id().to_string(),
        "\u{0}garbage".to_owned(),
        "x".repeat(100_000),
        serde_json::to_string(&foreign).unwrap(),
        this,
    ];
    for text in texts {
        fs::write(root.lock_file(), &text).unwrap();
        let lock = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
        let written: OwnerRecord = serde_json::from_slice(&fs::read(root.lock_file()).unwrap()).unwrap();
        assert_eq!(&written, lock.record());
        drop(lock);
    }
}

#[test]
fn an_overwritten_record_hides_no_owner() {
    let (_directory, root) = root();
    let mut child = holding_process(&root);
    fs::write(root.lock_file(), "garbage").unwrap();
    let error = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap_err();
    let LockError::Held { owner: found, .. } = error else { panic!("{error}") };
    assert!(matches!(found, Owner::Process(_) | Owner::Unknown), "{found:?}");
    if let Some(pid) = found.pid() {
        assert_eq!(pid, child.id() as i32);
    }
    assert!(owner(&root).unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn deleting_the_file_lets_no_second_daemon_in() {
    let (_directory, root) = root();
    let lock = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
    fs::remove_file(root.lock_file()).unwrap();
    assert!(matches!(InstanceLock::acquire(&root, NOW_MS, "0.1.0"), Err(LockError::Held { .. })));
    drop(lock);
    InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
}

#[test]
fn a_child_does_not_inherit_the_lock() {
    let (_directory, root) = root();
    let lock = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    drop(lock);
    let again = InstanceLock::acquire(&root, NOW_MS, "0.1.0");
    child.kill().unwrap();
    child.wait().unwrap();
    again.unwrap();
}

#[test]
fn only_a_plain_file_serves_and_what_else_is_there_stays() {
    let (directory, root) = root();
    let target = directory.path().join("target");
    fs::write(&target, "precious").unwrap();
    symlink(&target, root.lock_file()).unwrap();
    assert!(matches!(InstanceLock::acquire(&root, NOW_MS, "0.1.0"), Err(LockError::NotAFile { .. })));
    assert!(matches!(owner(&root), Err(LockError::NotAFile { .. })));
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");

    fs::remove_file(root.lock_file()).unwrap();
    fs::create_dir(root.lock_file()).unwrap();
    assert!(matches!(InstanceLock::acquire(&root, NOW_MS, "0.1.0"), Err(LockError::NotAFile { .. })));
    assert!(matches!(owner(&root), Err(LockError::NotAFile { .. })));

    fs::remove_dir(root.lock_file()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.lock_file(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(InstanceLock::acquire(&root, NOW_MS, "0.1.0"), Err(LockError::NotAFile { .. })));
}

#[test]
fn the_file_is_private_whatever_it_was() {
    let (_directory, root) = root();
    fs::write(root.lock_file(), "").unwrap();
    fs::set_permissions(root.lock_file(), Permissions::from_mode(0o666)).unwrap();
    let _lock = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
    assert_eq!(fs::metadata(root.lock_file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_root_without_a_daemon_has_no_owner() {
    let (directory, root) = root();
    assert_eq!(owner(&root).unwrap(), None);
    assert_eq!(owner(&InstallRoot::at(directory.path().join("nowhere"))).unwrap(), None);
    let lock = InstanceLock::acquire(&root, NOW_MS, "0.1.0").unwrap();
    assert_eq!(owner(&root).unwrap(), Some(Owner::Recorded(lock.record().clone())));
    drop(lock);
    assert_eq!(owner(&root).unwrap(), None);
}
