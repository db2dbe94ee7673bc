//! Shell completions, made from the definitions.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::definition::Cli;

/// Returns the completion script for `shell`. Hidden commands are left out.
pub fn completion_script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut without_hidden(&Cli::command()), "holdfast", &mut script);
    script
}

/// Returns the command with its visible subcommands only: clap_complete offers hidden ones too.
fn without_hidden(command: &clap::Command) -> clap::Command {
    clap::Command::new("holdfast")
        .disable_help_subcommand(true)
        .args(command.get_arguments().cloned())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned())
}
