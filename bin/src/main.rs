//! The program: hands over to the library.

use std::process::ExitCode;

use holdfast::cli::{Cli, Parser};
use holdfast::commands::{self, Place};
use holdfast::render::{Exit, Failure, Renderer};
use holdfast_actors::leases::wrapper::SUBCOMMAND;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let _program = arguments.next();
    // Before any runtime or argument parser: the wrapper stays small and single-threaded.
    if arguments.next().is_some_and(|first| first == SUBCOMMAND) {
        return holdfast::lease_exec::run(arguments);
    }
    let cli = Cli::parse();
    let mut renderer = Renderer::standard(cli.global.format(), cli.global.color);
    let outcome = Place::find(&cli.global).and_then(|place| {
        commands::run(&cli.command, &place, &mut renderer)
            .unwrap_or_else(|| Err(Failure::new(Exit::Failed, "this program was built without that command")))
    });
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => renderer.failure(&failure).into(),
    }
}
