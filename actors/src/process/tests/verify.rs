//! One table of races and damages, each with what the verification must say; nothing foreign is ever signalled.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_protocol::ids::{InstanceId, LeaseId};

use super::simulated::{Process, Question, SimulatedTable, World};
use crate::process::verify::find_by_environment;
use crate::process::{
    Check, EndOptions, LeaseEvidence, Outcome, OwnedProcessTree, ProcessStat, Verification, end_cgroup, end_tree,
    inspect, verify_owned_tree,
};

const WRAPPER: &str = "/opt/holdfast/bin/holdfast";
const ROOT: i32 = 500;
const DAEMON: i32 = 400;

fn lease() -> LeaseId {
    "0199a3c2-0000-7000-8000-00000000000a".parse().unwrap()
}

fn instance() -> InstanceId {
    "0199a3c2-0000-7000-8000-00000000000b".parse().unwrap()
}

fn environment(lease: &str, instance: &str) -> Vec<u8> {
    format!("PATH=/bin\0HOLDFAST_LEASE_ID={lease}\0HOLDFAST_INSTANCE_ID={instance}\0").into_bytes()
}

pub(super) fn process(pid: i32, parent_pid: i32, group: i32, start_ticks: u64) -> Process {
    Process {
        stat: ProcessStat { pid, state: 'S', parent_pid, process_group_id: group, session_id: group, start_ticks },
        environment: Vec::new(),
        executable: "/usr/bin/node".into(),
        command_line: vec!["node".into(), "/opt/agents/my agent/adapter.js".into()],
        inode: u64::try_from(pid).unwrap() + 9_000,
        ignores: Vec::new(),
    }
}

fn wrapper() -> Process {
    let mut wrapper = process(ROOT, DAEMON, ROOT, 7_000);
    wrapper.environment = environment(&lease().to_string(), &instance().to_string());
    wrapper.executable = WRAPPER.into();
    wrapper.ignores = vec![libc::SIGTERM];
    wrapper
}

fn evidence() -> LeaseEvidence {
    LeaseEvidence {
        lease_id: lease(),
        instance_id: instance(),
        boot_id: "this-boot".to_owned(),
        root_pid: ROOT,
        root_start_ticks: 7_000,
        root_pidfd_inode: Some(9_500),
        process_group_id: ROOT,
        wrapper_path: WRAPPER.into(),
        cgroup: None,
    }
}

/// init, the daemon, a stranger, and one lease's tree: wrapper, adapter, a child of it, a grandchild in a session of its
/// own, and an orphan in the group that the wrapper adopted.
pub(super) fn world() -> World {
    let mut zombie = process(505, 501, ROOT, 7_020);
    zombie.stat.state = 'Z';
    World {
        boot_id: "this-boot".to_owned(),
        own_pid: DAEMON,
        processes: vec![
            process(1, 0, 1, 1),
            process(DAEMON, 1, DAEMON, 6_000),
            process(450, 1, 450, 6_500),
            wrapper(),
            process(501, ROOT, ROOT, 7_001),
            process(502, 501, ROOT, 7_002),
            process(503, 502, 503, 7_003),
            process(504, ROOT, ROOT, 7_004),
            zombie,
        ],
        inodes: true,
        ..World::default()
    }
}

pub(super) fn change(world: &mut World, pid: i32, change: impl FnOnce(&mut Process)) {
    change(world.processes.iter_mut().find(|process| process.stat.pid == pid).unwrap());
}

fn say(verification: &Verification) -> String {
    match verification {
        Verification::Owned(tree) => {
            let pids: Vec<i32> = tree.members.iter().map(|member| member.stat.pid).collect();
            format!("owned {pids:?}")
        }
        Verification::Gone => "gone".to_owned(),
        Verification::Foreign { failed } => format!("foreign {failed:?}"),
        Verification::CannotTell { .. } => "cannot tell".to_owned(),
    }
}

const WHOLE: &str = "owned [503, 502, 504, 501]";

type Case = (&'static str, fn(&mut World, &mut LeaseEvidence), &'static str);

