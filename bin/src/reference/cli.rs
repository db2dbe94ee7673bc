//! The page of the command line.

use super::{marker, push_line};
use crate::cli::command;

/// The width that help is wrapped to on the page.
const PAGE_WIDTH: usize = 118;

/// Returns `docs/src/reference/cli.md`: the help of every visible command, in the order of the program's own help.
pub(super) fn page() -> String {
    let mut root = command().term_width(PAGE_WIDTH);
    root.build();
    let mut page = format!(
        "# Command line\n\n{}\n\nThis is what `--help` says, command by command.\n",
        marker("the definitions in bin/src/cli")
    );
    push_help(&mut page, &root, "holdfast", 2);
    page.push_str("\nThe global options go with every command below and are not repeated.\n");
    push_subcommands(&mut page, &root, "holdfast", 3);
    page
}

fn push_subcommands(page: &mut String, command: &clap::Command, path: &str, level: usize) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        let own = sub.clone().mut_args(|argument| {
            let global = argument.is_global_set();
            if global { argument.hide(true) } else { argument }
        });
        push_help(page, &own, &path, level);
        push_subcommands(page, sub, &path, level + 1);
    }
}

fn push_help(page: &mut String, command: &clap::Command, path: &str, level: usize) {
    let help = command.clone().term_width(PAGE_WIDTH).bin_name(path).render_long_help().to_string();
    let text = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    push_line(page, format_args!("\n{} `{path}`\n\n```text\n{}\n```", "#".repeat(level), text.trim_end()));
}
