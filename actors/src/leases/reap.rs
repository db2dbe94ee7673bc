//! Reaping: what earlier runs left open, at start; what came to nothing in this one, at every edge of a lease's life.
//!
//! It begins with the leases, never with command lines: what no lease of this install names is left alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_protocol::ids::LeaseId;
use holdfast_stores::leases::{LeaseRecord, LeaseState};

use super::adopt::Ownership;
use super::ending::KILL_LIMIT;
use super::error::LeasesError;
use super::inspection::ReapReport;
use super::message::{LeasesMessage, LeasesReply};
use super::state::{Door, LeasesState};
use crate::process::descendants_of;

/// One day in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// A lease that could not be ended is tried again after this long, when something else happens.
const RETRY_MS: i64 = 30_000;
/// Edges that follow each other closely are swept once.
const SWEEP_PAUSE_MS: i64 = 5_000;
/// A start takes half a minute at most; a lease that is starting for longer was forgotten by whoever made it.
const START_STALE_MS: i64 = 120_000;

/// A reaping under way.
pub(super) struct Reaping {
    pub(super) pending: HashSet<LeaseId>,
    pub(super) report: ReapReport,
    replies: Vec<LeasesReply<ReapReport>>,
}

/// When was looked after what.
#[derive(Default)]
pub(super) struct Sweeps {
    last_ms: Option<i64>,
    tried_ms: HashMap<LeaseId, i64>,
    /// What was seen below each wrapper, as pid and start time, where that is needed to attribute orphans.
    recorded: HashMap<LeaseId, Vec<(i32, u64)>>,
}

impl Sweeps {
    pub(super) fn tried(&mut self, lease_id: LeaseId, now_ms: i64) {
        self.tried_ms.insert(lease_id, now_ms);
    }

    pub(super) fn forget(&mut self, lease_id: LeaseId) {
        self.tried_ms.remove(&lease_id);
        self.recorded.remove(&lease_id);
    }

    pub(super) fn take_recorded(&mut self, lease_id: LeaseId) -> Vec<(i32, u64)> {
        self.recorded.remove(&lease_id).unwrap_or_default()
    }

    fn may_try(&self, lease_id: LeaseId, now_ms: i64) -> bool {
        self.tried_ms.get(&lease_id).is_none_or(|tried_ms| now_ms.saturating_sub(*tried_ms) >= RETRY_MS)
    }
}

impl LeasesState {
    /// Looks after the leases that earlier runs left open.
    pub(super) async fn reap(&mut self, door: &Door, reply: LeasesReply<ReapReport>) {
        if let Some(reaping) = &mut self.reaping {
            return reaping.replies.push(reply);
        }
        let left_open = match self.left_alone(door.ports.clock.now_ms()).await {
            Ok(left_open) => left_open,
            Err(error) => return reply.send(Err(error)),
        };
        let pending = left_open.iter().map(|record| record.lease_id).collect();
        self.reaping = Some(Reaping { pending, report: ReapReport::default(), replies: vec![reply] });
        for record in left_open {
            self.begin_end(door, record);
        }
        self.clean_leaves();
        self.finish_reaping(door).await;
    }

    /// Says what a reaping would do now.
    pub(super) async fn foresee(&mut self, door: &Door, reply: LeasesReply<ReapReport>) {
        let left_open = match self.left_alone(door.ports.clock.now_ms()).await {
            Ok(left_open) => left_open,
            Err(error) => return reply.send(Err(error)),
        };
        let before_ms = self.expire_before_ms(door);
        let (reads, ender) = (self.store.reads(), self.ender.clone());
        tokio::spawn(async move {
            let expired = match reads.lease_count_expired(before_ms).await {
                Ok(expired) => expired,
                Err(error) => return reply.send(Err(error.into())),
            };
            let looked = tokio::task::spawn_blocking(move || {
                let mut report = ReapReport { expired, ..ReapReport::default() };
                for record in &left_open {
                    report.foresee(record.lease_id, &ender.look(record));
                }
                report
            });
            // A look that panicked answers by dropping the reply.
            if let Ok(report) = looked.await {
                reply.send(Ok(report));
            }
        });
    }

    /// Returns the leases that nobody of this run looks after: those that earlier runs left open, and those of this run
    /// whose end, or whose start, came to nothing. A reload starts this actor anew while adapters go on: what this run
    /// made and what runs is not among them.
    async fn left_alone(&mut self, now_ms: i64) -> Result<Vec<LeaseRecord>, LeasesError> {
        let mut unfinished = self.unfinished().await?;
        let children = match &self.place.spawner {
            Some(spawner) => spawner.children().await.unwrap_or_default(),
            None => HashSet::new(),
        };
        let end_stale_ms = i64::try_from((self.config.kill_grace() + 2 * KILL_LIMIT).as_millis()).unwrap_or(i64::MAX);
        unfinished.retain(|record| {
            let is_child =
                record.root.is_some_and(|root| i32::try_from(root.pid).is_ok_and(|pid| children.contains(&pid)));
            let age_ms = now_ms.saturating_sub(record.state_changed_at_ms);
            match record.state {
                _ if record.started_at_ms < self.place.run_started_at_ms => !is_child,
                LeaseState::Starting => age_ms > START_STALE_MS,
                // A child that is closing belongs to an attempt that an incarnation before this one began.
                LeaseState::Closing => age_ms > end_stale_ms,
                LeaseState::Open | LeaseState::Closed | LeaseState::Lost => false,
            }
        });
        Ok(unfinished)
    }