#[test]
fn evidence_against_the_live_processes() {
    let cases: &[Case] = &[
        ("all agrees", |_, _| {}, WHOLE),
        ("no such process", |world, _| world.end(9_500, 1), "gone"),
        ("a zombie", |world, _| change(world, ROOT, |root| root.stat.state = 'Z'), "gone"),
        ("an earlier boot", |_, evidence| evidence.boot_id = "other-boot".to_owned(), "gone"),
        (
            "reused by an unrelated process",
            |world, _| {
                world.end(9_500, 1);
                let mut stranger = process(ROOT, 1, ROOT, 9_900);
                stranger.inode = 77;
                world.processes.push(stranger);
            },
            "foreign PidfdInode",
        ),
        (
            "reused within one clock tick by a look-alike",
            |world, _| change(world, ROOT, |root| root.inode = 77),
            "foreign PidfdInode",
        ),
        (
            "reused, on a kernel that had no pidfd inodes when the lease was written",
            |world, evidence| {
                evidence.root_pidfd_inode = None;
                change(world, ROOT, |root| root.stat.start_ticks = 9_900);
            },
            "foreign StartTicks",
        ),
        (
            "reused by another instance's wrapper",
            |world, evidence| {
                evidence.root_pidfd_inode = None;
                let other = environment("0199a3c2-0000-7000-8000-0000000000ff", "0199a3c2-0000-7000-8000-0000000000fe");
                change(world, ROOT, |root| root.environment = other);
            },
            "foreign Environment",
        ),
        (
            "another instance that copied our lease id",
            |world, evidence| {
                evidence.root_pidfd_inode = None;
                let other = environment(&lease().to_string(), "0199a3c2-0000-7000-8000-0000000000fe");
                change(world, ROOT, |root| root.environment = other);
            },
            "foreign Environment",
        ),
        (
            "an adapter that inherited the lease id, not a wrapper",
            |world, evidence| {
                evidence.root_pidfd_inode = None;
                change(world, ROOT, |root| root.executable = "/usr/bin/node".into());
            },
            "foreign Executable",
        ),
        (
            "our wrapper, upgraded since",
            |world, _| change(world, ROOT, |root| root.executable = format!("{WRAPPER} (deleted)").into()),
            WHOLE,
        ),
        ("the group of someone else", |_, evidence| evidence.process_group_id = 450, "foreign RecordedGroup"),
        (
            "left its group",
            |world, _| change(world, ROOT, |root| root.stat.process_group_id = 450),
            "foreign GroupAndSession",
        ),
        (
            "left its session",
            |world, _| change(world, ROOT, |root| root.stat.session_id = 1),
            "foreign GroupAndSession",
        ),
        ("pid 1", |_, evidence| evidence.root_pid = 1, "foreign RootPid"),
        ("pid 0", |_, evidence| evidence.root_pid = 0, "foreign RootPid"),
        ("pid -1", |_, evidence| evidence.root_pid = -1, "foreign RootPid"),
        ("our own pid", |_, evidence| evidence.root_pid = DAEMON, "foreign RootPid"),
        ("inode recorded, kernel without inodes", |world, _| world.inodes = false, "cannot tell"),
        (
            "no inode on either side, the rest agrees",
            |world, evidence| {
                world.inodes = false;
                evidence.root_pidfd_inode = None;
            },
            WHOLE,
        ),
        ("boot id hidden", |world, _| refuse(world, Question::Boot), "cannot tell"),
        ("stat refused", |world, _| refuse(world, Question::Stat(ROOT)), "cannot tell"),
        ("environment refused", |world, _| refuse(world, Question::Environment(ROOT)), "cannot tell"),
        ("executable refused", |world, _| refuse(world, Question::Executable(ROOT)), "cannot tell"),
        ("process list unavailable", |world, _| refuse(world, Question::List), "cannot tell"),
        ("not ours to open", |world, _| refuse(world, Question::Open(ROOT)), "cannot tell"),
        ("an unreadable member is still a descendant", |world, _| refuse(world, Question::Environment(502)), WHOLE),
        (
            "adapter gone, grandchild left in the group",
            |world, _| {
                world.end(9_501, ROOT);
                world.end(9_502, ROOT);
            },
            "owned [504, 503]",
        ),
        (
            "a stray process that names the lease",
            |world, _| {
                let mut stray = process(600, 1, 600, 7_500);
                stray.environment = environment(&lease().to_string(), &instance().to_string());
                world.processes.push(stray);
            },
            "owned [503, 502, 600, 504, 501]",
        ),
        (
            "a daemon started from within the old session is not part of it",
            |world, _| {
                change(world, DAEMON, |daemon| daemon.stat.parent_pid = 501);
                world.processes.push(process(410, DAEMON, 410, 8_000));
                change(world, ROOT, |root| root.stat.parent_pid = 1);
            },
            WHOLE,
        ),
        (
            "in the cgroup of the lease",
            |world, evidence| in_cgroup(world, evidence, &[ROOT, 501, 502, 503, 504]),
            WHOLE,
        ),
        (
            "only the cgroup knows of it",
            |world, evidence| {
                world.processes.push(process(600, 1, 600, 7_500));
                in_cgroup(world, evidence, &[ROOT, 501, 600]);
            },
            "owned [503, 502, 600, 504, 501]",
        ),
        ("in another cgroup", |world, evidence| in_cgroup(world, evidence, &[501]), "foreign Cgroup"),
        (
            "its cgroup is not there",
            |world, evidence| {
                in_cgroup(world, evidence, &[]);
                world.cgroups.clear();
            },
            "foreign Cgroup",
        ),
        (
            "cgroup refused",
            |world, evidence| {
                in_cgroup(world, evidence, &[ROOT]);
                refuse(world, Question::Cgroup);
            },
            "cannot tell",
        ),
        (
            "a cgroup that no lease has",
            |_, evidence| evidence.cgroup = Some("/sys/fs/cgroup/user.slice".into()),
            "foreign RecordedCgroup",
        ),
    ];
    for (name, prepare, expected) in cases {
        let mut world = world();
        let mut evidence = evidence();
        prepare(&mut world, &mut evidence);
        let table = SimulatedTable::new(world);
        let verification = verify_owned_tree(&evidence, &table);
        assert_eq!(say(&verification), *expected, "{name}");
        assert!(table.world().sent.is_empty(), "{name}: verification signalled something");
    }
}

