//! Whose child a process is, and what that makes of who asks.

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};
use holdfast_stores::leases::{LeaseExit, LeaseRecord, LeaseRoot, LeaseState};

use super::simulated::{Question, SimulatedTable, World};
use super::verify::{change, process, refuse, world};
use crate::leases::requester::{Requester, requester_of};
use crate::process::{ChainEnd, LineageError, lineage_of};

const INSTANCE: &str = "0199a3c2-0000-7000-8000-00000000000b";
const LEASE: &str = "0199a3c2-0000-7000-8000-00000000000a";
const OTHER: &str = "0199a3c2-0000-7000-8000-0000000000aa";
const SESSION: &str = "0199a3c2-0000-7000-8000-0000000000cc";
const DAEMON: i32 = 400;
/// The wrapper of [`LEASE`] in [`world`].
const ROOT: i32 = 500;
/// A grandchild of it in a session of its own.
const PEER: i32 = 503;

fn instance() -> InstanceId {
    INSTANCE.parse().unwrap()
}

fn record(lease: &str, pid: Option<i64>) -> LeaseRecord {
    LeaseRecord {
        lease_id: lease.parse().unwrap(),
        instance_id: instance(),
        session_id: Some(SESSION.parse().unwrap()),
        agent: "claude".to_owned(),
        wrapper_root: "/r".into(),
        wrapper_path: "/opt/holdfast/bin/holdfast".into(),
        root: pid.map(|pid| LeaseRoot { pid, start_ticks: 7_000, pidfd_ino: Some(9_500), process_group_id: Some(pid) }),
        cgroup_path: Some(format!("/sys/fs/cgroup/holdfast/{lease}").into()),
        command_hash: [0; 32],
        boot_id: "this-boot".to_owned(),
        started_at_ms: 0,
        state: LeaseState::Open,
        state_changed_at_ms: 0,
        exit: LeaseExit::default(),
        last_error: None,
    }
}

fn claim(lease: &str, instance: &str, session: &str) -> Vec<u8> {
    format!("A=1\0HOLDFAST_LEASE_ID={lease}\0HOLDFAST_INSTANCE_ID={instance}\0HOLDFAST_SESSION_ID={session}\0")
        .into_bytes()
}

/// What a caller can be taken for.
fn say(requester: &Requester) -> String {
    match requester {
        Requester::Owner => "owner".to_owned(),
        Requester::Unknown { .. } => "unknown".to_owned(),
        Requester::Session(session) => {
            let which = if session.lease_id.to_string() == LEASE { "ours" } else { "other" };
            let for_one = if session.session_id.is_some() { "" } else { " for no session" };
            format!("session {which} by {:?}{for_one}", session.proof)
        }
    }
}

type Case = (&'static str, i32, fn(&mut World, &mut Vec<LeaseRecord>), &'static str);

