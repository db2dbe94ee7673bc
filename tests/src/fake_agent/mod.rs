//! A scriptable agent for tests: does on stdio what the script says, also what no good agent does.
//!
//! A test writes a [`Script`] to a file, runs the `fake-agent` binary with that file as its only argument, and afterwards
//! reads the [`Trace`] of every frame that the agent received.

mod run;
mod script;
mod trace;
mod turn;

pub use run::run;
pub use script::{Outcome, Permission, Replay, Script, Spawn, Step, chunk, monotonic_ns, raw};
pub use trace::{Entry, Trace};