fn leaf() -> PathBuf {
    format!("/sys/fs/cgroup/holdfast/{}", lease()).into()
}

fn in_cgroup(world: &mut World, evidence: &mut LeaseEvidence, members: &[i32]) {
    world.cgroups.insert(leaf(), members.to_vec());
    evidence.cgroup = Some(leaf());
}

#[test]
fn each_check_is_listed_once_and_those_behind_the_deciding_one_are_not_made() {
    let all = |prepare: fn(&mut World, &mut LeaseEvidence)| {
        let (mut world, mut evidence) = (world(), evidence());
        prepare(&mut world, &mut evidence);
        let (findings, _) = inspect(&evidence, &SimulatedTable::new(world));
        assert_eq!(findings.iter().map(|finding| finding.check).collect::<Vec<_>>(), Check::ALL);
        findings.into_iter().map(|finding| finding.outcome).collect::<Vec<_>>()
    };
    let sound = all(|_, _| {});
    for (check, outcome) in Check::ALL.into_iter().zip(sound) {
        let expected = match check {
            Check::RecordedCgroup | Check::Cgroup => matches!(outcome, Outcome::NotRecorded),
            _ => matches!(outcome, Outcome::Passed { .. }),
        };
        assert!(expected, "{check:?}: {outcome:?}");
    }
    let reused = all(|world, _| change(world, ROOT, |root| root.inode = 77));
    assert_eq!(reused[5], Outcome::Failed { recorded: "9500".to_owned(), found: "77".to_owned() });
    assert!(reused[6..].iter().all(|outcome| *outcome == Outcome::NotMade), "{reused:?}");
    let hidden = all(|world, _| refuse(world, Question::Environment(ROOT)));
    assert!(matches!(&hidden[8], Outcome::Unknown { why } if why.contains("permission")), "{hidden:?}");
}

#[test]
fn a_tree_that_outruns_the_sweeps_falls_with_its_cgroup() {
    let (mut world, mut evidence) = (world(), evidence());
    in_cgroup(&mut world, &mut evidence, &[ROOT, 501, 502, 503, 504, 700]);
    let table = SimulatedTable::new(world);
    let Verification::Owned(tree) = verify_owned_tree(&evidence, &table) else { panic!("not owned") };
    // It appears afterwards, and no sweep gets hold of it.
    table.world().processes.push(process(700, 1, 1, 9_000));
    refuse(&mut table.world(), Question::Open(700));
    let report = end_tree(tree, OPTIONS, &table);
    assert!(report.ended && report.killed, "{report:?}");
    let world = table.world();
    assert_eq!(world.killed_cgroups, [leaf()]);
    assert!(world.find(700).is_none() && world.find(450).is_some());
}

