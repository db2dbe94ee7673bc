//! The wrapper `holdfast lease-exec`: runs one adapter and answers for everything it starts.
//!
//! It leads a session and process group of its own and is a child subreaper, so whatever the adapter starts stays below
//! it, whether it forks twice, calls setsid or clears its environment. It passes SIGTERM, SIGINT and SIGHUP to the group
//! and leaves stdio alone. When its parent dies, or when the adapter ends and leaves something behind, what is left gets
//! TERM, time, KILL. It exits with the adapter's status, but only when its last descendant has gone.
//!
//! It knows nothing of sessions. It is synchronous and single-threaded, as one of it runs beside every adapter.

mod arguments;
mod launch;
mod signals;
mod status;
mod supervise;

use std::ffi::OsString;
use std::process::ExitCode;

use holdfast_actors::leases::wrapper::{EXIT_WRAPPER_FAILED, StatusLine};

use self::arguments::Arguments;
use self::launch::{Launched, launch};
use self::status::StatusPipe;

/// Runs the wrapper; `arguments` is everything after `lease-exec`. Returns when the whole tree has gone.
///
/// An adapter that a signal ended makes this process end by the same signal, so this may not return at all.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::parse(arguments) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("lease-exec: {text}");
            return ExitCode::from(EXIT_WRAPPER_FAILED);
        }
    };
    // Whatever else was inherited by accident must not reach the adapter; our own status pipe included.
    launch::close_on_exec_from(3);
    let mut status = StatusPipe::new(arguments.status_fd);
    match launch(&arguments) {
        Ok(Launched { adapter, parent, signals }) => {
            let own_pid = rustix::process::getpid().as_raw_pid();
            status.report(&launch::started(own_pid, adapter));
            launch::let_go_of_stdio();
            let outcome = supervise::Supervisor::new(own_pid, adapter, &arguments, parent).run(&signals, &mut status);
            supervise::exit_like(outcome)
        }
        Err(failure) => {
            status.report(&StatusLine::ExecFailed {
                program: arguments.program.to_string_lossy().into_owned(),
                errno: failure.errno,
                message: failure.message,
            });
            ExitCode::from(failure.exit_code)
        }
    }
}
