//! What may be typed, and what help says.

use clap::{CommandFactory, Parser};

use super::*;
use crate::render::Format;

/// Returns every visible command, with its path, depth first.
fn all_commands() -> Vec<(String, clap::Command)> {
    fn walk(path: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name());
            walk(&path, sub, found);
            found.push((path, sub.clone()));
        }
    }
    let mut found = Vec::new();
    walk("holdfast", &Cli::command(), &mut found);
    found
}

#[test]
fn the_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn help_starts_with_an_imperative_has_no_full_stop_and_holds_an_example() {
    for (path, command) in all_commands() {
        let about = command.get_about().expect(&path).to_string();
        assert!(about.starts_with(|first: char| first.is_ascii_uppercase()), "{path}: {about}");
        assert!(!about.ends_with('.'), "{path}: {about}");
        if command.get_subcommands().next().is_none() {
            let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains("    ") && long.contains("holdfast"), "{path} has no example");
        }
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty() && !help.ends_with('.'), "{path} {}: {help}", argument.get_id());
        }
    }
}

#[test]
fn every_example_in_help_can_be_typed() {
    for (path, command) in all_commands() {
        let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
        for line in long.lines().filter_map(|line| line.strip_prefix("    ")) {
            let Some(start) = line.find("holdfast ") else { continue };
            let typed = line[start..].split(['|', '>']).next().unwrap();
            let words = shell_words(typed);
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{path}: `{typed}` is no command: {error}");
            }
        }
    }
}

/// Splits a line as a shell would, knowing quotes only.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => {
                // An example like `acpx --agent "holdfast acp demo" exec` is cut at our name, inside its quotes.
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

#[test]
fn global_options_work_on_either_side_of_the_command() {
    for words in [
        ["holdfast", "--root", "/r", "--json", "session", "list"],
        ["holdfast", "session", "list", "--root", "/r", "--json"],
    ] {
        let cli = Cli::try_parse_from(words).unwrap();
        assert_eq!(cli.global.root.as_deref(), Some(std::path::Path::new("/r")));
        assert_eq!(cli.global.format(), Format::Json);
    }
    assert!(Cli::try_parse_from(["holdfast", "status", "--json", "--format", "tsv"]).is_err());
    assert_eq!(Cli::try_parse_from(["holdfast", "status", "--format", "tsv"]).unwrap().global.format(), Format::Tsv);
}

#[test]
fn the_wrapper_gets_its_arguments_untouched() {
    let cli = Cli::try_parse_from(["holdfast", "lease-exec", "--grace-ms", "5", "--", "prog", "--json", "-v"]).unwrap();
    let Command::LeaseExec(wrapper) = cli.command else { panic!("{cli:?}") };
    assert_eq!(wrapper.arguments, ["--grace-ms", "5", "--", "prog", "--json", "-v"]);
    assert!(!cli.global.json);
}

#[test]
fn every_shell_has_a_script_that_asks_this_program() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
        let script = String::from_utf8(completion_script(shell).unwrap()).unwrap();
        assert!(script.contains("HOLDFAST_COMPLETE") && script.contains("holdfast"), "{shell:?}: {script}");
    }
}
