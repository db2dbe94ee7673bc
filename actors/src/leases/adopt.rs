//! Orphans of a wrapper that was killed: they come to us, because we are a child subreaper, and we end them.
//!
//! One adopter a process, and only where it is asked for: a subreaper also receives orphans that have nothing to do with
//! us. It waits for processes by pid, never for "any child", which would steal the exits others wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::ids::{InstanceId, LeaseId};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use super::spawn::{SpawnError, Spawner};
use crate::process::verify::{carries_lease, take_hold};
use crate::process::{EndOptions, EndReport, ProcTable, ProcessStat, ProcessTable, TableError, descendants_of};

/// How long one look waits before the next.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// What an unknown child of this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// This process starts children through its spawner only. A child in another session that the spawner did not start
    /// is thereby proven an orphan of one of its wrappers.
    SpawnerOnly,
    /// Others start children here as well (an embedder, a second tree): an orphan is ended only if its session, its
    /// environment or a record says whose it was. Others are reaped once they are dead.
    Shared,
}

/// Which tree lost its wrapper.
#[derive(Debug, Clone)]
pub struct Orphans {
    /// The lease.
    pub lease_id: LeaseId,
    /// The install.
    pub instance_id: InstanceId,
    /// The session and group the wrapper led.
    pub process_group_id: i32,
    /// Members seen before, as pid and start time.
    pub recorded: Vec<(i32, u64)>,
}

/// Adopts and ends orphans.
#[derive(Clone)]
pub struct Adopter {
    spawner: Spawner,
    ownership: Ownership,
    own_pid: i32,
    own_session: i32,
    table: Arc<dyn ProcessTable>,
}

impl Adopter {
    /// Makes this process a child subreaper.
    ///
    /// # Errors
    /// [`SpawnError::Resource`] when the system refuses.
    pub fn install(spawner: Spawner, ownership: Ownership) -> Result<Self, SpawnError> {
        let resource = |action| move |source: std::io::Error| SpawnError::Resource { action, source };
        set_child_subreaper(Some(getpid())).map_err(|error| resource("become a child subreaper")(error.into()))?;
        let own_pid = getpid().as_raw_pid();
        // Read where the orphans' sessions are read: in a PID namespace whose session leader is outside, the number is
        // 0, for which rustix's `getsid` has no value.
        let unread = |reason: String| resource("read our session")(std::io::Error::other(reason));
        let own = ProcTable.stat(own_pid).map_err(|error| unread(error.to_string()))?;
        let own_session = own.ok_or_else(|| unread(format!("/proc has no process {own_pid}")))?.session_id;
        Ok(Self { spawner, ownership, own_pid, own_session, table: Arc::new(ProcTable) })
    }

