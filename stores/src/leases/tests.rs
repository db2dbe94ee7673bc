use std::path::Path;

use holdfast_protocol::ids::{InstanceId, LeaseId};
use uuid::Uuid;

use super::*;

const NOW_MS: i64 = 1_800_000_000_000;

fn instance() -> InstanceId {
    InstanceId(Uuid::from_u128(7))
}

fn lease(number: u128) -> LeaseId {
    LeaseId(Uuid::from_u128(number))
}

fn new_lease(lease_id: LeaseId) -> NewLease {
    NewLease {
        lease_id,
        instance_id: instance(),
        session_id: None,
        agent: "claude".to_owned(),
        wrapper_root: "/home/a/.holdfast".into(),
        wrapper_path: "/usr/bin/holdfast".into(),
        command_hash: [3; 32],
        boot_id: "boot".to_owned(),
        cgroup_path: Some("/sys/fs/cgroup/holdfast/a".into()),
    }
}

fn root() -> LeaseRoot {
    LeaseRoot { pid: 4_242, start_ticks: u64::MAX, pidfd_ino: Some(u64::MAX - 1), process_group_id: Some(4_242) }
}

fn to(lease_id: LeaseId, state: LeaseState) -> LeaseChange {
    LeaseChange::Move { lease_id, state, exit: None, error: None }
}

async fn open_store(directory: &Path) -> LeasesStore {
    let context = OpenContext { app_version: "1.2.3", now_ms: NOW_MS };
    LeasesStore::open(directory, context).await.unwrap().0
}

async fn change(store: &mut LeasesStore, change: LeaseChange, now_ms: i64) -> Result<LeaseRecord, Refusal> {
    let mut outcome = store.lease_change(&[change], now_ms).await;
    outcome.answers.remove(0).unwrap()
}

/// Brings a new lease into a state by the shortest legal way.
async fn brought(store: &mut LeasesStore, lease_id: LeaseId, state: LeaseState) {
    change(store, LeaseChange::Insert(new_lease(lease_id)), NOW_MS).await.unwrap();
    let way: &[LeaseState] = match state {
        LeaseState::Starting => &[],
        LeaseState::Open => &[LeaseState::Open],
        LeaseState::Closing => &[LeaseState::Open, LeaseState::Closing],
        LeaseState::Closed => &[LeaseState::Closed],
        LeaseState::Lost => &[LeaseState::Lost],
    };
    for next in way {
        step(store, lease_id, *next).await.unwrap();
    }
}

async fn step(store: &mut LeasesStore, lease_id: LeaseId, next: LeaseState) -> Result<LeaseRecord, Refusal> {
    let request = match next {
        LeaseState::Open => LeaseChange::Open { lease_id, root: root(), in_cgroup: true },
        other => to(lease_id, other),
    };
    change(store, request, NOW_MS + 1).await
}

