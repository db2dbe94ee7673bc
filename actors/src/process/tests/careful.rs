//! Rows without a lease: only what shows everything that was stored is ever ended.

use super::simulated::{Question, SimulatedTable, World};
use super::verify::{OPTIONS, change, process, refuse, world};
use crate::process::{CarefulVerdict, StoredCommand, StoredProcess, end_stored, verify_stored};

const AGENT: i32 = 700;

/// An agent without a wrapper, started by someone, with a child and one that shares its group only.
fn with_agent() -> World {
    let mut world = world();
    let mut agent = process(AGENT, 1, AGENT, 7_700);
    agent.command_line = vec!["node".into(), "/home/a/.acp/my agent/run.js".into(), "--x=1".into()];
    world.processes.push(agent);
    world.processes.push(process(701, AGENT, AGENT, 7_701));
    world.processes.push(process(702, 1, AGENT, 7_702));
    world
}

fn stored() -> StoredProcess {
    StoredProcess {
        pid: i64::from(AGENT),
        process_group_id: None,
        command: Some(StoredCommand::Line("node '/home/a/.acp/my agent/run.js' --x=1".to_owned())),
        wrapper_root: None,
    }
}

fn say(verdict: &CarefulVerdict) -> String {
    match verdict {
        CarefulVerdict::Owned(tree) => {
            let pids: Vec<i32> = tree.members.iter().map(|member| member.stat.pid).collect();
            format!("owned {pids:?}")
        }
        CarefulVerdict::Gone => "gone".to_owned(),
        CarefulVerdict::LeftAlone { why } => format!("left alone: {why}"),
        CarefulVerdict::CannotTell { .. } => "cannot tell".to_owned(),
    }
}

type Case = (&'static str, fn(&mut World, &mut StoredProcess), &'static str);

#[test]
fn a_row_without_a_lease_against_the_live_processes() {
    let cases: &[Case] = &[
        ("quoted line, unquoted process", |_, _| {}, "owned [701, 702]"),
        (
            "escaped blank",
            |_, row| row.command = Some(StoredCommand::Line(r"node /home/a/.acp/my\ agent/run.js --x=1".into())),
            "owned [701, 702]",
        ),
        (
            "no quotes at all",
            |_, row| row.command = Some(StoredCommand::Line("node /home/a/.acp/my agent/run.js --x=1".into())),
            "owned [701, 702]",
        ),
        (
            "words",
            |_, row| {
                let words = ["node", "/home/a/.acp/my agent/run.js", "--x=1"];
                row.command = Some(StoredCommand::Words(words.map(Into::into).into()));
            },
            "owned [701, 702]",
        ),
        (
            "one argument differs",
            |_, row| row.command = Some(StoredCommand::Line("node '/home/a/.acp/my agent/run.js' --x=2".into())),
            "left alone: the process with that pid runs another command",
        ),
        (
            "only a prefix",
            |_, row| row.command = Some(StoredCommand::Line("node".into())),
            "left alone: the process with that pid runs another command",
        ),
        (
            "it rewrote its title",
            |world, _| change(world, AGENT, |agent| agent.command_line = vec!["agent".into()]),
            "left alone: the process with that pid runs another command",
        ),
        (
            "a pid alone",
            |_, row| row.command = None,
            "left alone: no command was stored, and a pid alone proves nothing",
        ),
        (
            "an empty command",
            |_, row| row.command = Some(StoredCommand::Line("  ".into())),
            "left alone: no command was stored, and a pid alone proves nothing",
        ),
        ("below its wrapper root", |_, row| row.wrapper_root = Some("/home/a/.acp".into()), "owned [701, 702]"),
        (
            "not below its wrapper root",
            |_, row| row.wrapper_root = Some("/home/b/.acp".into()),
            "left alone: the process did not come from the expected wrapper directory",
        ),
        (
            "a wrapper root that holds everything",
            |_, row| row.wrapper_root = Some("/".into()),
            "left alone: the process did not come from the expected wrapper directory",
        ),
        ("its group", |_, row| row.process_group_id = Some(i64::from(AGENT)), "owned [701, 702]"),
        (
            "another group",
            |_, row| row.process_group_id = Some(450),
            "left alone: the process is in another group than was stored",
        ),
        ("no live root, group still there", |world, _| world.end(9_700, 1), "gone"),
        ("pid 1", |_, row| row.pid = 1, "left alone: the stored pid is none that an agent can have"),
        ("pid 0", |_, row| row.pid = 0, "left alone: the stored pid is none that an agent can have"),
        ("pid -1", |_, row| row.pid = -1, "left alone: the stored pid is none that an agent can have"),
        ("the group as a pid", |_, row| row.pid = -700, "left alone: the stored pid is none that an agent can have"),
        ("our own pid", |_, row| row.pid = 400, "left alone: the stored pid is none that an agent can have"),
        ("too large", |_, row| row.pid = i64::MAX, "left alone: the stored pid is none that an agent can have"),
        (
            "we run below it",
            |world, _| change(world, 400, |daemon| daemon.stat.parent_pid = 701),
            "left alone: this program itself runs below it",
        ),
        ("command line refused", |world, _| refuse(world, Question::CommandLine(AGENT)), "cannot tell"),
        ("process list unavailable", |world, _| refuse(world, Question::List), "cannot tell"),
        ("not ours to open", |world, _| refuse(world, Question::Open(AGENT)), "cannot tell"),
    ];
    for (name, prepare, expected) in cases {
        let (mut world, mut row) = (with_agent(), stored());
        prepare(&mut world, &mut row);
        let table = SimulatedTable::new(world);
        assert_eq!(say(&verify_stored(&row, &table)), *expected, "{name}");
        assert!(table.world().sent.is_empty(), "{name}: the look signalled something");
    }
}

#[test]
fn an_agent_recycled_between_two_questions_is_left_alone() {
    for moment in [Question::Stat(AGENT), Question::CommandLine(AGENT), Question::List] {
        let table = SimulatedTable::new(with_agent());
        let mut done = false;
        table.before_every_answer(move |world, question| {
            if question == moment && !done {
                done = true;
                change(world, AGENT, |process| process.inode += 100_000);
            }
        });
        assert_eq!(say(&verify_stored(&stored(), &table)), "gone", "{moment:?}");
    }
}

#[test]
fn ending_it_reaches_what_hangs_below_and_nobody_else() {
    let mut world = with_agent();
    for pid in [AGENT, 701] {
        change(&mut world, pid, |process| process.ignores = vec![libc::SIGTERM]);
    }
    let before: Vec<i32> = world.processes.iter().map(|process| process.stat.pid).filter(|pid| *pid < AGENT).collect();
    let table = SimulatedTable::new(world);
    let CarefulVerdict::Owned(tree) = verify_stored(&stored(), &table) else { panic!("not owned") };
    let report = end_stored(tree, OPTIONS, &table);
    assert!(report.ended && report.killed, "{report:?}");
    let world = table.world();
    assert_eq!(world.processes.iter().map(|process| process.stat.pid).collect::<Vec<_>>(), before);
    let first: Vec<u64> = world.sent.iter().take(3).map(|(inode, _)| *inode).collect();
    assert_eq!(first, [9_701, 9_702, 9_700], "children first");
    assert!(world.sent.iter().all(|(inode, _)| (9_700..=9_702).contains(inode)), "{:?}", world.sent);
}
