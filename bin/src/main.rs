//! The program: hands over to the library.

use std::process::ExitCode;

use holdfast::cli::{self, Cli, Command};
use holdfast::commands::{self, Place};
use holdfast::render::{Exit, Failure, Renderer};
use holdfast::{bridge, daemon, demo_agent, lease_exec};
use holdfast_actors::leases::wrapper;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let _program = arguments.next();
    // Before any runtime or argument parser: what runs beside every session stays small and single-threaded.
    match arguments.next() {
        Some(first) if first == wrapper::SUBCOMMAND => return lease_exec::run(arguments),
        Some(first) if first == demo_agent::SUBCOMMAND => return demo_agent::run(demo_agent::state_dir()),
        _ => {}
    }
    cli::complete();
    let cli = cli::parse();
    let mut renderer = Renderer::standard(cli.global.format(), cli.global.color);
    run(&cli, &mut renderer).unwrap_or_else(|failure| renderer.failure(&failure)).into()
}

fn run(cli: &Cli, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let place = Place::find(&cli.global)?;
    match &cli.command {
        Command::Daemon(arguments) => daemon::run(arguments, &place, &cli.global, renderer),
        Command::Run(arguments) => commands::turn(arguments, &place, &cli.global, renderer),
        Command::Acp(arguments) => bridge::run(arguments, &place, renderer),
        command => commands::run(command, &place, renderer)
            .unwrap_or_else(|| Err(Failure::new(Exit::Failed, "this command is not part of this build"))),
    }
}
