//! The command line: what may be typed. What a command does lives in modules of its own.

mod completions;
mod definition;
mod help;

#[cfg(test)]
mod tests;

pub use completions::{Shell, complete, completion_script};
pub use definition::{
    AcpArguments, AgentAddArguments, AgentCommand, Cli, Command, CompletionsArguments, DaemonArguments,
    GlobalArguments, LeaseArguments, LeaseCommand, LeaseExecArguments, LeaseListArguments, LeaseReapArguments,
    RpcArguments, RunArguments, SessionAppendArguments, SessionCommand, SessionEventsArguments, SessionListArguments,
    SessionNewArguments, SessionShowArguments,
};
pub use help::{command, parse};
