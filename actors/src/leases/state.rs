//! What one incarnation of the Leases actor owns: the store, and who waits for which tree to end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use holdfast_protocol::ids::{InstanceId, LeaseId};
use holdfast_stores::leases::{
    LeaseChange, LeaseExit, LeaseFilter, LeasePage, LeaseRecord, LeaseRoot, LeaseState, LeasesStore, NewLease, Refusal,
};
use tokio::sync::Semaphore;

use super::ending::{Ender, TreeEnd};
use super::error::LeasesError;
use super::leased::{ExitWatch, ProcessExit, RootIdentity};
use super::message::{LeasesMessage, LeasesReply, LeasesStatus, OpenLease, ReapReport};
use super::{LeasesConfig, LeasesPlace};
use crate::surface::{Context, Fault};

/// Trees being ended at once; each looks at all processes of the machine now and then.
const ENDING_MAX: usize = 16;
/// One day in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// What one incarnation owns.
pub struct LeasesState {
    store: LeasesStore,
    instance_id: InstanceId,
    place: Arc<LeasesPlace>,
    ender: Ender,
    config: LeasesConfig,
    endings: Arc<Semaphore>,
    /// Leases whose wrapper's end will be told by a task of this process.
    watched: HashSet<LeaseId>,
    /// Leases with an attempt under way.
    ending: HashSet<LeaseId>,
    waiting: HashMap<LeaseId, Vec<LeasesReply<LeaseRecord>>>,
    closing_all: Vec<ClosingAll>,
    reaping: Option<Reaping>,
    warnings: BTreeMap<LeaseId, String>,
    fault: Option<Fault>,
}

struct ClosingAll {
    pending: HashSet<LeaseId>,
    kept: usize,
    reply: LeasesReply<usize>,
}

struct Reaping {
    pending: HashSet<LeaseId>,
    report: ReapReport,
    replies: Vec<LeasesReply<ReapReport>>,
}

type Door = Context<LeasesMessage>;

