//! What the quick commands do: blocking, without a runtime.
//!
//! A command asks the daemon over the socket, hands what it got to the renderer, and returns the exit code. One that only
//! reads asks whoever [`answers`]; nothing here opens a database to write. `init` and `agent` also write `config.toml`, as a
//! person with an editor would.

mod agent;
pub mod candidates;
mod connection;
mod daemon;
mod init;
mod lease;
mod reading;
mod rpc;
mod run;
mod session;
mod start;
mod status;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use holdfast_stores::install_root::InstallRoot;

pub use connection::{AcpStream, Connection, connect};
pub use reading::{Answers, Asked, Files, answers};
pub use run::turn;
pub use session::find as find_session;
pub use start::connect_or_start;

use crate::cli::{AgentCommand, Command, GlobalArguments, LeaseCommand, SessionCommand, Shell, completion_script};
use crate::render::{Exit, Failure, Renderer};

/// Where a command works.
#[derive(Debug)]
pub struct Place {
    /// The install root.
    pub root: InstallRoot,
    /// The user's home directory, for showing paths below it with `~`.
    pub home: Option<PathBuf>,
}

impl Place {
    /// Finds the root from `--root` and the environment.
    ///
    /// # Errors
    /// A usage failure when there is no root to be had.
    pub fn find(global: &GlobalArguments) -> Result<Self, Failure> {
        let home = std::env::home_dir();
        let environment = std::env::var_os("HOLDFAST_ROOT");
        let root = InstallRoot::resolve(global.root.as_deref(), environment.as_deref(), home.as_deref())
            .map_err(|error| Failure::caused(Exit::of_kind(error.kind()), &error).hint(error.remedy()))?;
        Ok(Self { root, home })
    }

    /// Returns the root as people write it.
    pub fn shown(&self) -> String {
        self.root.shown(self.home.as_deref())
    }
}

/// Runs `command` if it is one of this module; returns nothing for those that stay: `run`, `acp`, `daemon` and the hidden ones.
pub fn run(command: &Command, place: &Place, renderer: &mut Renderer) -> Option<Result<Exit, Failure>> {
    Some(match command {
        Command::Status => status::status(place, renderer),
        Command::Reload => daemon::reload(place, renderer),
        Command::Stop => daemon::stop(place, renderer),
        Command::Rpc(arguments) => rpc::rpc(arguments, place, renderer),
        Command::Session(SessionCommand::List(arguments)) => session::list(arguments, place, renderer),
        Command::Session(SessionCommand::Show(arguments)) => session::show(arguments, place, renderer),
        Command::Session(SessionCommand::New(arguments)) => session::new(arguments, place, renderer),
        Command::Session(SessionCommand::Append(arguments)) => session::append(arguments, place, renderer),
        Command::Session(SessionCommand::Events(arguments)) => session::events(arguments, place, renderer),
        Command::Lease(LeaseCommand::List(arguments)) => lease::list(arguments, place, renderer),
        Command::Lease(LeaseCommand::Show(arguments)) => lease::show(arguments, place, renderer),
        Command::Lease(LeaseCommand::Verify(arguments)) => lease::verify(arguments, place, renderer),
        Command::Lease(LeaseCommand::Reap(arguments)) => lease::reap(arguments, place, renderer),
        Command::Agent(AgentCommand::List) => agent::list(place, renderer),
        Command::Completions(arguments) => completions(arguments.shell, renderer),
        Command::Agent(AgentCommand::Detect { write }) => agent::detect(*write, place, renderer),
        Command::Agent(AgentCommand::Add(arguments)) => agent::add(arguments, place, renderer),
        Command::Init => init::new_root(place, renderer),
        Command::Run(_) | Command::Acp(_) | Command::Daemon(_) | Command::LeaseExec(_) | Command::DemoAgent => {
            return None;
        }
    })
}

fn completions(shell: Shell, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let script = completion_script(shell).map_err(|error| Failure::caused(Exit::Failed, &error))?;
    renderer.verbatim(&script).map(|()| Exit::Ok)
}
