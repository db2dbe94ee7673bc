//! The life of a running tree: forward, reap, and in the end TERM, grace, KILL.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use holdfast_actors::leases::wrapper::StatusLine;
use holdfast_actors::process::verify::hold_descendants;
use holdfast_actors::process::{OwnedProcess, ProcTable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getppid, kill_process_group};

use super::arguments::Arguments;
use super::signals::{FORWARDED, PARENT_DEATH_SIGNAL, SignalReader, restore_default};
use super::status::StatusPipe;

/// The first pause between two KILL sweeps; it doubles up to [`SWEEP_PAUSE_MAX`], for what hangs in the kernel.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause between two KILL sweeps.
const SWEEP_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where in its life the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The adapter works and the parent lives.
    Running,
    /// What is left was asked to end.
    Grace { until: Instant },
    /// What is left is killed, again and again: each sweep may free orphans that the next one finds.
    Killing { next: Instant, pause: Duration },
}

/// How the adapter ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Looks after one tree until its last process has gone.
pub(super) struct Supervisor {
    own_pid: i32,
    adapter: Pid,
    kill_grace: Duration,
    parent_pid: i32,
    parent: Option<OwnedFd>,
    phase: Phase,
    outcome: Option<Outcome>,
}

impl Supervisor {
    pub(super) fn new(own_pid: i32, adapter: Pid, arguments: &Arguments, parent: Option<OwnedFd>) -> Self {
        Self {
            own_pid,
            adapter,
            kill_grace: arguments.kill_grace,
            parent_pid: arguments.parent_pid,
            parent,
            phase: Phase::Running,
            outcome: None,
        }
    }

    /// Returns how the adapter ended, once nothing is left of the tree.
    pub(super) fn run(mut self, signals: &SignalReader, status: &mut StatusPipe) -> Outcome {
        loop {
            if self.reap(status) {
                // No child means no descendant: orphans become our children.
                return self.outcome.unwrap_or(Outcome::Code(0));
            }
            if self.outcome.is_some() && self.phase == Phase::Running {
                self.begin_end();
            }
            self.advance();
            self.wait(signals);
            while let Some(received) = signals.next() {
                let ours = received.sender_pid == self.own_pid;
                if let Some(signal) = FORWARDED.into_iter().find(|signal| signal.as_raw() == received.number) {
                    // What we send to the group reaches us as well.
                    if !ours {
                        self.signal_group(signal);
                    }
                } else if received.number == PARENT_DEATH_SIGNAL.as_raw() {
                    self.look_at_parent();
                }
            }
        }
    }

    /// Reaps whatever has ended; says whether no child is left.
    fn reap(&mut self, status: &mut StatusPipe) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, how))) if pid == self.adapter && self.outcome.is_none() => {
                    self.adapter_ended(how, status)
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn adapter_ended(&mut self, how: WaitStatus, status: &mut StatusPipe) {
        let exit_code = how.exit_status();
        let exit_signal = how.terminating_signal();
        status.report(&StatusLine::AdapterExited { exit_code, exit_signal });
        self.outcome = Some(match exit_signal {
            Some(signal) => Outcome::Signal(signal),
            None => Outcome::Code(exit_code.unwrap_or(0)),
        });
    }

    /// Waits for a signal, the parent's death, or the next thing to do.
    fn wait(&mut self, signals: &SignalReader) {
        let until = match self.phase {
            Phase::Running => None,
            Phase::Grace { until } => Some(until),
            Phase::Killing { next, .. } => Some(next),
        };
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        // Once the end has begun a dead parent would only keep poll from waiting.
        if let Some(parent) = self.parent.as_ref().filter(|_| self.phase == Phase::Running) {
            fds.push(PollFd::new(parent, PollFlags::IN));
        }
        let polled = poll(&mut fds, timeout.as_ref());
        let parent_ended = polled.is_ok() && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if parent_ended {
            self.begin_end();
        }
    }

    /// The parent-death signal speaks of a thread, and anyone may send it: only the parent itself decides.
    fn look_at_parent(&mut self) {
        if getppid().map(Pid::as_raw_pid) != Some(self.parent_pid) {
            self.begin_end();
        }
    }

    /// Asks everything that is left to end and starts the grace period; once.
    fn begin_end(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Grace { until: Instant::now() + self.kill_grace };
        self.signal_group(Signal::TERM);
        // Without /proc the group is all we can reach now; the kill that follows then takes the group as well.
        for process in hold_descendants(self.own_pid, &ProcTable).unwrap_or_default() {
            if process.stat.process_group_id != self.own_pid {
                send(&process, Signal::TERM);
            }
        }
    }

    /// Does what the time has come for.
    fn advance(&mut self) {
        let now = Instant::now();
        let pause = match self.phase {
            Phase::Grace { until } if now >= until => SWEEP_PAUSE_MIN,
            Phase::Killing { next, pause } if now >= next => (pause * 2).min(SWEEP_PAUSE_MAX),
            Phase::Running | Phase::Grace { .. } | Phase::Killing { .. } => return,
        };
        match hold_descendants(self.own_pid, &ProcTable) {
            Ok(descendants) => {
                for process in &descendants {
                    send(process, Signal::KILL);
                }
            }
            // We can't see what is left, but it must not live on: the group goes as a whole, we with it. What had left
            // the group falls to the daemon.
            Err(_) => self.signal_group(Signal::KILL),
        }
        self.phase = Phase::Killing { next: Instant::now() + pause, pause };
    }

    /// The group is ours as long as we live, so its number can't have passed to another.
    fn signal_group(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.own_pid) {
            // Fails only for members we may not signal (a set-user-ID program); the others got it.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A process that has ended meanwhile, or that we may not signal, is met again by the next sweep, if at all.
fn send(process: &OwnedProcess, signal: Signal) {
    let _ = process.handle.signal(signal);
}

/// Ends this process the way the adapter ended.
pub(super) fn exit_like(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Code(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Outcome::Signal(number) => {
            // The core dump, if any, is the adapter's; ours would be of no use.
            let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            if restore_default(number).is_ok() {
                // SAFETY: we signal ourselves; no handler runs.
                unsafe { libc::raise(number) };
            }
            // Only for signals whose default action is not to end a process.
            ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
        }
    }
}