    /// Returns what an unknown child of this process is.
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Reaps dead orphans whenever a child of this process ends. Runs until the task is aborted.
    ///
    /// # Errors
    /// [`SpawnError::Resource`] when the signal can't be listened to; [`SpawnError::Ended`] with the spawner.
    pub async fn reap_the_dead(&self) -> Result<(), SpawnError> {
        let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())
            .map_err(|source| SpawnError::Resource { action: "listen for ended children", source })?;
        while ended.recv().await.is_some() {
            let adopter = self.clone();
            let looked = tokio::task::spawn_blocking(move || adopter.live_orphans(None)).await;
            match looked {
                Ok(Ok(_live)) => {}
                Ok(Err(LookError::Spawner(error))) => return Err(error),
                Ok(Err(LookError::Table(error))) => tracing::warn!(%error, "failed to look for dead orphans"),
                Err(error) => tracing::error!(%error, "the look for dead orphans panicked"),
            }
        }
        Ok(())
    }

    /// Ends the orphans of a tree whose wrapper has gone, TERM, grace, KILL, and reaps them. Blocks.
    pub fn end_orphans(&self, mut orphans: Orphans, options: EndOptions) -> EndReport {
        let mut report = EndReport::default();
        let kill_at = Instant::now() + options.grace;
        let give_up_at = kill_at + options.kill_limit;
        let mut asked: Vec<(i32, u64)> = Vec::new();
        loop {
            let live = match self.live_orphans(Some(&mut orphans)) {
                Ok(live) => live,
                Err(error) => {
                    report.problems.push(error.to_string());
                    return report;
                }
            };
            if live.is_empty() {
                report.ended = true;
                return report;
            }
            if Instant::now() >= give_up_at {
                report.survivors = live.iter().map(|orphan| orphan.pid).collect();
                return report;
            }
            let kill = Instant::now() >= kill_at;
            for orphan in &live {
                let identity = (orphan.pid, orphan.start_ticks);
                if kill {
                    report.killed = true;
                    self.signal(orphan, Signal::KILL, &mut report);
                } else if !asked.contains(&identity) {
                    asked.push(identity);
                    self.signal(orphan, Signal::TERM, &mut report);
                }
            }
            self.wait_for_one(&live);
        }
    }

    fn signal(&self, orphan: &ProcessStat, signal: Signal, report: &mut EndReport) {
        let sent = match take_hold(orphan, self.own_pid, &*self.table) {
            Ok(Some(held)) => held.handle.signal(signal).map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            let text = error.to_string();
            if !report.problems.contains(&text) {
                report.problems.push(text);
            }
        }
    }

    /// Waits a moment, less if the first of them ends.
    fn wait_for_one(&self, live: &[ProcessStat]) {
        let waited = live.first().map(|first| match self.table.open(first.pid) {
            Ok(Some(handle)) => handle.wait_ended(SWEEP_INTERVAL).is_ok(),
            Ok(None) | Err(_) => false,
        });
        if waited == Some(false) {
            std::thread::sleep(SWEEP_INTERVAL);
        }
    }

    /// Reaps dead orphans and returns the live ones that belong to `of`; without `of`, none are returned.
    fn live_orphans(&self, of: Option<&mut Orphans>) -> Result<Vec<ProcessStat>, LookError> {
        // First the list, then the known children: whatever was spawned before the list was read is known by then.
        let processes = self.table.list()?;
        let known = self.spawner.children_blocking()?;
        let is_orphan = |process: &&ProcessStat| {
            process.parent_pid == self.own_pid
                && process.session_id != self.own_session
                && !known.contains(&process.pid)
        };
        let (dead, live): (Vec<_>, Vec<_>) =
            processes.iter().filter(is_orphan).cloned().partition(ProcessStat::is_dead);
        for orphan in dead {
            reap(orphan.pid);
        }
        let Some(of) = of else { return Ok(Vec::new()) };
        let mut ours: Vec<ProcessStat> = live.into_iter().filter(|orphan| self.belongs_to(orphan, of)).collect();
        // What hangs below an orphan becomes one of ours when that dies, wherever it has gone by then.
        let roots: Vec<i32> = ours.iter().map(|orphan| orphan.pid).collect();
        for root in roots {
            for (pid, _) in descendants_of(root, &processes) {
                if let Some(below) = processes.iter().find(|process| process.pid == pid && !process.is_dead()) {
                    let identity = (below.pid, below.start_ticks);
                    if !of.recorded.contains(&identity) {
                        of.recorded.push(identity);
                    }
                    ours.push(below.clone());
                }
            }
        }
        Ok(ours)
    }

    fn belongs_to(&self, orphan: &ProcessStat, of: &Orphans) -> bool {
        match self.ownership {
            Ownership::SpawnerOnly => true,
            Ownership::Shared => {
                orphan.session_id == of.process_group_id
                    || of.recorded.contains(&(orphan.pid, orphan.start_ticks))
                    || match self.table.environment(orphan.pid) {
                        Ok(Some(environment)) => carries_lease(&environment, of.lease_id, of.instance_id),
                        Ok(None) | Err(_) => false,
                    }
            }
        }
    }
}

/// Reaps one child by its pid; nothing happens if it is not a dead child of ours.
fn reap(pid: i32) {
    if let Some(pid) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() {
        // Someone else may have reaped it in the meantime.
        let _reaped = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Spawner(#[from] SpawnError),
    #[error(transparent)]
    Table(#[from] TableError),
}