#[tokio::test]
async fn only_legal_states_follow_each_other() {
    use LeaseState::{Closed, Closing, Lost, Open, Starting};
    let legal = [
        (Starting, Open),
        (Starting, Closed),
        (Starting, Lost),
        (Open, Closing),
        (Open, Closed),
        (Open, Lost),
        (Closing, Closed),
        (Closing, Lost),
    ];
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_store(directory.path()).await;
    let mut number = 0;
    for from in LeaseState::ALL {
        for next in LeaseState::ALL {
            number += 1;
            let lease_id = lease(number);
            brought(&mut store, lease_id, from).await;
            let answer = step(&mut store, lease_id, next).await;
            if legal.contains(&(from, next)) {
                assert_eq!(answer.unwrap().state, next, "{from} to {next}");
            } else {
                assert_eq!(answer, Err(Refusal::IllegalMove { lease_id, from, to: next }));
                let kept = store.reads().lease_show(lease_id).await.unwrap().unwrap();
                assert_eq!(kept.state, from, "a refused change was stored");
            }
        }
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_what_was_recorded_also_after_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_store(directory.path()).await;
    let made = change(&mut store, LeaseChange::Insert(new_lease(lease(1))), NOW_MS).await.unwrap();
    assert_eq!((made.state, made.root, made.started_at_ms), (LeaseState::Starting, None, NOW_MS));
    let opened =
        change(&mut store, LeaseChange::Open { lease_id: lease(1), root: root(), in_cgroup: true }, NOW_MS + 5)
            .await
            .unwrap();
    assert_eq!((opened.root, opened.state_changed_at_ms), (Some(root()), NOW_MS + 5));
    let exit = LeaseExit { exit_code: None, exit_signal: Some(9) };
    let closed = LeaseChange::Move {
        lease_id: lease(1),
        state: LeaseState::Closed,
        exit: Some(exit),
        error: Some("killed".to_owned()),
    };
    let closed = change(&mut store, closed, NOW_MS + 6).await.unwrap();
    assert_eq!((closed.exit, closed.last_error.as_deref()), (exit, Some("killed")));
    store.close().await.unwrap();

    let mut store = open_store(directory.path()).await;
    assert_eq!(store.reads().lease_show(lease(1)).await.unwrap(), Some(closed));
    assert_eq!(store.reads().lease_show(lease(2)).await.unwrap(), None);
    let again = change(&mut store, LeaseChange::Insert(new_lease(lease(1))), NOW_MS).await;
    assert_eq!(again, Err(Refusal::Exists { lease_id: lease(1) }));
    let late = LeaseExit { exit_code: Some(1), exit_signal: None };
    let exited = LeaseChange::Exited { lease_id: lease(1), exit: late };
    assert_eq!(change(&mut store, exited.clone(), NOW_MS).await.unwrap().exit, exit, "what is known stays");
    brought(&mut store, lease(3), LeaseState::Closed).await;
    let exited = LeaseChange::Exited { lease_id: lease(3), exit: late };
    assert_eq!(change(&mut store, exited, NOW_MS).await.unwrap().exit, late);
    let missing = LeaseChange::Note { lease_id: lease(9), error: "x".to_owned() };
    assert_eq!(change(&mut store, missing, NOW_MS).await, Err(Refusal::NotFound { lease_id: lease(9) }));
    store.close().await.unwrap();
}

#[tokio::test]
async fn unfinished_leases_are_those_of_the_install_and_old_ones_expire() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_store(directory.path()).await;
    for (number, state) in LeaseState::ALL.into_iter().enumerate() {
        brought(&mut store, lease(number as u128 + 1), state).await;
    }
    let other = NewLease { instance_id: InstanceId(Uuid::from_u128(8)), ..new_lease(lease(50)) };
    change(&mut store, LeaseChange::Insert(other), NOW_MS).await.unwrap();
    let reads = store.reads();
    let states: Vec<_> =
        reads.lease_unfinished(instance()).await.unwrap().into_iter().map(|lease| lease.state).collect();
    assert_eq!(states, [LeaseState::Starting, LeaseState::Open, LeaseState::Closing]);

    assert_eq!(store.lease_expire(NOW_MS).await.unwrap(), 0);
    assert_eq!(reads.lease_count_expired(NOW_MS + 100).await.unwrap(), 2);
    assert_eq!(store.lease_expire(NOW_MS + 100).await.unwrap(), 2, "only what is over");
    let left = reads.lease_list(&LeaseFilter::default(), None, 100).await.unwrap();
    assert_eq!(left.leases.len(), 4);
    store.close().await.unwrap();
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_the_youngest_first() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_store(directory.path()).await;
    for number in 1..=7 {
        brought(&mut store, lease(number), if number % 2 == 0 { LeaseState::Closed } else { LeaseState::Open }).await;
    }
    let reads = store.reads();
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = reads.lease_list(&LeaseFilter::default(), before, 3).await.unwrap();
        seen.extend(page.leases.iter().map(|lease| lease.lease_id.0.as_u128()));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let count = async |filter: LeaseFilter| reads.lease_list(&filter, None, 100).await.unwrap().leases.len();
    let of_claude = LeaseFilter { agent: Some("claude".to_owned()), ..LeaseFilter::default() };
    assert_eq!(count(LeaseFilter { unfinished: true, ..of_claude.clone() }).await, 4);
    assert_eq!(count(LeaseFilter { state: Some(LeaseState::Closed), ..of_claude }).await, 3);
    let beginning = |prefix: &str| LeaseFilter { id_prefix: Some(prefix.to_owned()), ..LeaseFilter::default() };
    assert_eq!(count(beginning("00000000-0000-0000-0000-00000000000")).await, 7);
    assert_eq!(count(beginning("00000000000000000000000000000003")).await, 1);
    assert_eq!(count(beginning("1")).await, 0);
    assert_eq!(count(beginning("no id")).await, 0);
    assert_eq!(count(beginning(&"0".repeat(40))).await, 0);
    let nobody = LeaseFilter { agent: Some("codex".to_owned()), ..LeaseFilter::default() };
    assert!(reads.lease_list(&nobody, None, 100).await.unwrap().leases.is_empty());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_pid_is_read_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_store(directory.path()).await;
    for (number, pid) in [(1, -1), (2, 0), (3, 1), (4, i64::MAX)] {
        change(&mut store, LeaseChange::Insert(new_lease(lease(number))), NOW_MS).await.unwrap();
        let root = LeaseRoot { pid, ..root() };
        let opened = change(&mut store, LeaseChange::Open { lease_id: lease(number), root, in_cgroup: false }, NOW_MS)
            .await
            .unwrap();
        assert_eq!(opened.root.unwrap().pid, pid);
        assert_eq!(opened.cgroup_path, None, "it did not come to be in the cgroup that was made for it");
    }
    store.close().await.unwrap();
}
