//! A configuration that is broken while the daemon is down or up: told with line and key, never replaced, never half used.

use std::fs;

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::List;
use holdfast_protocol::methods::daemon::{Reload, Status};
use holdfast_tests::daemon::{DaemonOptions, TestDaemon};
use holdfast_tests::eventually::{PATIENCE, eventually};
use rustix::process::Signal;

const AGENTS: usize = 25;

/// A configuration of about 100 KB that a person has worked on.
fn rich() -> String {
    let mut text = String::from("# Kept by hand.\n\n[logs]\nlevel = \"info\"   # as it was\n");
    for number in 0..AGENTS {
        let remark = format!("# {}\n", "why this agent is here and what it may do ".repeat(4)).repeat(22);
        text.push_str(&format!(
            "\n{remark}[agents.agent-{number}]\ncommand = [\"agent\", '--number', \"{number}\"] # its number\n\
             idle_timeout_s = {}\n",
            600 + number
        ));
    }
    text
}

/// Replaces line `number`, counted from 1.
fn with_line(text: &str, number: usize, line: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines[number - 1] = line;
    lines.join("\n") + "\n"
}

/// Returns the number of the last line that begins so.
fn line_of(text: &str, start: &str) -> usize {
    text.lines().count() - text.lines().rev().position(|line| line.starts_with(start)).unwrap()
}

/// A daemon that is down and has the rich configuration.
fn prepared() -> (TestDaemon, String) {
    let daemon = TestDaemon::prepare(DaemonOptions::default());
    assert!(daemon.program().arg("init").output().unwrap().status.success());
    let good = rich();
    assert!(good.len() > 90_000, "{}", good.len());
    fs::write(daemon.root.config_file(), &good).unwrap();
    (daemon, good)
}

fn agents(daemon: &TestDaemon) -> Result<usize, ClientError> {
    daemon.client().call::<List>(&Empty {}).map(|list| list.agents.len())
}

/// Checks that the file is as it was left, and that nothing else was made of it.
#[track_caller]
fn check_untouched(daemon: &TestDaemon, left: &str) {
    assert_eq!(fs::read_to_string(daemon.root.config_file()).unwrap(), left);
    let beside = fs::read_dir(daemon.root.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let copies: Vec<_> = beside.filter(|name| name.to_string_lossy().starts_with("config.toml.")).collect();
    assert!(copies.is_empty(), "{copies:?}");
}

#[test]
fn a_broken_file_stops_the_start_with_its_line_and_is_left_as_it_is() {
    let (mut daemon, good) = prepared();
    daemon.boot();
    assert_eq!(agents(&daemon).unwrap(), AGENTS);
    assert!(daemon.term().success());
    let bad = with_line(&good, 40, "port = = 1");
    fs::write(daemon.root.config_file(), &bad).unwrap();
    let refused = daemon.try_boot().unwrap_err();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("config.toml line 40, column 8") && said.contains("port = = 1"), "{said}");
    check_untouched(&daemon, &bad);
    fs::write(daemon.root.config_file(), &good).unwrap();
    daemon.boot();
    assert_eq!(agents(&daemon).unwrap(), AGENTS);
}

#[test]
fn a_reload_of_a_broken_file_names_line_and_key_and_the_old_configuration_stays() {
    let (mut daemon, good) = prepared();
    daemon.boot();
    let wrong = line_of(&good, "idle_timeout_s = 607");
    let breaks = [
        (with_line(&good, 40, "port = = 1"), vec!["line 40".to_owned(), "port = = 1".to_owned()]),
        (
            with_line(&good, wrong, "idle_timeout_s = \"soon\""),
            vec![format!("line {wrong}"), "agents.agent-7.idle_timeout_s".to_owned()],
        ),
        (
            format!("logs = true\n{}", good.replacen("[logs]\nlevel = \"info\"   # as it was\n", "", 1)),
            vec!["line 1".to_owned(), "logs".to_owned()],
        ),
    ];
    for (bad, expected) in breaks {
        fs::write(daemon.root.config_file(), &bad).unwrap();
        let before = daemon.stderr().len();
        let over_the_socket = match daemon.client().call::<Reload>(&Empty {}) {
            Err(ClientError::Refused(error)) => {
                assert_eq!(error.kind, ErrorKind::ConfigInvalid);
                error.to_string()
            }
            other => panic!("{expected:?}: {other:?}"),
        };
        let output = daemon.program().arg("reload").output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        daemon.signal(Signal::HUP);
        let by_signal = eventually(
            PATIENCE,
            || daemon.stderr()[before..].to_owned(),
            |said| said.contains("reload refused") && said.contains(&expected[0]),
        );
        for said in [over_the_socket, String::from_utf8(output.stderr).unwrap(), by_signal] {
            assert!(expected.iter().all(|part| said.contains(part)), "{expected:?} in {said}");
        }
        let status = daemon.client().call::<Status>(&Empty {}).unwrap();
        assert_eq!(status.generation, 1);
        assert_eq!(agents(&daemon).unwrap(), AGENTS);
        check_untouched(&daemon, &bad);
    }
    fs::write(daemon.root.config_file(), &good).unwrap();
    daemon.client().call::<Reload>(&Empty {}).unwrap();
    assert_eq!(agents(&daemon).unwrap(), AGENTS);
}

#[test]
fn a_section_that_can_not_be_used_at_a_start_is_said_to_be_and_never_replaced_by_defaults() {
    let (mut daemon, good) = prepared();
    let wrong = line_of(&good, "idle_timeout_s = 607");
    let bad = with_line(&good, wrong, "idle_timeout_s = \"soon\"");
    fs::write(daemon.root.config_file(), &bad).unwrap();
    daemon.boot();
    match agents(&daemon) {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.kind, ErrorKind::ConfigInvalid, "{error:?}");
            let said = error.to_string();
            assert!(said.contains(&format!("line {wrong}")) && said.contains("agent-7"), "{said}");
        }
        other => panic!("a section that can't be read was answered from: {other:?}"),
    }
    let warnings = daemon.client().call::<Status>(&Empty {}).unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains(&format!("line {wrong}"))), "{warnings:?}");
    check_untouched(&daemon, &bad);
    assert!(daemon.term().success());
    check_untouched(&daemon, &bad);
    daemon.boot();
    fs::write(daemon.root.config_file(), &good).unwrap();
    daemon.client().call::<Reload>(&Empty {}).unwrap();
    assert_eq!(agents(&daemon).unwrap(), AGENTS);
}
