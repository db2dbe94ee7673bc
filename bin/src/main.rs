//! The program: hands over to the library.

use std::process::ExitCode;

use holdfast::cli::{Cli, Command, Parser};
use holdfast::commands::{self, Place};
use holdfast::demo_agent;
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
    if matches!(cli.command, Command::DemoAgent) {
        return demo_agent::run(demo_agent::state_dir());
    }
    let mut renderer = Renderer::standard(cli.global.format(), cli.global.color);
    run(&cli, &mut renderer).unwrap_or_else(|failure| renderer.failure(&failure)).into()
}

fn run(cli: &Cli, renderer: &mut Renderer) -> Result<Exit, Failure> {
    if matches!(cli.command, Command::Daemon) {
        return holdfast::daemon::run(&cli.global, renderer);
    }
    let place = Place::find(&cli.global)?;
    commands::run(&cli.command, &place, renderer)
        .unwrap_or_else(|| Err(Failure::new(Exit::Failed, "this command is not part of this build")))
}
