//! A process table made of plain values, in which a test lets processes change between two questions.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;

use crate::process::{ProcessHandle, ProcessStat, ProcessTable, TableError};

/// One simulated process. The inode is its true identity.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) stat: ProcessStat,
    pub(crate) environment: Vec<u8>,
    pub(crate) executable: PathBuf,
    pub(crate) command_line: Vec<OsString>,
    pub(crate) inode: u64,
    /// What it does not die of.
    pub(crate) ignores: Vec<i32>,
}

/// A question the table was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    Boot,
    Stat(i32),
    Environment(i32),
    Executable(i32),
    CommandLine(i32),
    CgroupPath(i32),
    Cgroup,
    List,
    Open(i32),
}

type Hook = Box<dyn FnMut(&mut World, Question) + Send>;

/// Everything there is.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) boot_id: String,
    pub(crate) own_pid: i32,
    pub(crate) processes: Vec<Process>,
    /// Questions that are refused.
    pub(crate) denied: HashSet<Question>,
    /// Whether pidfds have inodes of their own.
    pub(crate) inodes: bool,
    /// Signals sent: the receiver's inode and the number.
    pub(crate) sent: Vec<(u64, i32)>,
    /// Cgroups and the pids in them.
    pub(crate) cgroups: BTreeMap<PathBuf, Vec<i32>>,
    /// Cgroups that were killed as a whole.
    pub(crate) killed_cgroups: Vec<PathBuf>,
}

impl World {
    pub(crate) fn find(&self, pid: i32) -> Option<&Process> {
        self.processes.iter().find(|process| process.stat.pid == pid)
    }

    /// Ends a process: its children go to the nearest subreaper, which here is always the parent given.
    pub(crate) fn end(&mut self, inode: u64, orphans_go_to: i32) {
        let Some(index) = self.processes.iter().position(|process| process.inode == inode) else { return };
        let pid = self.processes.remove(index).stat.pid;
        for process in &mut self.processes {
            if process.stat.parent_pid == pid {
                process.stat.parent_pid = orphans_go_to;
            }
        }
    }
}

/// The simulated table; clones share the world.
#[derive(Clone)]
pub(crate) struct SimulatedTable {
    world: Arc<Mutex<World>>,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl SimulatedTable {
    pub(crate) fn new(world: World) -> Self {
        Self { world: Arc::new(Mutex::new(world)), hook: Arc::new(Mutex::new(None)) }
    }

    /// Runs `hook` before every answer; this is where a pid is recycled under the reader's eyes.
    pub(crate) fn before_every_answer(&self, hook: impl FnMut(&mut World, Question) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn ask(&self, question: Question) -> Result<MutexGuard<'_, World>, TableError> {
        let mut world = self.world();
        if let Some(hook) = &mut *self.hook.lock().unwrap() {
            hook(&mut world, question);
        }
        if world.denied.contains(&question) {
            return Err(TableError::Denied { action: format!("ask {question:?}") });
        }
        Ok(world)
    }
}

impl ProcessTable for SimulatedTable {
    fn boot_id(&self) -> Result<String, TableError> {
        Ok(self.ask(Question::Boot)?.boot_id.clone())
    }

    fn own_pid(&self) -> i32 {
        self.world().own_pid
    }

    fn stat(&self, pid: i32) -> Result<Option<ProcessStat>, TableError> {
        Ok(self.ask(Question::Stat(pid))?.find(pid).map(|process| process.stat.clone()))
    }

    fn environment(&self, pid: i32) -> Result<Option<Vec<u8>>, TableError> {
        Ok(self.ask(Question::Environment(pid))?.find(pid).map(|process| process.environment.clone()))
    }

    fn executable(&self, pid: i32) -> Result<Option<PathBuf>, TableError> {
        Ok(self.ask(Question::Executable(pid))?.find(pid).map(|process| process.executable.clone()))
    }

    fn command_line(&self, pid: i32) -> Result<Option<Vec<OsString>>, TableError> {
        Ok(self.ask(Question::CommandLine(pid))?.find(pid).map(|process| process.command_line.clone()))
    }

    fn cgroup_path(&self, pid: i32) -> Result<Option<PathBuf>, TableError> {
        let world = self.ask(Question::CgroupPath(pid))?;
        Ok(world.cgroups.iter().find(|(_, members)| members.contains(&pid)).map(|(path, _)| path.clone()))
    }

    fn cgroup_members(&self, directory: &Path) -> Result<Option<Vec<i32>>, TableError> {
        let world = self.ask(Question::Cgroup)?;
        let live = |members: &Vec<i32>| members.iter().copied().filter(|pid| world.find(*pid).is_some()).collect();
        Ok(world.cgroups.get(directory).map(live))
    }

    fn cgroup_kill(&self, directory: &Path) -> Result<(), TableError> {
        let mut world = self.ask(Question::Cgroup)?;
        world.killed_cgroups.push(directory.to_owned());
        let reaper = world.own_pid;
        for pid in world.cgroups.get(directory).cloned().unwrap_or_default() {
            if let Some(inode) = world.find(pid).map(|process| process.inode) {
                world.end(inode, reaper);
            }
        }
        Ok(())
    }

    fn cgroup_remove(&self, directory: &Path) -> Result<(), TableError> {
        let mut world = self.ask(Question::Cgroup)?;
        let members = world.cgroups.get(directory).cloned().unwrap_or_default();
        if members.iter().any(|pid| world.find(*pid).is_some()) {
            return Err(TableError::Unavailable { action: "remove a cgroup".to_owned(), reason: "busy".to_owned() });
        }
        world.cgroups.remove(directory);
        Ok(())
    }

    fn list(&self) -> Result<Vec<ProcessStat>, TableError> {
        Ok(self.ask(Question::List)?.processes.iter().map(|process| process.stat.clone()).collect())
    }

    fn open(&self, pid: i32) -> Result<Option<Box<dyn ProcessHandle>>, TableError> {
        let world = self.ask(Question::Open(pid))?;
        let inodes = world.inodes;
        Ok(world.find(pid).map(|process| {
            Box::new(SimulatedHandle { table: self.clone(), inode: process.inode, inodes }) as Box<dyn ProcessHandle>
        }))
    }
}

struct SimulatedHandle {
    table: SimulatedTable,
    inode: u64,
    inodes: bool,
}

impl ProcessHandle for SimulatedHandle {
    fn pidfd_inode(&self) -> Option<u64> {
        self.inodes.then_some(self.inode)
    }

    fn signal(&self, signal: Signal) -> Result<bool, TableError> {
        let mut world = self.table.world();
        let number = signal.as_raw();
        let Some(process) = world.processes.iter().find(|process| process.inode == self.inode) else {
            return Ok(false);
        };
        let dies = signal == Signal::KILL || !process.ignores.contains(&number);
        let reaper = world.own_pid;
        world.sent.push((self.inode, number));
        if dies {
            world.end(self.inode, reaper);
        }
        Ok(true)
    }

    fn wait_ended(&self, _limit: Duration) -> Result<bool, TableError> {
        let world = self.table.world();
        let process = world.processes.iter().find(|process| process.inode == self.inode);
        Ok(process.is_none_or(|process| process.stat.is_dead()))
    }
}
