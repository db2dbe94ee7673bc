//! The program: hands over to the library.

use std::process::ExitCode;

use holdfast::cli::{Cli, Command, Parser, completion_script};
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
    run(cli, &mut renderer).unwrap_or_else(|failure| renderer.failure(&failure)).into()
}

fn run(cli: Cli, renderer: &mut Renderer) -> Result<Exit, Failure> {
    match cli.command {
        Command::Daemon => holdfast::daemon::run(&cli.global, renderer),
        Command::Completions(arguments) => {
            renderer.verbatim(&completion_script(arguments.shell))?;
            Ok(Exit::Ok)
        }
        _ => Err(Failure::new(Exit::Failed, "this command is not part of this build")),
    }
}