#[test]
fn who_a_process_is_by_its_ancestors_its_cgroup_and_its_claim() {
    let cases: &[Case] = &[
        ("a grandchild in a session of its own", PEER, |_, _| {}, "session ours by Ancestry"),
        ("an orphan that the wrapper adopted", 504, |_, _| {}, "session ours by Ancestry"),
        ("the wrapper itself", ROOT, |_, _| {}, "session ours by Ancestry"),
        ("a stranger", 450, |_, _| {}, "owner"),
        ("we ourselves", DAEMON, |_, _| {}, "owner"),
        (
            "a grandchild that claims to be the owner of another lease",
            PEER,
            |world, leases| {
                leases.push(record(OTHER, None));
                change(world, PEER, |peer| peer.environment = claim(OTHER, INSTANCE, SESSION));
            },
            "session ours by Ancestry",
        ),
        (
            "a pid that a wrapper had before",
            PEER,
            |world, _| change(world, ROOT, |root| root.inode = 77),
            // Its ancestor is a child of ours that is no wrapper we know of.
            "unknown",
        ),
        (
            "a start time that differs, on a kernel without inodes",
            PEER,
            |world, leases| {
                world.inodes = false;
                leases[0].root.as_mut().unwrap().start_ticks += 1;
            },
            "unknown",
        ),
        ("a kernel without inodes", PEER, |world, _| world.inodes = false, "session ours by Ancestry"),
        ("another install's lease", PEER, |_, leases| leases[0].instance_id = OTHER.parse().unwrap(), "unknown"),
        ("another boot's lease", PEER, |_, leases| leases[0].boot_id = "other".to_owned(), "unknown"),
        (
            "a lease for no session",
            PEER,
            |_, leases| leases[0].session_id = None,
            "session ours by Ancestry for no session",
        ),
        (
            "the nearest of two wrappers",
            PEER,
            |_, leases| {
                let mut inner = record(OTHER, Some(502));
                inner.root.as_mut().unwrap().start_ticks = 7_002;
                inner.root.as_mut().unwrap().pidfd_ino = Some(9_502);
                leases.push(inner);
            },
            "session other by Ancestry",
        ),
        (
            "an orphan of a killed wrapper",
            503,
            |world, leases| {
                for inode in [9_501, 9_502, 9_500] {
                    world.end(inode, DAEMON);
                }
                leases.clear();
            },
            "unknown",
        ),
        (
            "an orphan of a killed wrapper whose lease is open yet, in its cgroup",
            503,
            |world, _| {
                for inode in [9_501, 9_502, 9_500] {
                    world.end(inode, DAEMON);
                }
                world.cgroups.insert(format!("/a/holdfast/{LEASE}").into(), vec![503]);
            },
            "session ours by Cgroup",
        ),
        (
            "in the cgroup, below a parent that can't be seen",
            450,
            |world, _| {
                change(world, 450, |peer| peer.stat.parent_pid = 449);
                world.cgroups.insert(format!("/a/holdfast/{LEASE}/nested").into(), vec![450]);
            },
            "session ours by Cgroup",
        ),
        (
            "in a cgroup with the name of a lease that has none",
            450,
            |world, leases| {
                leases[0].cgroup_path = None;
                world.cgroups.insert(format!("/a/holdfast/{LEASE}").into(), vec![450]);
            },
            "owner",
        ),
        (
            "a claim that fits a live lease takes rights away",
            450,
            |world, _| change(world, 450, |peer| peer.environment = claim(LEASE, INSTANCE, SESSION)),
            "session ours by Claim",
        ),
        (
            "a claim of a lease that is over",
            450,
            |world, leases| {
                leases.clear();
                change(world, 450, |peer| peer.environment = claim(LEASE, INSTANCE, SESSION));
            },
            "owner",
        ),
        (
            "a claim of another session",
            450,
            |world, _| change(world, 450, |peer| peer.environment = claim(LEASE, INSTANCE, OTHER)),
            "owner",
        ),
        (
            "a claim of another install",
            450,
            |world, _| change(world, 450, |peer| peer.environment = claim(LEASE, OTHER, SESSION)),
            "owner",
        ),
        ("a parent that can't be seen", 450, |world, _| change(world, 450, |peer| peer.stat.parent_pid = 449), "owner"),
        ("an environment that can't be read", 450, |world, _| refuse(world, Question::Environment(450)), "owner"),
    ];
    for (name, peer, prepare, expected) in cases {
        let (mut world, mut leases) = (world(), vec![record(LEASE, Some(i64::from(ROOT)))]);
        prepare(&mut world, &mut leases);
        let lineage =
            lineage_of(*peer, None, &SimulatedTable::new(world)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(say(&requester_of(&lineage, &leases, instance(), true)), *expected, "{name}");
        // Where others start children here as well, being a child of ours says nothing.
        if *expected == "unknown" {
            assert_eq!(say(&requester_of(&lineage, &leases, instance(), false)), "owner", "{name}");
        }
    }
}

#[test]
fn a_chain_is_followed_to_where_it_ends() {
    let chain = |peer: i32, prepare: fn(&mut World)| {
        let mut world = world();
        prepare(&mut world);
        let lineage = lineage_of(peer, None, &SimulatedTable::new(world)).unwrap();
        (lineage.chain.iter().map(|ancestor| ancestor.pid).collect::<Vec<_>>(), lineage.end)
    };
    assert_eq!(chain(PEER, |_| {}), (vec![503, 502, 501, ROOT, DAEMON], ChainEnd::Us));
    assert_eq!(chain(450, |_| {}), (vec![450], ChainEnd::System));
    let outside = |world: &mut World| change(world, 450, |peer| peer.stat.parent_pid = 0);
    assert_eq!(chain(450, outside), (vec![450], ChainEnd::System));
    let hidden = |world: &mut World| refuse(world, Question::Open(ROOT));
    assert_eq!(chain(PEER, hidden), (vec![503, 502, 501], ChainEnd::Hidden));
    // A table that shows a loop is no reason to follow it for ever.
    let looped = |world: &mut World| change(world, ROOT, |root| root.stat.parent_pid = 503);
    assert_eq!(chain(PEER, looped).1, ChainEnd::Hidden);
}

#[test]
fn a_parent_that_dies_under_our_eyes_is_looked_for_again_and_a_peer_that_does_is_gone() {
    let table = SimulatedTable::new(world());
    let mut done = false;
    table.before_every_answer(move |world, question| {
        if question == Question::Stat(501) && !done {
            done = true;
            // Its orphans go to the wrapper; the number passes to a stranger at once.
            world.end(9_501, ROOT);
            let mut stranger = process(501, 450, 450, 9_999);
            stranger.inode = 70_000;
            world.processes.push(stranger);
        }
    });
    let lineage = lineage_of(PEER, None, &table).unwrap();
    assert_eq!(lineage.chain.iter().map(|ancestor| ancestor.pid).collect::<Vec<_>>(), [503, 502, ROOT, DAEMON]);

    assert_eq!(lineage_of(999, None, &SimulatedTable::new(world())), Err(LineageError::Gone));
    let table = SimulatedTable::new(world());
    table.before_every_answer(|world, question| {
        if question == Question::CgroupPath(PEER) {
            change(world, PEER, |peer| peer.inode += 100_000);
        }
    });
    assert_eq!(lineage_of(PEER, None, &table), Err(LineageError::Gone), "another took over its pid");
    let mut refused = world();
    refuse(&mut refused, Question::Boot);
    assert!(matches!(lineage_of(PEER, None, &SimulatedTable::new(refused)), Err(LineageError::Table(_))));
}

#[test]
fn the_ids_of_the_environment_are_claims_of_their_kind() {
    let mut world = world();
    change(&mut world, 450, |peer| peer.environment = claim(LEASE, "no id", SESSION));
    let claim = lineage_of(450, None, &SimulatedTable::new(world)).unwrap().claim.unwrap();
    assert_eq!(claim.lease_id, LEASE.parse::<LeaseId>().unwrap());
    assert_eq!((claim.instance_id, claim.session_id), (None, Some(SESSION.parse::<SessionId>().unwrap())));
}