impl LeasesState {
    pub(super) fn new(
        store: LeasesStore,
        instance_id: InstanceId,
        place: Arc<LeasesPlace>,
        ender: Ender,
        config: LeasesConfig,
    ) -> Self {
        Self {
            store,
            instance_id,
            place,
            ender,
            config,
            endings: Arc::new(Semaphore::new(ENDING_MAX)),
            watched: HashSet::new(),
            ending: HashSet::new(),
            waiting: HashMap::new(),
            closing_all: Vec::new(),
            reaping: None,
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
        let running = self.unfinished().await?.len();
        if running >= self.config.max_processes as usize {
            return Err(LeasesError::TooMany { running, limit: self.config.max_processes });
        }
        let new = NewLease {
            lease_id: LeaseId(door.ports.ids.uuid_v7()),
            instance_id: self.instance_id,
            session_id: lease.session_id,
            agent: lease.agent,
            wrapper_root: self.place.install_root.clone(),
            wrapper_path: self.place.wrapper_path.clone(),
            command_hash: lease.command_hash,
            boot_id: self.ender.table.boot_id().map_err(LeasesError::Boot)?,
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
        let root = LeaseRoot {
            pid: i64::from(root.pid),
            start_ticks: root.start_ticks,
            pidfd_ino: root.pidfd_inode,
            process_group_id: Some(i64::from(root.process_group_id)),
        };
        let answer = self.apply(door, LeaseChange::Open { lease_id, root }).await;
        if let Ok(record) = &answer {
            self.watch(door, record.clone(), exit);
        }
        reply.send(answer);
    }

    /// Waits beside the actor for a wrapper's end. The message goes to the address: it finds a later incarnation, too.
    fn watch(&mut self, door: &Door, record: LeaseRecord, mut exit: ExitWatch) {
        self.watched.insert(record.lease_id);
        let (address, ender) = (door.address().clone(), self.ender.clone());
        tokio::spawn(async move {
            let lease_id = record.lease_id;
            let tree = exit.tree_ended().await;
            let adapter = exit.adapter_ended().await;
            let killed = adapter.is_none() && tree.exit_signal == Some(rustix::process::Signal::KILL.as_raw());
            let end = if killed {
                tracing::warn!(%lease_id, "a wrapper was killed; what it left behind is looked for");
                run_blocking(move || ender.end_orphans(&record, Vec::new())).await
            } else {
                TreeEnd::Ended { killed: false }
            };
            // A tree that has ended takes its unfinished leases to the next start.
            let _stopped = address.tell(LeasesMessage::TreeEnded { lease_id, exit: adapter, end }).await;
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

    fn begin_end(&mut self, door: &Door, record: LeaseRecord) {
        let lease_id = record.lease_id;
        if !self.ending.insert(lease_id) {
            return;
        }
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
        }
    }

    pub(super) async fn tree_ended(&mut self, door: &Door, lease_id: LeaseId, exit: Option<ProcessExit>, end: TreeEnd) {
        self.watched.remove(&lease_id);
        // Its end was seen, so it is not lost.
        let end = if end == TreeEnd::Gone { TreeEnd::Ended { killed: false } } else { end };
        self.settle(door, lease_id, end, exit).await;
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
        if record.state.is_over() {
            return Ok(record);
        }
        match end.verdict() {
            (Some(state), error) => {
                if let Some(reason) = &error {
                    tracing::warn!(%lease_id, agent = record.agent, reason, "a lease ends as {state}; nothing was signalled");
                }
                let exit = exit.map(|exit| LeaseExit { exit_code: exit.exit_code, exit_signal: exit.exit_signal });
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
        if is_over {
            self.warnings.remove(&lease_id);
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
                    reaping.report.kept.push(lease_id);
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

    /// Begins with the leases, never with command lines: what no lease of this install names is left alone.
    pub(super) async fn reap(&mut self, door: &Door, reply: LeasesReply<ReapReport>) {
        if let Some(reaping) = &mut self.reaping {
            return reaping.replies.push(reply);
        }
        let left_open = match self.left_open().await {
            Ok(left_open) => left_open,
            Err(error) => return reply.send(Err(error)),
        };
        let pending = left_open.iter().map(|record| record.lease_id).collect();
        self.reaping = Some(Reaping { pending, report: ReapReport::default(), replies: vec![reply] });
        for record in left_open {
            self.begin_end(door, record);
        }
        self.finish_reaping(door).await;
    }

    /// Returns the leases that earlier runs left open. A reload starts this actor anew while adapters go on: what this
    /// run made, or what is our own child, is not left open.
    async fn left_open(&mut self) -> Result<Vec<LeaseRecord>, LeasesError> {
        let mut unfinished = self.unfinished().await?;
        let children = match &self.place.spawner {
            Some(spawner) => spawner.children().await.unwrap_or_default(),
            None => HashSet::new(),
        };
        unfinished.retain(|record| {
            let is_child =
                record.root.is_some_and(|root| i32::try_from(root.pid).is_ok_and(|pid| children.contains(&pid)));
            record.started_at_ms < self.place.run_started_at_ms && !is_child
        });
        Ok(unfinished)
    }

    async fn finish_reaping(&mut self, door: &Door) {
        if self.reaping.as_ref().is_none_or(|reaping| !reaping.pending.is_empty()) {
            return;
        }
        let Some(mut reaping) = self.reaping.take() else { return };
        reaping.report.expired = self.expire(door).await;
        let ReapReport { closed, lost, kept, expired } = &reaping.report;
        tracing::info!(
            closed = closed.len(),
            lost = lost.len(),
            kept = kept.len(),
            expired,
            "leases of earlier runs were looked after"
        );
        for reply in reaping.replies {
            reply.send(Ok(reaping.report.clone()));
        }
    }

    /// Removes what has been over for longer than the retention; returns how many.
    pub(super) async fn expire(&mut self, door: &Door) -> u64 {
        let before_ms = door.ports.clock.now_ms().saturating_sub(i64::from(self.config.retention_days) * DAY_MS);
        let mut expired = 0;
        loop {
            match self.store.lease_expire(before_ms).await {
                Ok(0) => return expired,
                Ok(removed) => expired += removed,
                Err(error) => {
                    tracing::warn!(%error, "old leases could not be removed");
                    return expired;
                }
            }
        }
    }

    /// Reads beside the actor.
    pub(super) fn list(&self, filter: LeaseFilter, before: Option<LeaseId>, limit: u32, reply: LeasesReply<LeasePage>) {
        let reads = self.store.reads();
        tokio::spawn(async move { reply.send(reads.lease_list(&filter, before, limit).await.map_err(Into::into)) });
    }

    /// Reads beside the actor.
    pub(super) fn show(&self, lease_id: LeaseId, reply: LeasesReply<Option<LeaseRecord>>) {
        let reads = self.store.reads();
        tokio::spawn(async move { reply.send(reads.lease_show(lease_id).await.map_err(Into::into)) });
    }

    pub(super) async fn status(&mut self) -> LeasesStatus {
        LeasesStatus {
            unfinished: self.unfinished().await.map_or(0, |unfinished| unfinished.len()),
            warnings: self.warnings.iter().map(|(lease_id, text)| (*lease_id, text.clone())).collect(),
            reaping: self.reaping.is_some(),
        }
    }

    async fn unfinished(&mut self) -> Result<Vec<LeaseRecord>, LeasesError> {
        Ok(self.store.reads().lease_unfinished(self.instance_id).await?)
    }

    /// Makes one change durable.
    async fn apply(&mut self, door: &Door, change: LeaseChange) -> Result<LeaseRecord, LeasesError> {
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
async fn run_blocking(work: impl FnOnce() -> TreeEnd + Send + 'static) -> TreeEnd {
    match tokio::task::spawn_blocking(work).await {
        Ok(end) => end,
        Err(error) => TreeEnd::Unclear(format!("the attempt itself failed: {error}")),
    }
}
