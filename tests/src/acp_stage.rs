//! A real daemon with a scripted agent named `fake`, and a look into what the daemon stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_protocol::client::ClientError;
use rusqlite::{Connection, OpenFlags, params};
use serde_json::Value;
use tempfile::TempDir;

use crate::acp_socket::AcpSocket;
use crate::daemon::{DaemonOptions, TestDaemon, executable, short_directory};
use crate::eventually::{PATIENCE, eventually};
use crate::fake_agent::{Script, Trace};

/// A daemon, the script of its agent, and the directory where both meet.
pub struct AcpStage {
    /// The daemon.
    pub daemon: TestDaemon,
    /// What the agent does. Changes count for agents that start after [`write_script`](Self::write_script).
    pub script: Script,
    directory: TempDir,
}

/// A turn as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTurn {
    /// Its number in the session, from 1.
    pub number: i64,
    /// How it stands.
    pub state: String,
    /// The agent's stop reason.
    pub stop_reason: Option<String>,
    /// Why it failed or was interrupted.
    pub error: Option<String>,
}

impl AcpStage {
    /// Starts a daemon whose agent does what `change` makes of the default script; its second argument is a directory
    /// for files that steps wait for.
    ///
    /// # Panics
    /// When that fails.
    pub fn start(change: impl FnOnce(&mut Script, &Path)) -> Self {
        Self::start_with("", change)
    }

    /// Like [`start`](Self::start), with more settings of the agent: lines of its section in the configuration.
    ///
    /// # Panics
    /// When that fails.
    pub fn start_with(settings: &str, change: impl FnOnce(&mut Script, &Path)) -> Self {
        let directory = short_directory();
        let mut script = Script {
            trace: Some(directory.path().join("trace")),
            state: Some(directory.path().join("state")),
            ..Script::default()
        };
        change(&mut script, directory.path());
        let daemon = TestDaemon::prepare(DaemonOptions::default());
        let made = daemon.program().arg("init").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut stage = Self { daemon, script, directory };
        stage.write_script();
        let script_path = stage.path("script");
        let section = format!(
            "\n[agents.fake]\ncommand = [{:?}, {script_path:?}]\n{settings}\n",
            fake_agent().display().to_string()
        );
        let config = stage.daemon.root.config_file();
        let first = fs::read_to_string(&config).unwrap();
        fs::write(&config, first + &section).unwrap();
        stage.daemon.boot();
        stage
    }

    /// Gives the script to agents that start from now on.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn write_script(&self) {
        self.script.write_to(&self.path("script")).unwrap();
    }

    /// Returns the path of a file in the stage's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a file that a step waits for.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn touch(&self, name: &str) {
        fs::write(self.path(name), b"").unwrap();
    }

    /// Attaches a client to the agent.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn client(&self) -> AcpSocket {
        self.try_client().unwrap_or_else(|error| panic!("{error}: {}", self.daemon.stderr()))
    }

    /// Attaches a client to the agent.
    ///
    /// # Errors
    /// As [`AcpSocket::attach`].
    pub fn try_client(&self) -> Result<AcpSocket, ClientError> {
        AcpSocket::attach(&self.daemon.root.socket(), "fake")
    }

    /// Returns what the agents received so far.
    ///
    /// # Panics
    /// When the trace can't be read.
    pub fn trace(&self) -> Trace {
        Trace::read_from(&self.path("trace")).unwrap()
    }

    /// Waits until the trace is as wanted.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_for_trace(&self, wanted: impl Fn(&Trace) -> bool) -> Trace {
        eventually(PATIENCE, || self.trace(), wanted)
    }

    /// Returns the stored updates of a session, raw and in order, each with its position.
    ///
    /// # Panics
    /// When the store can't be read.
    pub fn stored_updates(&self, session_id: &str) -> Vec<(i64, String)> {
        stored_updates(&self.daemon, session_id)
    }

    /// Returns the stored turns of a session in order.
    ///
    /// # Panics
    /// When the store can't be read.
    pub fn stored_turns(&self, session_id: &str) -> Vec<StoredTurn> {
        let connection = read_only(&self.daemon.root.acp_sessions_database());
        let mut statement = connection
            .prepare(
                "SELECT number, state, stop_reason, error FROM acp_turn \
                 WHERE session = (SELECT id FROM acp_session WHERE session_id = ?1) ORDER BY number",
            )
            .unwrap();
        let rows = statement.query_map(params![session_id], |row| {
            Ok(StoredTurn { number: row.get(0)?, state: row.get(1)?, stop_reason: row.get(2)?, error: row.get(3)? })
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Returns how many leases are in each state.
    ///
    /// # Panics
    /// When the store can't be read.
    pub fn leases(&self) -> Vec<(String, i64)> {
        let connection = read_only(&self.daemon.root.leases_database());
        let mut statement =
            connection.prepare("SELECT state, count(*) FROM process_leases GROUP BY state ORDER BY state").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Waits until no lease is left that is not over.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_until_leases_are_over(&self) {
        let over = |leases: &Vec<(String, i64)>| leases.iter().all(|(state, _)| state == "closed" || state == "lost");
        eventually(PATIENCE, || self.leases(), over);
    }

    /// Waits until these processes are gone.
    ///
    /// # Panics
    /// When that takes longer than `limit`.
    #[track_caller]
    pub fn wait_until_gone(&self, pids: &[u32], limit: Duration) {
        let alive = || pids.iter().copied().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
        eventually(limit, alive, Vec::is_empty);
    }
}

/// Says whether a process runs; one that is dead and not yet waited for does not.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name stands in parentheses and may hold any byte; the state follows the last one (proc(5)).
    !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X'])
}

/// Returns the stored updates of a session, raw and in order, each with its position.
///
/// # Panics
/// When the store can't be read.
pub fn stored_updates(daemon: &TestDaemon, session_id: &str) -> Vec<(i64, String)> {
    let connection = read_only(&daemon.root.acp_sessions_database());
    let mut statement = connection
        .prepare(
            "SELECT seq, params_json FROM acp_update \
             WHERE session = (SELECT id FROM acp_session WHERE session_id = ?1) ORDER BY seq",
        )
        .unwrap();
    let rows = statement.query_map(params![session_id], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

/// Returns the program of the scripted agent, which stands beside the daemon's.
pub fn fake_agent() -> PathBuf {
    executable().with_file_name("fake-agent")
}

/// Tells a history in a few words: `user: text`, `agent: text` with chunks joined, `tool ID: STATUS` for each change.
pub fn told(updates: &[Value]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    let mut last = "";
    for update in updates {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        let text = update["content"]["text"].as_str().unwrap_or_default();
        match kind {
            "user_message_chunk" => told.push(format!("user: {text}")),
            "agent_message_chunk" if last == kind => told.last_mut().unwrap().push_str(text),
            "agent_message_chunk" => told.push(format!("agent: {text}")),
            "tool_call" | "tool_call_update" => {
                let status = update["status"].as_str().unwrap_or("-");
                told.push(format!("tool {}: {status}", update["toolCallId"].as_str().unwrap_or_default()));
            }
            other => told.push(other.to_owned()),
        }
        last = update["sessionUpdate"].as_str().unwrap_or_default();
    }
    told
}

fn read_only(path: &Path) -> Connection {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
}