    pub(super) async fn finish_reaping(&mut self, door: &Door) {
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

    /// Something began or ended: what hung before may come loose now. Not more often than every few seconds.
    pub(super) async fn sweep_at_an_edge(&mut self, door: &Door) {
        let now_ms = door.ports.clock.now_ms();
        if self.sweeps.last_ms.is_none_or(|last_ms| now_ms.saturating_sub(last_ms) >= SWEEP_PAUSE_MS) {
            self.sweep(door).await;
        }
    }

    /// Tries again what could not be ended, looks after what nobody looks after, and removes what is over.
    pub(super) async fn sweep(&mut self, door: &Door) {
        let now_ms = door.ports.clock.now_ms();
        self.sweeps.last_ms = Some(now_ms);
        match self.left_alone(now_ms).await {
            Ok(left_alone) => {
                for record in left_alone {
                    if !self.watched.contains(&record.lease_id) && self.sweeps.may_try(record.lease_id, now_ms) {
                        self.begin_end(door, record);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "leases could not be looked after"),
        }
        self.clean_leaves();
        self.record_descendants(door).await;
        self.expire(door).await;
    }

    /// Removes, beside the actor, the cgroups of leases that are over. Those of other installs are not ours to judge.
    fn clean_leaves(&self) {
        let Some(cgroups) = self.place.cgroups.clone() else { return };
        let (reads, ender, instance_id) = (self.store.reads(), self.ender.clone(), self.instance_id);
        tokio::spawn(async move {
            let listed = tokio::task::spawn_blocking(move || cgroups.leaves()).await;
            let leaves = match listed {
                Ok(Ok(leaves)) => leaves,
                Ok(Err(error)) => return tracing::debug!(%error, "the cgroups of leases can't be listed"),
                Err(_panic) => return,
            };
            for (lease_id, path) in leaves {
                // One that can't be read now is looked for again.
                let Ok(Some(record)) = reads.lease_show(lease_id).await else { continue };
                let is_ours = record.instance_id == instance_id && record.cgroup_path.as_ref() == Some(&path);
                if is_ours && record.state.is_over() {
                    let table = Arc::clone(&ender.table);
                    let busy = tokio::task::spawn_blocking(move || table.cgroup_remove(&path)).await;
                    if let Ok(Err(error)) = busy {
                        tracing::warn!(%lease_id, %error, "the cgroup of a lease that is over can't be removed");
                    }
                }
            }
        });
    }

    /// Notes what runs below each wrapper, where orphans can't be told by being orphans.
    async fn record_descendants(&mut self, door: &Door) {
        let shared = self.ender.adopter.as_ref().is_some_and(|adopter| adopter.ownership() == Ownership::Shared);
        if !shared || self.watched.is_empty() {
            return;
        }
        let Ok(unfinished) = self.unfinished().await else { return };
        let roots: Vec<(LeaseId, i32)> = unfinished
            .iter()
            .filter(|record| self.watched.contains(&record.lease_id))
            .filter_map(|record| Some((record.lease_id, i32::try_from(record.root?.pid).ok()?)))
            .collect();
        let (table, reporter) = (Arc::clone(&self.ender.table), door.reporter());
        tokio::task::spawn_blocking(move || {
            let Ok(processes) = table.list() else { return };
            let seen = roots.into_iter().map(|(lease_id, root)| {
                let below = descendants_of(root, &processes);
                let identity = |(pid, _): &(i32, u32)| {
                    let process = processes.iter().find(|process| process.pid == *pid)?;
                    Some((process.pid, process.start_ticks))
                };
                (lease_id, below.iter().filter_map(identity).collect())
            });
            // An incarnation that has ended is followed by one that looks for itself.
            let _ended = reporter.report(LeasesMessage::DescendantsSeen { seen: seen.collect() });
        });
    }

    pub(super) fn descendants_seen(&mut self, seen: Vec<(LeaseId, Vec<(i32, u64)>)>) {
        for (lease_id, below) in seen {
            if self.watched.contains(&lease_id) {
                self.sweeps.recorded.insert(lease_id, below);
            }
        }
    }

    /// Removes what has been over for longer than the retention; returns how many.
    async fn expire(&mut self, door: &Door) -> u64 {
        let before_ms = self.expire_before_ms(door);
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

    fn expire_before_ms(&self, door: &Door) -> i64 {
        door.ports.clock.now_ms().saturating_sub(i64::from(self.config.retention_days) * DAY_MS)
    }
}
