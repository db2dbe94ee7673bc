//! Help as the terminal needs it.

use clap::{CommandFactory, FromArgMatches};

use super::definition::Cli;

/// Returns the definitions, with each paragraph of the long help on one line: it is wrapped to the terminal's width when it
/// is shown, and a width of the source in it would break it twice. Examples, which are indented, stay as they are.
pub fn command() -> clap::Command {
    flow(Cli::command())
}

/// Reads the command line. Ends the program with help, the version or what is wrong.
pub fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn flow(command: clap::Command) -> clap::Command {
    let long = command.get_long_about().map(|long| flowed(&long.to_string()));
    let command = match long {
        Some(long) => command.long_about(long),
        None => command,
    };
    command.mut_subcommands(flow)
}

fn flowed(text: &str) -> String {
    let mut flowed = String::with_capacity(text.len());
    let mut in_paragraph = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if in_paragraph && is_prose {
            flowed.push(' ');
        } else if !flowed.is_empty() {
            flowed.push('\n');
        }
        flowed.push_str(line);
        in_paragraph = is_prose;
    }
    flowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_one_line_and_examples_keep_theirs() {
        let text = "Do it\n\nOne thing\nand another.\n\n    holdfast a\n    holdfast b\n\nLast\nwords";
        assert_eq!(flowed(text), "Do it\n\nOne thing and another.\n\n    holdfast a\n    holdfast b\n\nLast words");
    }

    #[test]
    fn no_line_of_help_is_broken_twice() {
        let mut command = command().term_width(80);
        command.build();
        let run = command.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        assert!(run.contains("\n    holdfast run demo \"hello\"\n"), "{run}");
        let prose = run.lines().skip(2).take_while(|line| !line.is_empty()).collect::<Vec<_>>();
        let (_last, full) = prose.split_last().unwrap();
        assert!(full.iter().all(|line| line.len() > 60), "{run}");
    }
}
