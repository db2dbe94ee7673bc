//! The definitions, one struct a command. Help texts start with an imperative; long help holds an example.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::completions::Shell;
use crate::commands::candidates;
use crate::render::{ColorChoice, Format};

/// Keep what AI agents on this machine must not lose
///
/// One daemon owns sessions, agent processes and configuration; what it acknowledged survives kill -9 and power loss.
/// The shortest useful thing:
///
///     holdfast run demo "hello"
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, propagate_version = false, disable_help_subcommand = true)]
#[command(arg_required_else_help = true, max_term_width = 118, verbatim_doc_comment)]
#[command(after_help = "Exit codes: 0 done · 1 failed · 2 usage · 3 not found · 4 refused · 5 conflict · \
                        6 daemon not reachable · 7 damaged store · 130 interrupted")]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArguments,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Args)]
pub struct GlobalArguments {
    /// Use the install root DIR instead of $HOLDFAST_ROOT or ~/.holdfast
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Global options")]
    pub root: Option<PathBuf>,
    /// Write JSON (short for --format json; `run` streams JSON lines)
    #[arg(long, global = true, conflicts_with = "format", help_heading = "Global options")]
    pub json: bool,
    /// Choose how the answer is written
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Global options")]
    pub format: Option<Format>,
    /// Choose when to colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, help_heading = "Global options")]
    pub color: ColorChoice,
    /// Say more; twice says most
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
}

impl GlobalArguments {
    /// Returns the format that the options ask for.
    pub fn format(&self) -> Format {
        match (self.json, self.format) {
            (true, _) => Format::Json,
            (false, Some(format)) => format,
            (false, None) => Format::default(),
        }
    }
}

/// The commands, in the order in which a newcomer meets them.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Command {
    /// Make an install root with a configuration and the demonstration agent
    ///
    /// Replaces nothing: a root that has a configuration is a conflict. `run` makes a root by itself when there is none.
    ///
    ///     holdfast --root /srv/agents init
    #[command(verbatim_doc_comment)]
    Init,
    /// Send a prompt to an agent and show the turn as it happens
    ///
    /// Starts the daemon if none runs. The prompt comes from the arguments, from --file, or from standard input. Ends
    /// with the turn's stop reason: 0 when the agent ended its turn, 1 when it refused or failed, 130 when it was
    /// cancelled. The answer goes to standard output, all else to standard error. Ctrl-C cancels the turn, a second one
    /// leaves at once.
    ///
    ///     holdfast run demo "hello"
    ///     git diff | holdfast run claude "review this" - --session review
    #[command(verbatim_doc_comment)]
    Run(RunArguments),
    /// Speak ACP on standard input and output, for an editor
    ///
    /// The session lives in the daemon: closing the editor detaches from it and ends nothing.
    ///
    ///     acpx --agent "holdfast acp demo" exec "hello"
    #[command(verbatim_doc_comment)]
    Acp(AcpArguments),
    /// Look at sessions and add to them
    #[command(subcommand, arg_required_else_help = true)]
    Session(SessionCommand),
    /// Look at agents and find installed ones
    #[command(subcommand, arg_required_else_help = true)]
    Agent(AgentCommand),
    /// Look at the leases of agent processes
    #[command(subcommand, arg_required_else_help = true)]
    Lease(LeaseCommand),
    /// Show the daemon, its surfaces and what they do
    ///
    ///     holdfast status --json | jq -r '.surfaces[] | select(.state != "up") | .name'
    #[command(verbatim_doc_comment)]
    Status,
    /// Run the daemon in the foreground until SIGTERM
    ///
    /// SIGHUP reloads. A second daemon on the same root is refused with exit code 5.
    ///
    ///     holdfast --root /srv/agents daemon
    #[command(verbatim_doc_comment)]
    Daemon(DaemonArguments),
    /// Restart all surfaces with the configuration as it is on disk now
    ///
    /// An invalid configuration changes nothing. Turns, adapters and connections go on.
    ///
    ///     holdfast reload
    #[command(verbatim_doc_comment)]
    Reload,
    /// Stop the daemon in order
    ///
    /// Waits until it has gone. Agent processes are ended; their sessions stay resumable.
    ///
    ///     holdfast stop
    #[command(verbatim_doc_comment)]
    Stop,
    /// Call any method of the socket and print its result
    ///
    ///     holdfast rpc session/list '{"limit": 5}'
    ///     holdfast rpc rpc/discover | jq -r '.methods[].name'
    #[command(verbatim_doc_comment)]
    Rpc(RpcArguments),
    /// Print completions for a shell
    ///
    /// They know the commands, the agents of config.toml and the sessions that there are.
    ///
    ///     holdfast completions bash > ~/.local/share/bash-completion/completions/holdfast
    #[command(verbatim_doc_comment)]
    Completions(CompletionsArguments),
    /// Run a program under a process lease; the daemon starts adapters through it
    #[command(hide = true)]
    LeaseExec(LeaseExecArguments),
    /// Speak ACP as the demonstration agent
    #[command(hide = true)]
    DemoAgent,
}