#[test]
fn what_is_left_in_a_cgroup_gets_term_and_time_before_all_of_it_is_killed() {
    let mut world = world();
    world.cgroups.insert(leaf(), vec![503, 504]);
    change(&mut world, 504, |process| process.ignores = vec![libc::SIGTERM]);
    let table = SimulatedTable::new(world);
    let report = end_cgroup(&leaf(), OPTIONS, &table);
    assert!(report.ended && report.killed, "{report:?}");
    let world = table.world();
    assert_eq!(world.sent, [(9_503, libc::SIGTERM), (9_504, libc::SIGTERM)]);
    assert!(world.find(503).is_none() && world.find(504).is_none() && world.find(501).is_some());
    drop(world);
    table.world().denied.insert(Question::Cgroup);
    assert!(!end_cgroup(&leaf(), OPTIONS, &table).ended, "what can't be told is not ended");
}

pub(super) fn refuse(world: &mut World, question: Question) {
    world.denied.insert(question);
}

/// Replaces whatever has `pid` by a stranger that looks the same and started in the same tick, just before the answer to
/// `moment`.
fn recycle_before(table: &SimulatedTable, moment: Question, pid: i32, parent_pid: i32) {
    let mut done = false;
    table.before_every_answer(move |world, question| {
        if question == moment && !done {
            done = true;
            change(world, pid, |process| {
                process.inode += 100_000;
                process.stat.parent_pid = parent_pid;
            });
        }
    });
}

#[test]
fn a_root_recycled_between_two_questions_is_never_owned() {
    let moments = [
        Question::Open(ROOT),
        Question::Stat(ROOT),
        Question::Environment(ROOT),
        Question::Executable(ROOT),
        Question::List,
    ];
    for moment in moments {
        let table = SimulatedTable::new(world());
        recycle_before(&table, moment, ROOT, 1);
        let said = say(&verify_owned_tree(&evidence(), &table));
        assert!(said == "gone" || said == "foreign PidfdInode", "recycled before {moment:?}: {said}");
    }
}

#[test]
fn a_member_recycled_while_it_is_collected_is_left_alone() {
    for moment in [Question::Open(502), Question::Stat(502)] {
        let table = SimulatedTable::new(world());
        recycle_before(&table, moment, 502, 450);
        assert_eq!(say(&verify_owned_tree(&evidence(), &table)), "owned [503, 504, 501]", "{moment:?}");
    }
}

fn owned(table: &SimulatedTable) -> OwnedProcessTree {
    match verify_owned_tree(&evidence(), table) {
        Verification::Owned(tree) => tree,
        other => panic!("{}", say(&other)),
    }
}

pub(super) const OPTIONS: EndOptions =
    EndOptions { grace: Duration::from_millis(20), kill_limit: Duration::from_millis(2_000) };

#[test]
fn ending_a_tree_signals_its_members_and_nobody_else() {
    let mut world = world();
    for pid in [501, 502, 503, 504] {
        change(&mut world, pid, |process| process.ignores = vec![libc::SIGTERM]);
    }
    let table = SimulatedTable::new(world);
    let tree = owned(&table);
    let report = end_tree(tree, OPTIONS, &table);
    assert!(report.ended && report.killed, "{report:?}");
    let world = table.world();
    let left: Vec<i32> = world.processes.iter().map(|process| process.stat.pid).collect();
    assert_eq!(left, [1, DAEMON, 450, 505]);
    assert!(world.sent.iter().all(|(inode, _)| (9_500..=9_504).contains(inode)), "{:?}", world.sent);
    let killed: Vec<u64> =
        world.sent.iter().filter(|(_, number)| *number == libc::SIGKILL).map(|(inode, _)| *inode).collect();
    assert_eq!(killed, [9_503, 9_502, 9_504, 9_501, 9_500], "children first");
}

#[test]
fn a_pid_recycled_after_the_verification_is_not_hit() {
    let table = SimulatedTable::new(world());
    let tree = owned(&table);
    {
        let mut world = table.world();
        for pid in [ROOT, 503] {
            change(&mut world, pid, |process| process.inode += 100_000);
        }
    }
    let report = end_tree(tree, OPTIONS, &table);
    assert!(report.ended, "{report:?}");
    assert!(table.world().sent.iter().all(|(inode, _)| *inode < 100_000));
    assert!(table.world().find(ROOT).is_some(), "the stranger lives");
}

#[test]
fn a_lease_without_pid_is_searched_by_its_id() {
    let table = SimulatedTable::new(world());
    let found = find_by_environment(lease(), instance(), &table).unwrap();
    assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [ROOT]);
    assert!(
        find_by_environment("0199a3c2-0000-7000-8000-0000000000aa".parse().unwrap(), instance(), &table)
            .unwrap()
            .is_empty()
    );
}
