//! An agent that leaves processes behind, and a look at the leases that answer for them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, kill_process};

use crate::acp_stage::{AcpStage, is_alive};
use crate::eventually::{PATIENCE, eventually};
use crate::fake_agent::{Script, Spawn, Step};

/// Makes the agent start, at each new session, a child, a grandchild, and one in a session of its own without our
/// environment. Each writes its pid into `directory`; none of them ends by itself, and with
/// `stubborn` neither they nor the agent do when asked to.
pub fn with_family(script: &mut Script, directory: &Path, stubborn: bool) {
    let pid = |name: &str| directory.join(name).display().to_string();
    let trap = if stubborn { "trap '' TERM; " } else { "" };
    let family = format!("{trap}echo $$ > {}; sh -c 'echo $$ > {}; exec sleep 9871'", pid("child"), pid("grandchild"));
    let stray = format!("{trap}echo $$ > {}; exec sleep 9871", pid("stray"));
    let spawn = |command: String, apart: bool| {
        Step::Spawn(Spawn { command, setsid: apart, clear_environment: apart, hold_output: false })
    };
    script.on_new_session = vec![spawn(family, false), spawn(stray, true)];
    script.ignore_sigterm = stubborn;
    script.ignore_end_of_input = stubborn;
}

/// Starts a daemon whose agent has such a family.
pub fn family_stage(settings: &str, stubborn: bool) -> AcpStage {
    AcpStage::start_with(settings, |script, directory| with_family(script, directory, stubborn))
}

/// Returns the pids of the agent and of all it started, once they are all there. Agents that have ended (one that was only
/// asked who it is, say) are left out.
///
/// # Panics
/// When they do not come.
pub fn family(stage: &AcpStage) -> Vec<u32> {
    let mut pids = stage.trace().pids();
    pids.retain(|pid| is_alive(*pid));
    for name in ["child", "grandchild", "stray"] {
        let read = || fs::read_to_string(stage.path(name)).ok().and_then(|text| text.trim().parse().ok());
        pids.push(eventually(PATIENCE, read, Option::is_some).unwrap());
    }
    pids
}

/// A process that looks like one of theirs and is none of ours.
pub struct Bystander(Child);

impl Bystander {
    /// Starts it.
    ///
    /// # Panics
    /// When that fails.
    pub fn start() -> Self {
        Self(Command::new("sleep").arg("9871").spawn().unwrap())
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Says whether it lives.
    ///
    /// # Panics
    /// When the system can't say.
    pub fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        // It may have been ended by what the test looks for.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A lease as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// Its id, hexadecimal.
    pub lease_id: String,
    /// Its state.
    pub state: String,
    /// Its wrapper's process id.
    pub root_pid: Option<i64>,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// What went wrong with it.
    pub last_error: Option<String>,
}

/// Returns all leases, the oldest first.
///
/// # Panics
/// When the store can't be read.
pub fn stored_leases(stage: &AcpStage) -> Vec<StoredLease> {
    let connection = open(stage);
    let mut statement = connection
        .prepare(
            "SELECT lower(hex(lease_id)), state, root_pid, CAST(cgroup_path AS TEXT), last_error FROM process_leases
             ORDER BY lease_id",
        )
        .unwrap();
    let rows = statement.query_map([], |row| {
        Ok(StoredLease {
            lease_id: row.get(0)?,
            state: row.get(1)?,
            root_pid: row.get(2)?,
            cgroup: row.get(3)?,
            last_error: row.get(4)?,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// Returns the process ids of the wrappers of leases that are open.
///
/// # Panics
/// As [`stored_leases`].
pub fn wrappers(stage: &AcpStage) -> Vec<u32> {
    let open = stored_leases(stage).into_iter().filter(|lease| lease.state == "open");
    open.filter_map(|lease| u32::try_from(lease.root_pid?).ok()).collect()
}

/// Changes one column of all leases while no daemon runs.
///
/// # Panics
/// When the store can't be written.
pub fn forge_leases(stage: &AcpStage, state: &str, root_pid: i64, process_group_id: i64) {
    let changed = open(stage)
        .execute(
            "UPDATE process_leases SET state = ?1, root_pid = ?2, process_group_id = ?3",
            params![state, root_pid, process_group_id],
        )
        .unwrap();
    assert!(changed > 0, "there is no lease to change");
}

/// Sends a signal to a process.
///
/// # Panics
/// When there is none.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn open(stage: &AcpStage) -> Connection {
    let connection = Connection::open(stage.daemon.root.leases_database()).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
}