/// `holdfast run`
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Agent to ask, as config.toml names it
    #[arg(add = ArgValueCompleter::new(candidates::agents))]
    pub agent: String,
    /// Prompt; several words are joined. `-`, or none where input is piped, reads standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// Continue the session with this id, or continue or make the one with this name
    #[arg(short, long, value_name = "NAME|ID", conflicts_with = "resume", add = ArgValueCompleter::new(candidates::sessions))]
    pub session: Option<String>,
    /// Continue the agent's latest session
    #[arg(long)]
    pub resume: bool,
    /// Add a file to the prompt; may be given more than once
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Let the agent work in DIR instead of the current directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cwd: Option<PathBuf>,
    /// Leave once the prompt is on disk; the turn goes on in the daemon
    #[arg(long)]
    pub no_wait: bool,
}

/// `holdfast daemon`
#[derive(Debug, Args)]
pub struct DaemonArguments {
    /// Leave the terminal's session, and standard output and error once it serves: for whoever starts it on the side.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `holdfast acp`
#[derive(Debug, Args)]
pub struct AcpArguments {
    /// Agent to attach to, as config.toml names it
    #[arg(add = ArgValueCompleter::new(candidates::agents))]
    pub agent: String,
}

/// `holdfast agent …`
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum AgentCommand {
    /// List the configured agents
    ///
    ///     holdfast agent list
    #[command(verbatim_doc_comment)]
    List,
    /// Find installed agents and offer to add them
    ///
    /// Looks on PATH for programs that speak ACP, and shows what would be added to config.toml. Nothing is written
    /// without --write.
    ///
    ///     holdfast agent detect --write
    #[command(verbatim_doc_comment)]
    Detect {
        /// Add what was found and is not configured yet
        #[arg(long)]
        write: bool,
    },
    /// Add an agent by its command
    ///
    ///     holdfast agent add mine -- npx my-agent --acp
    #[command(verbatim_doc_comment)]
    Add(AgentAddArguments),
}

/// `holdfast agent add`
#[derive(Debug, Args)]
pub struct AgentAddArguments {
    /// Name to use for it: 1 to 64 characters of a-z, 0-9, `_`, `-`
    pub alias: String,
    /// Program and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
}

/// `holdfast session …`
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum SessionCommand {
    /// List sessions, latest first
    ///
    ///     holdfast session list --agent demo --limit 5
    ///     holdfast session list --json | jq -r '.[0].session_id'
    #[command(verbatim_doc_comment)]
    List(SessionListArguments),
    /// Show one session
    ///
    /// SESSION is an id, the start of one, a short id as `session list` shows it, or the session's name.
    ///
    ///     holdfast session show 0199a3…c2
    #[command(verbatim_doc_comment)]
    Show(SessionShowArguments),
    /// Make a chat session, for a runtime that appends to it
    ///
    ///     holdfast session new demo --key nightly
    #[command(verbatim_doc_comment)]
    New(SessionNewArguments),
    /// Append events to a session's transcript
    ///
    /// Events are JSON, one a line or as one array, from the argument or from standard input. Returns when they are on
    /// disk. With an idempotency key, the same event sent twice is kept once.
    ///
    ///     echo '{"kind":"message","role":"user","body":{"text":"hi"}}' | holdfast session append 0199a3…c2
    #[command(verbatim_doc_comment)]
    Append(SessionAppendArguments),
    /// Print a session's events in order
    ///
    ///     holdfast session events 0199a3…c2 --after 120 --limit 50 --format jsonl
    #[command(verbatim_doc_comment)]
    Events(SessionEventsArguments),
}

/// `holdfast session list`
#[derive(Debug, Args)]
pub struct SessionListArguments {
    /// Show only sessions of this agent
    #[arg(long, value_name = "AGENT", add = ArgValueCompleter::new(candidates::agents))]
    pub agent: Option<String>,
    /// Show at most N sessions
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// `holdfast session show`
#[derive(Debug, Args)]
pub struct SessionShowArguments {
    /// Session id, or enough of it, or its name
    #[arg(add = ArgValueCompleter::new(candidates::sessions))]
    pub session: String,
}

/// `holdfast session new`
#[derive(Debug, Args)]
pub struct SessionNewArguments {
    /// Agent that the session is for
    #[arg(add = ArgValueCompleter::new(candidates::agents))]
    pub agent: String,
    /// Name to find the session by; where a session has it already, that one is returned
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

/// `holdfast session append`
#[derive(Debug, Args)]
pub struct SessionAppendArguments {
    /// Session id, or enough of it, or its name
    #[arg(add = ArgValueCompleter::new(candidates::sessions))]
    pub session: String,
    /// Events as JSON; `-` or none reads standard input
    pub events: Option<String>,
}

/// `holdfast session events`
#[derive(Debug, Args)]
pub struct SessionEventsArguments {
    /// Session id, or enough of it, or its name
    #[arg(add = ArgValueCompleter::new(candidates::sessions))]
    pub session: String,
    /// Start behind the event with this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Print at most N events
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// `holdfast lease …`
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum LeaseCommand {
    /// List process leases, latest first
    ///
    /// Each agent process runs under a lease: the record that makes its tree ours to end.
    ///
    ///     holdfast lease list --open
    ///     holdfast lease list --json | jq -r '.[] | select(.state == "lost") | .last_error'
    #[command(verbatim_doc_comment)]
    List(LeaseListArguments),
    /// Show one lease
    ///
    /// LEASE is an id, the start of one, or a short id as `lease list` shows it.
    ///
    ///     holdfast lease show 0199a3…c2
    #[command(verbatim_doc_comment)]
    Show(LeaseArguments),
    /// Check a lease against the live processes, and signal nothing
    ///
    /// Shows each check and what was found. Exits with 4 when a check can't be made.
    ///
    ///     holdfast lease verify 0199a3…c2
    #[command(verbatim_doc_comment)]
    Verify(LeaseArguments),
    /// Look after leases that earlier runs of the daemon left open
    ///
    /// The daemon does this by itself at its start. Only verified trees are ended; what can't be verified is kept.
    ///
    ///     holdfast lease reap --dry-run
    #[command(verbatim_doc_comment)]
    Reap(LeaseReapArguments),
}

/// `holdfast lease list`
#[derive(Debug, Args)]
pub struct LeaseListArguments {
    /// Show only leases of this agent
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
    /// Show only leases that are not over
    #[arg(long)]
    pub open: bool,
    /// Show at most N leases
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// `holdfast lease show`, `holdfast lease verify`
#[derive(Debug, Args)]
pub struct LeaseArguments {
    /// Lease id, or enough of it
    pub lease: String,
}

/// `holdfast lease reap`
#[derive(Debug, Args)]
pub struct LeaseReapArguments {
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `holdfast rpc`
#[derive(Debug, Args)]
pub struct RpcArguments {
    /// Method, such as session/list
    pub method: String,
    /// Params as JSON; `-` reads standard input, none means {}
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    pub params: Option<String>,
}

/// `holdfast completions`
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// Shell to print them for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `holdfast lease-exec`: read by the wrapper itself, which keeps its own small grammar.
#[derive(Debug, Args)]
pub struct LeaseExecArguments {
    /// Everything behind `lease-exec`, untouched.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0.., value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}
