//! Agents as processes under leases.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::{AgentAlias, SessionId};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::ChildStderr;

use crate::acp::launcher::{AgentCommand, AgentLauncher, EndTree, LaunchError, Launched};
use crate::config::ConfigHandle;
use crate::leases::{self, ExitWatch, LaunchPlan, LeaseLauncher, LeasesConfig, LeasesHandle, ProcessExit};

/// The longest part of a line of an agent's complaints that goes into the log; the rest of it does not.
const COMPLAINT_BYTES_MAX: u64 = 4 * 1024;

/// Starts agents under leases.
pub struct LeasedAgents {
    launcher: LeaseLauncher,
    config: ConfigHandle,
}

impl LeasedAgents {
    /// Makes the launcher.
    pub fn new(launcher: LeaseLauncher, config: ConfigHandle) -> Self {
        Self { launcher, config }
    }

    async fn start(&self, command: AgentCommand, session_id: Option<SessionId>) -> Result<Launched, LaunchError> {
        let kill_grace = self.config.section::<LeasesConfig>().await.unwrap_or_default().kill_grace();
        let alias = command.alias.clone();
        let program = command.argv.first().cloned().unwrap_or_default();
        let plan = LaunchPlan {
            agent: alias.to_string(),
            session_id,
            argv: command.argv.into_iter().map(OsString::from).collect(),
            directory: Some(existing_directory(command.cwd)),
            environment: command.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            kill_grace,
        };
        let leased = self.launcher.launch(plan).await.map_err(|error| not_launched(&alias, &program, error))?;
        let process = leased.process;
        tokio::spawn(log_complaints(process.stderr, alias.to_string()));
        Ok(Launched {
            lease_id: leased.lease_id,
            stdin: Box::new(process.stdin),
            stdout: Box::new(process.stdout),
            exited: Box::pin(how_it_ended(process.exit)),
            end: end_of(self.launcher.leases().clone(), leased.lease_id),
        })
    }
}

impl AgentLauncher for LeasedAgents {
    fn launch(
        &self,
        command: AgentCommand,
        session_id: Option<SessionId>,
    ) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        Box::pin(self.start(command, session_id))
    }
}

fn not_launched(alias: &AgentAlias, program: &str, error: leases::LaunchError) -> LaunchError {
    let failed = |why: &str| format!("agent `{alias}` (`{program}`) could not be started: {why}");
    match error {
        // Not the agent's fault, so what to do is not about the agent.
        leases::LaunchError::Lease(error) => {
            let WireError { kind, message, remedy, .. } = error.into();
            LaunchError { message: failed(&message), remedy, kind }
        }
        error @ (leases::LaunchError::Spawn(_) | leases::LaunchError::NoCommand { .. }) => {
            let remedy =
                format!("check `command` of [agents.{alias}] in config.toml; `holdfast agent detect` finds agents");
            LaunchError {
                message: failed(&crate::store::chain(&error)),
                remedy: Some(remedy),
                kind: ErrorKind::AgentFailed,
            }
        }
        error @ leases::LaunchError::Interrupted { .. } => {
            LaunchError { message: failed(&error.to_string()), remedy: None, kind: ErrorKind::Interrupted }
        }
    }
}

/// A session's directory may be gone by the time it is resumed; the agent then starts where it can say so itself.
fn existing_directory(directory: PathBuf) -> PathBuf {
    if directory.is_dir() { directory } else { PathBuf::from("/") }
}

async fn how_it_ended(mut exit: ExitWatch) -> String {
    match exit.adapter_ended().await {
        Some(ProcessExit { exit_code: Some(code), .. }) => format!("exit status {code}"),
        Some(ProcessExit { exit_signal: Some(signal), .. }) => format!("signal {signal}"),
        Some(ProcessExit { exit_code: None, exit_signal: None }) | None => "its wrapper was killed".to_owned(),
    }
}

fn end_of(leases: LeasesHandle, lease_id: holdfast_protocol::ids::LeaseId) -> EndTree {
    Arc::new(move || {
        let leases = leases.clone();
        Box::pin(async move {
            if let Err(error) = leases.close(lease_id, None).await {
                tracing::error!(%lease_id, %error, "an agent's process tree could not be ended; its lease stays open");
            }
        })
    })
}

/// Begins the log line of what an agent wrote to its standard error.
pub const COMPLAINT: &str = "agent says: ";

/// What an agent complains about goes into the log, line by line.
async fn log_complaints(stderr: ChildStderr, agent: String) {
    let mut lines = BufReader::new(stderr);
    loop {
        match next_complaint(&mut lines).await {
            Ok(None) => return,
            Ok(Some(text)) if text.is_empty() => {}
            Ok(Some(text)) => tracing::info!(agent, "{COMPLAINT}{text}"),
            Err(error) => {
                tracing::debug!(agent, %error, "failed to read what the agent complains about");
                return;
            }
        }
    }
}

/// Returns the next line, a long one cut behind a word: of a secret that is cut in two, nobody knows the second part.
async fn next_complaint(lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut read = (&mut *lines).take(COMPLAINT_BYTES_MAX).read_until(b'\n', &mut line).await?;
    if read == 0 {
        return Ok(None);
    }
    if line.len() as u64 == COMPLAINT_BYTES_MAX && !line.ends_with(b"\n") {
        let last_word = line.iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
        line.truncate(last_word);
        line.extend_from_slice("… [cut]".as_bytes());
        let mut rest = Vec::new();
        while read > 0 && !rest.ends_with(b"\n") {
            rest.clear();
            read = (&mut *lines).take(COMPLAINT_BYTES_MAX).read_until(b'\n', &mut rest).await?;
        }
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_complaint_is_cut_behind_a_word_and_the_next_one_is_whole() {
        let filler = "x".repeat(4_080);
        let said = format!("short\n{filler} sk-live-AAAA1111BBBB2222 {filler}{filler}\r\n\nnext\nlast without end");
        let mut lines = said.as_bytes();
        let mut complaints = Vec::new();
        while let Some(complaint) = next_complaint(&mut lines).await.unwrap() {
            complaints.push(complaint);
        }
        assert_eq!(complaints, ["short", &format!("{filler} … [cut]"), "", "next", "last without end"]);
    }
}
