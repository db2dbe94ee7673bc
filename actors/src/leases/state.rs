//! What one incarnation of the Leases actor owns: the store, and who waits for which tree to end. Reaping is in
//! [`super::reap`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use holdfast_protocol::health::HealthWarning;
use holdfast_protocol::ids::{InstanceId, LeaseId};
use holdfast_stores::leases::{
    LeaseChange, LeaseExit, LeaseRecord, LeaseRoot, LeaseState, LeasesStore, NewLease, Refusal,
};
use tokio::sync::Semaphore;

use super::adopt::{Adopter, Ownership};
use super::ending::{Ender, StoredEnd, TreeEnd};
use super::error::{Bound, LeasesError};
use super::handle::LeasesShown;
use super::inspection::Inspection;
use super::leased::{ExitWatch, ProcessExit, RootIdentity};
use super::message::{LeasesMessage, LeasesReply, LeasesStatus, OpenLease};
use super::reap::{Reaping, Sweeps};
use super::{LeasesConfig, LeasesPlace};
use crate::process::StoredProcess;
use crate::surface::{Context, Fault};

/// Trees being ended at once; each looks at all processes of the machine now and then.
const ENDING_MAX: usize = 16;

/// What one incarnation owns.
pub struct LeasesState {
    pub(super) store: LeasesStore,
    pub(super) instance_id: InstanceId,
    pub(super) place: Arc<LeasesPlace>,
    pub(super) ender: Ender,
    pub(super) config: LeasesConfig,
    agent_bounds: BTreeMap<String, u32>,
    endings: Arc<Semaphore>,
    /// Leases whose wrapper's end will be told by a task of this process.
    pub(super) watched: HashSet<LeaseId>,
    /// Leases with an attempt under way.
    pub(super) ending: HashSet<LeaseId>,
    /// Leases to be closed as soon as their process is known.
    close_when_open: HashSet<LeaseId>,
    waiting: HashMap<LeaseId, Vec<LeasesReply<LeaseRecord>>>,
    closing_all: Vec<ClosingAll>,
    pub(super) reaping: Option<Reaping>,
    pub(super) sweeps: Sweeps,
    warnings: BTreeMap<LeaseId, String>,
    fault: Option<Fault>,
}

struct ClosingAll {
    pending: HashSet<LeaseId>,
    kept: usize,
    reply: LeasesReply<usize>,
}

pub(super) type Door = Context<LeasesMessage>;

impl LeasesState {
    pub(super) fn new(
        store: LeasesStore,
        instance_id: InstanceId,
        place: Arc<LeasesPlace>,
        ender: Ender,
        config: LeasesConfig,
        agent_bounds: BTreeMap<String, u32>,
    ) -> Self {
        Self {
            store,
            instance_id,
            place,
            ender,
            config,
            agent_bounds,
            endings: Arc::new(Semaphore::new(ENDING_MAX)),
            watched: HashSet::new(),
            ending: HashSet::new(),
            close_when_open: HashSet::new(),
            waiting: HashMap::new(),
            closing_all: Vec::new(),
            reaping: None,
            sweeps: Sweeps::default(),
            warnings: BTreeMap::new(),
            fault: None,
        }
    }

    /// Returns what ended this incarnation, if anything did.
    pub(super) fn fault(&mut self) -> Result<(), Fault> {
        self.fault.take().map_or(Ok(()), Err)
    }

