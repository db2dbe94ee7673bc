//! The fake agent as a process: `fake-agent SCRIPT`, or the script's path in `FAKE_AGENT_SCRIPT`.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let path = env::args_os().nth(1).or_else(|| env::var_os("FAKE_AGENT_SCRIPT")).map(PathBuf::from);
    let Some(path) = path else {
        eprintln!("usage: fake-agent SCRIPT");
        return ExitCode::from(2);
    };
    match holdfast_tests::fake_agent::run(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake agent: failed to follow `{}`: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
