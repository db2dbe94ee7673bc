//! The command line: what may be typed. What a command does lives in modules of its own.

mod completions;
mod definition;

#[cfg(test)]
mod tests;

pub use clap::Parser;

pub use completions::completion_script;
pub use definition::{
    AcpArguments, AgentAddArguments, AgentCommand, Cli, Command, CompletionsArguments, DaemonArguments,
    GlobalArguments, LeaseArguments, LeaseCommand, LeaseExecArguments, LeaseListArguments, LeaseReapArguments,
    RpcArguments, RunArguments, SessionAppendArguments, SessionCommand, SessionEventsArguments, SessionListArguments,
    SessionNewArguments, SessionShowArguments,
};
