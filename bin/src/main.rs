//! The program: hands over to the library.

use std::process::ExitCode;

use holdfast_actors::leases::wrapper::SUBCOMMAND;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let _program = arguments.next();
    // Before any runtime or argument parser: the wrapper stays small and single-threaded.
    if arguments.next().is_some_and(|first| first == SUBCOMMAND) {
        return holdfast::lease_exec::run(arguments);
    }
    ExitCode::FAILURE
}
