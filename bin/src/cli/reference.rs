//! The reference page of the command line, made from the definitions so that it can't say anything else.

use std::fmt::Write;

use clap::CommandFactory;
use holdfast_protocol::error::ErrorKind;

use super::definition::Cli;
use crate::render::Exit;

/// The width that help is wrapped to on the page.
const PAGE_WIDTH: usize = 118;

/// Returns `docs/src/reference/cli.md`: the help of every visible command, in the order of the program's own help.
pub fn reference_page() -> String {
    let mut root = Cli::command().term_width(PAGE_WIDTH);
    root.build();
    let mut page = String::from(
        "# Command line\n\n<!-- Made from the definitions in bin/src/cli; `just docs` writes it, a test compares it. -->\n\n\
         This is what `--help` says, command by command.\n",
    );
    push_help(&mut page, &root, "holdfast", 2);
    page.push_str("\nThe global options go with every command below and are not repeated.\n");
    push_subcommands(&mut page, &root, "holdfast", 3);
    page
}

/// Returns `docs/src/reference/exit-codes.md`.
pub fn exit_codes_page() -> String {
    let mut page = String::from(
        "# Exit codes\n\n<!-- Made from bin/src/render/exit.rs; `just docs` writes it, a test compares it. -->\n\n\
         Numbers are never given a new meaning.\n\n| code | meaning |\n| ---: | --- |\n",
    );
    for (exit, meaning) in Exit::ALL {
        push_line(&mut page, format_args!("| {} | {meaning} |", exit.code()));
    }
    page.push_str(
        "\n`holdfast run` ends with the turn's stop reason: 0 when the agent ended its turn, 4 when it refused, 130 when \
         the turn was cancelled, 1 when it failed.\nA reader that closes the pipe (`| head`) ends a command with 0 and \
         without a word.\n",
    );
    page
}

/// Returns `docs/src/reference/errors.md`: each kind with its meaning, from the schema that the wire uses.
pub fn errors_page() -> String {
    let mut page = String::from(
        "# Errors\n\n<!-- Made from protocol/src/error.rs; `just docs` writes it, a test compares it. -->\n\n\
         An error of the socket is a JSON-RPC error object whose `data` is `{ kind, message, remedy?, retryable, path? }`. Kinds \
         are stable; messages may improve. `retryable` means that the same request may succeed later without any change; after \
         `timeout` and `interrupted`, whose outcome is unknown, repeat it with the same idempotency key.\n\n\
         | kind | means | code | retryable | exit code |\n| --- | --- | ---: | --- | ---: |\n",
    );
    let schema = schemars::schema_for!(ErrorKind).to_value();
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        let Ok(kind) = serde_json::from_value::<ErrorKind>(variant["const"].clone()) else { continue };
        let meaning = variant["description"].as_str().unwrap_or_default().trim_end_matches('.');
        let retryable = if kind.retryable() { "yes" } else { "no" };
        let exit = Exit::of_kind(kind).code();
        push_line(
            &mut page,
            format_args!("| `{}` | {meaning} | {} | {retryable} | {exit} |", kind.name(), kind.code()),
        );
    }
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

fn push_line(page: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = writeln!(page, "{line}");
}
