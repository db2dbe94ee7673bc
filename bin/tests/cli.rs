//! The program as a shell sees it: streams, exit codes, closed pipes.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::process::{Command, Output, Stdio};

/// Makes the program ready to run away from the user's own root and settings.
fn holdfast(root: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_remove("NO_COLOR").env("HOLDFAST_ROOT", root).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn run(words: &[&str]) -> Output {
    let root = tempfile::tempdir().unwrap();
    holdfast(root.path()).args(words).output().unwrap()
}

#[test]
fn help_and_version_are_answers_and_wrong_use_is_a_usage_error() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).starts_with("Keep what AI agents on this machine must not lose\n"));
    assert_eq!(text(&run(&["--version"]).stdout), format!("holdfast {}\n", env!("CARGO_PKG_VERSION")));
    for words in [&["nonsense"][..], &["session", "show"], &["status", "--json", "--format", "tsv"], &[]] {
        let wrong = run(words);
        assert_eq!(wrong.status.code(), Some(2), "{words:?}");
        assert!(wrong.stdout.is_empty() && !wrong.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn without_a_daemon_reads_are_answered_and_what_needs_one_ends_with_six() {
    let root = tempfile::tempdir().unwrap();
    let output = holdfast(root.path()).args(["session", "list", "--json"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "[]\n".to_owned()));
    assert_eq!(text(&output.stderr), "the daemon is not running; read from its files\n");
    let output = holdfast(root.path()).args(["status", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains("\"pid\": null"), "{}", text(&output.stdout));
    let output = holdfast(root.path()).args(["session", "new", "demo", "--json"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(6), String::new()));
    let said = text(&output.stderr);
    assert!(said.starts_with(&format!("error: no daemon answers at {}\nhint: ", root.path().display())), "{said}");
    assert!(std::fs::read_dir(root.path()).unwrap().next().is_none(), "a command made something without being told to");
}

#[test]
fn colours_come_only_when_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let plain = holdfast(root.path()).arg("reload").output().unwrap();
    assert!(!text(&plain.stderr).contains('\u{1b}'));
    let coloured = holdfast(root.path()).args(["reload", "--color", "always"]).output().unwrap();
    assert!(text(&coloured.stderr).starts_with("\u{1b}[31merror:\u{1b}[0m no daemon"));
}

#[test]
fn a_reader_that_leaves_ends_a_command_quietly() {
    let root = tempfile::tempdir().unwrap();
    let mut child = holdfast(root.path())
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the program can have written all of it: the script is longer than a pipe holds, or the program has
    // not begun. Either way it must not complain.
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn installed_agents_are_found_on_the_path_and_written_only_when_asked() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (root, programs) = (directory.path().join("root"), directory.path().join("bin"));
    std::fs::create_dir(&programs).unwrap();
    for program in ["opencode", "codex"] {
        std::fs::write(programs.join(program), "").unwrap();
        std::fs::set_permissions(programs.join(program), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let detect = |more: &[&str]| {
        let output = holdfast(&root).env("PATH", &programs).args(["agent", "detect"]).args(more).output().unwrap();
        (text(&output.stdout), output.status.code())
    };
    let (found, code) = detect(&["--format", "tsv"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        found,
        "agent\tname\tstate\tcommand\tnext\n\
         opencode\tOpenCode\tfound\topencode acp\t\n\
         codex\tCodex\tneeds adapter\t\tnpm install -g @agentclientprotocol/codex-acp\n"
    );
    assert!(!root.exists(), "looking made a root");
    assert_eq!(detect(&["--write"]).1, Some(3), "there is nothing to write to");
    assert!(holdfast(&root).arg("init").output().unwrap().status.success());
    assert!(detect(&["--write"]).0.contains("added"));
    assert!(detect(&[]).0.contains("configured"));
    assert!(std::fs::read_to_string(root.join("config.toml")).unwrap().contains("[agents.opencode]"));
}