    pub(super) async fn close_store(self) {
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "the store of leases did not close cleanly");
        }
    }

    pub(super) async fn open(&mut self, door: &Door, lease: OpenLease, reply: LeasesReply<LeaseRecord>) {
        let answer = self.try_open(door, lease).await;
        reply.send(answer);
    }

    async fn try_open(&mut self, door: &Door, lease: OpenLease) -> Result<LeaseRecord, LeasesError> {
        let unfinished = self.unfinished().await?;
        let too_many = |running: usize, limit: u32, bound| {
            let is_over = running >= limit as usize;
            if is_over { Err(LeasesError::TooMany { running, limit, bound }) } else { Ok(()) }
        };
        too_many(unfinished.len(), self.config.max_processes, Bound::All)?;
        if let Some(limit) = self.agent_bounds.get(&lease.agent) {
            let running = unfinished.iter().filter(|record| record.agent == lease.agent).count();
            too_many(running, *limit, Bound::Agent(lease.agent.clone()))?;
        }
        let lease_id = LeaseId(door.ports.ids.uuid_v7());
        let new = NewLease {
            lease_id,
            instance_id: self.instance_id,
            session_id: lease.session_id,
            agent: lease.agent,
            wrapper_root: self.place.install_root.clone(),
            wrapper_path: self.place.wrapper_path.clone(),
            command_hash: lease.command_hash,
            boot_id: self.ender.table.boot_id().map_err(LeasesError::Boot)?,
            cgroup_path: self.place.cgroups.as_ref().map(|cgroups| cgroups.leaf(lease_id)),
        };
        self.apply(door, LeaseChange::Insert(new)).await
    }

    pub(super) async fn opened(
        &mut self,
        door: &Door,
        lease_id: LeaseId,
        root: RootIdentity,
        exit: ExitWatch,
        reply: LeasesReply<LeaseRecord>,
    ) {
        let in_cgroup = root.in_cgroup;
        let root = LeaseRoot {
            pid: i64::from(root.pid),
            start_ticks: root.start_ticks,
            pidfd_ino: root.pidfd_inode,
            process_group_id: Some(i64::from(root.process_group_id)),
        };
        let answer = self.apply(door, LeaseChange::Open { lease_id, root, in_cgroup }).await;
        if let Ok(record) = &answer {
            self.watch(door, lease_id, exit);
            if self.close_when_open.remove(&lease_id)
                && let Err(error) = self.begin_close(door, record.clone()).await
            {
                self.conclude(door, lease_id, &Err(error)).await;
            }
        }
        reply.send(answer);
        self.sweep_at_an_edge(door).await;
    }

    /// Waits beside the actor for a wrapper's end. The message goes to the address: it finds a later incarnation, too.
    fn watch(&mut self, door: &Door, lease_id: LeaseId, mut exit: ExitWatch) {
        self.watched.insert(lease_id);
        let address = door.address().clone();
        tokio::spawn(async move {
            exit.tree_ended().await;
            let message = match exit.adapter_ended().await {
                // It did not live to see its adapter's end: killed, or broken.
                None => LeasesMessage::WrapperKilled { lease_id },
                exit => LeasesMessage::TreeEnded { lease_id, exit, end: TreeEnd::Ended { killed: false } },
            };
            // A tree that has ended takes its unfinished leases to the next start.
            let _stopped = address.tell(message).await;
        });
    }

    /// Looks beside the actor for what a killed wrapper left behind, and ends it.
    pub(super) async fn wrapper_killed(&mut self, door: &Door, lease_id: LeaseId) {
        let record = match self.store.reads().lease_show(lease_id).await {
            Ok(Some(record)) => record,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%lease_id, %error, "a wrapper was killed, and its lease can't be read; the next sweep tries again");
                self.watched.remove(&lease_id);
                return;
            }
        };
        tracing::warn!(%lease_id, agent = record.agent, "a wrapper was killed; what it left behind is looked for");
        let recorded = self.sweeps.take_recorded(lease_id);
        let (address, ender) = (door.address().clone(), self.ender.clone());
        tokio::spawn(async move {
            let end = run_blocking(move || ender.end_orphans(&record, recorded)).await;
            let _stopped = address.tell(LeasesMessage::TreeEnded { lease_id, exit: None, end }).await;
        });
    }

    pub(super) async fn failed(
        &mut self,
        door: &Door,
        lease_id: LeaseId,
        error: String,
        reply: LeasesReply<LeaseRecord>,
    ) {
        let state = LeaseState::Closed;
        let answer = self.apply(door, LeaseChange::Move { lease_id, state, exit: None, error: Some(error) }).await;
        self.conclude(door, lease_id, &answer).await;
        reply.send(answer);
        self.sweep_at_an_edge(door).await;
    }

    pub(super) async fn mark_lost(
        &mut self,
        door: &Door,
        lease_id: LeaseId,
        reason: String,
        reply: LeasesReply<LeaseRecord>,
    ) {
        let state = LeaseState::Lost;
        let answer = self.apply(door, LeaseChange::Move { lease_id, state, exit: None, error: Some(reason) }).await;
        self.conclude(door, lease_id, &answer).await;
        reply.send(answer);
    }

    pub(super) async fn close(
        &mut self,
        door: &Door,
        lease_id: LeaseId,
        reason: Option<String>,
        reply: LeasesReply<LeaseRecord>,
    ) {
        let record = match self.store.reads().lease_show(lease_id).await {
            Ok(Some(record)) => record,
            Ok(None) => return reply.send(Err(Refusal::NotFound { lease_id }.into())),
            Err(error) => return reply.send(Err(error.into())),
        };
        if record.state.is_over() {
            return reply.send(Ok(record));
        }
        tracing::info!(%lease_id, agent = record.agent, reason, "closing a lease");
        if record.state == LeaseState::Starting && record.started_at_ms >= self.place.run_started_at_ms {
            // Its process may come to be at any moment, and whoever starts it says so, or that it could not.
            self.close_when_open.insert(lease_id);
            return self.waiting.entry(lease_id).or_default().push(reply);
        }
        match self.begin_close(door, record).await {
            Ok(()) => self.waiting.entry(lease_id).or_default().push(reply),
            Err(error) => reply.send(Err(error)),
        }
    }

    /// Moves an open lease to `closing` and ends its tree beside the actor.
    async fn begin_close(&mut self, door: &Door, record: LeaseRecord) -> Result<(), LeasesError> {
        let lease_id = record.lease_id;
        if self.ending.contains(&lease_id) {
            return Ok(());
        }
        let record = match record.state {
            LeaseState::Open => {
                let state = LeaseState::Closing;
                self.apply(door, LeaseChange::Move { lease_id, state, exit: None, error: None }).await?
            }
            LeaseState::Starting | LeaseState::Closing | LeaseState::Closed | LeaseState::Lost => record,
        };
        self.begin_end(door, record);
        Ok(())
    }

    pub(super) fn begin_end(&mut self, door: &Door, record: LeaseRecord) {
        let lease_id = record.lease_id;
        if !self.ending.insert(lease_id) {
            return;
        }
        self.sweeps.tried(lease_id, door.ports.clock.now_ms());
        let (address, ender, endings) = (door.address().clone(), self.ender.clone(), Arc::clone(&self.endings));
        tokio::spawn(async move {
            // The semaphore is never closed; without a permit the work would be done all the same.
            let _turn = endings.acquire_owned().await;
            let end = run_blocking(move || ender.end(&record)).await;
            let _stopped = address.tell(LeasesMessage::EndTried { lease_id, end }).await;
        });
    }

    pub(super) async fn end_tried(&mut self, door: &Door, lease_id: LeaseId, end: TreeEnd) {
        self.ending.remove(&lease_id);
        let has_gone = matches!(end, TreeEnd::Ended { .. } | TreeEnd::Gone);
        // The wrapper's watcher is about to say how it ended, which this attempt can't know.
        if !(has_gone && self.watched.contains(&lease_id)) {
            self.settle(door, lease_id, end, None).await;
            self.sweep_at_an_edge(door).await;
        }
    }

    pub(super) async fn tree_ended(&mut self, door: &Door, lease_id: LeaseId, exit: Option<ProcessExit>, end: TreeEnd) {
        self.watched.remove(&lease_id);
        // Its end was seen, so it is not lost.
        let end = if end == TreeEnd::Gone { TreeEnd::Ended { killed: false } } else { end };
        self.settle(door, lease_id, end, exit).await;
        self.sweep_at_an_edge(door).await;
    }

    /// Writes down what became of a tree and tells those who wait.
    async fn settle(&mut self, door: &Door, lease_id: LeaseId, end: TreeEnd, exit: Option<ProcessExit>) {
        let answer = self.try_settle(door, lease_id, end, exit).await;
        self.conclude(door, lease_id, &answer).await;
    }

    async fn try_settle(
        &mut self,
        door: &Door,
        lease_id: LeaseId,
        end: TreeEnd,
        exit: Option<ProcessExit>,
    ) -> Result<LeaseRecord, LeasesError> {
        let record = self.store.reads().lease_show(lease_id).await?.ok_or(Refusal::NotFound { lease_id })?;
        let exit = exit.map(|exit| LeaseExit { exit_code: exit.exit_code, exit_signal: exit.exit_signal });
        if record.state.is_over() {
            // After a reload the end of a tree may be settled before its watcher says how the adapter ended.
            return match exit.filter(|exit| record.exit == LeaseExit::default() && *exit != record.exit) {
                Some(exit) => self.apply(door, LeaseChange::Exited { lease_id, exit }).await,
                None => Ok(record),
            };
        }
        match end.verdict() {
            (Some(state), error) => {
                if let Some(reason) = &error {
                    tracing::warn!(%lease_id, agent = record.agent, reason, "a lease ends as {state}; nothing was signalled");
                }
                self.apply(door, LeaseChange::Move { lease_id, state, exit, error }).await
            }
            (None, note) => {
                let note = note.unwrap_or_default();
                tracing::warn!(%lease_id, agent = record.agent, reason = note, "a lease is kept");
                self.apply(door, LeaseChange::Note { lease_id, error: note.clone() }).await?;
                self.warnings.insert(lease_id, note.clone());
                Err(match end {
                    TreeEnd::Survivors(pids) => LeasesError::Survivors { lease_id, pids },
                    TreeEnd::Ended { .. } | TreeEnd::Gone | TreeEnd::Foreign(_) | TreeEnd::Unclear(_) => {
                        LeasesError::Unverifiable { lease_id, why: note }
                    }
                })
            }
        }
    }

    /// Tells everyone who waits for this lease.
    async fn conclude(&mut self, door: &Door, lease_id: LeaseId, answer: &Result<LeaseRecord, LeasesError>) {
        for reply in self.waiting.remove(&lease_id).unwrap_or_default() {
            reply.send(answer.clone());
        }
        let state = answer.as_ref().ok().map(|record| record.state);
        let is_over = state.is_some_and(LeaseState::is_over);
        self.close_when_open.remove(&lease_id);
        if is_over {
            self.warnings.remove(&lease_id);
            self.sweeps.forget(lease_id);
        }
        self.publish_warnings(door);
        if let Some(leaf) = answer.as_ref().ok().filter(|_| is_over).and_then(|record| record.cgroup_path.clone()) {
            let table = Arc::clone(&self.ender.table);
            tokio::task::spawn_blocking(move || {
                // One that is busy yet is looked for again by the next sweep.
                let _busy = table.cgroup_remove(&leaf);
            });
        }
        for all in &mut self.closing_all {
            if all.pending.remove(&lease_id) && !is_over {
                all.kept += 1;
            }
        }
        self.answer_closing_all();
        if let Some(reaping) = &mut self.reaping
            && reaping.pending.remove(&lease_id)
        {
            match state {
                Some(LeaseState::Closed) => reaping.report.closed.push(lease_id),
                Some(LeaseState::Lost) => reaping.report.lost.push(lease_id),
                Some(LeaseState::Starting | LeaseState::Open | LeaseState::Closing) | None => {
                    let why = answer.as_ref().err().map_or_else(|| "it goes on".to_owned(), ToString::to_string);
                    reaping.report.kept.push((lease_id, why));
                }
            }
        }
        self.finish_reaping(door).await;
    }

    pub(super) async fn close_all(&mut self, door: &Door, reply: LeasesReply<usize>) {
        let unfinished = match self.unfinished().await {
            Ok(unfinished) => unfinished,
            Err(error) => return reply.send(Err(error)),
        };
        let mut all = ClosingAll { pending: HashSet::new(), kept: 0, reply };
        for record in unfinished {
            let lease_id = record.lease_id;
            match self.begin_close(door, record).await {
                Ok(()) => {
                    all.pending.insert(lease_id);
                }
                Err(error) => {
                    tracing::warn!(%lease_id, %error, "a lease could not be closed");
                    all.kept += 1;
                }
            }
        }
        self.closing_all.push(all);
        self.answer_closing_all();
    }

    fn answer_closing_all(&mut self) {
        let (done, pending) = std::mem::take(&mut self.closing_all).into_iter().partition(|all| all.pending.is_empty());
        self.closing_all = pending;
        let done: Vec<ClosingAll> = done;
        for all in done {
            all.reply.send(Ok(all.kept));
        }
    }

    pub(super) fn shown(&self) -> LeasesShown {
        let ownership = self.ender.adopter.as_ref().map(Adopter::ownership);
        LeasesShown {
            reads: self.store.reads(),
            instance_id: self.instance_id,
            own_children_are_orphans: ownership == Some(Ownership::SpawnerOnly),
        }
    }

    pub(super) async fn status(&mut self) -> LeasesStatus {
        LeasesStatus {
            unfinished: self.unfinished().await.map_or(0, |unfinished| unfinished.len()),
            warnings: self.warnings.iter().map(|(lease_id, text)| (*lease_id, text.clone())).collect(),
            reaping: self.reaping.is_some(),
        }
    }

    /// Shows what is kept against our will, where health sees it.
    fn publish_warnings(&self, door: &Door) {
        let warning = |(lease_id, why): (&LeaseId, &String)| HealthWarning {
            kind: "lease_kept".to_owned(),
            message: format!("lease {lease_id} is kept: {why}"),
            remedy: format!("holdfast lease verify {lease_id}"),
        };
        door.stats.set_warnings(self.warnings.iter().map(warning).collect());
    }

    /// Looks at a lease's tree beside the actor, check by check.
    pub(super) fn verify(&self, lease_id: LeaseId, reply: LeasesReply<(LeaseRecord, Inspection)>) {
        let (reads, ender) = (self.store.reads(), self.ender.clone());
        tokio::spawn(async move {
            let record = match reads.lease_show(lease_id).await {
                Ok(Some(record)) => record,
                Ok(None) => return reply.send(Err(Refusal::NotFound { lease_id }.into())),
                Err(error) => return reply.send(Err(error.into())),
            };
            let looked = tokio::task::spawn_blocking(move || {
                let inspection = ender.look(&record);
                (record, inspection)
            });
            // A look that panicked answers by dropping the reply.
            if let Ok(answer) = looked.await {
                reply.send(Ok(answer));
            }
        });
    }

    /// Ends, with all care, the process of a row without a lease. Beside the actor.
    pub(super) fn end_stored(&self, stored: StoredProcess, reply: LeasesReply<StoredEnd>) {
        let (ender, endings) = (self.ender.clone(), Arc::clone(&self.endings));
        tokio::spawn(async move {
            // The semaphore is never closed; without a permit the work would be done all the same.
            let _turn = endings.acquire_owned().await;
            if let Ok(end) = tokio::task::spawn_blocking(move || ender.end_stored(&stored)).await {
                reply.send(Ok(end));
            }
        });
    }

    pub(super) async fn unfinished(&mut self) -> Result<Vec<LeaseRecord>, LeasesError> {
        Ok(self.store.reads().lease_unfinished(self.instance_id).await?)
    }

    /// Makes one change durable.
    pub(super) async fn apply(&mut self, door: &Door, change: LeaseChange) -> Result<LeaseRecord, LeasesError> {
        let began = Instant::now();
        let outcome = self.store.lease_change(&[change], door.ports.clock.now_ms()).await;
        door.stats.commit_took(began.elapsed());
        door.stats.set_size_bytes(self.store.size_bytes());
        crate::store::note_writes(
            &door.stats,
            door.ports.clock.now_ms(),
            outcome.answers.iter().filter_map(|answer| match answer {
                Ok(Ok(_)) => Some(Ok(())),
                Ok(Err(_refused_by_a_rule)) => None,
                Err(error) => Some(Err(error)),
            }),
        );
        if let Some(lost) = outcome.writer_lost {
            self.fault = Some(Fault::Restart(format!("the writer of the leases is lost: {lost}")));
        }
        match outcome.answers.into_iter().next() {
            Some(answer) => Ok(answer??),
            // One answer a request is the store's promise; a missing one is told as what it would be.
            None => Err(LeasesError::Call(crate::address::CallError::Interrupted)),
        }
    }
}

/// Runs blocking work; one that panics could not tell anything.
pub(super) async fn run_blocking(work: impl FnOnce() -> TreeEnd + Send + 'static) -> TreeEnd {
    match tokio::task::spawn_blocking(work).await {
        Ok(end) => end,
        Err(error) => TreeEnd::Unclear(format!("the attempt itself failed: {error}")),
    }
}
