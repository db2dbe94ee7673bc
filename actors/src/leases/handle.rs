//! Typed calls to the Leases actor.

use std::time::Duration;

use holdfast_protocol::ids::{InstanceId, LeaseId};
use holdfast_stores::leases::{LeaseFilter, LeasePage, LeaseReads, LeaseRecord};

use super::config::KILL_GRACE_MAX;
use super::ending::StoredEnd;
use super::error::LeasesError;
use super::inspection::{Inspection, ReapReport};
use super::leased::{ExitWatch, RootIdentity};
use super::message::{LeasesMessage, LeasesReply, LeasesStatus, OpenLease};
use super::requester::{Requester, requester_of};
use crate::address::Address;
use crate::process::{Lineage, StoredProcess};
use crate::shown::Shown;

/// Requests that touch the store only.
const STORE_LIMIT: Duration = Duration::from_secs(15);
/// Requests that end trees: the longest grace period, dying of SIGKILL, and waiting for a turn. Each of these is bounded by
/// itself, so this only covers a fault of ours.
const END_LIMIT: Duration = KILL_GRACE_MAX.saturating_add(Duration::from_secs(60));

/// What Leases shows without being asked.
#[derive(Debug, Clone)]
pub struct LeasesShown {
    /// What reads its store.
    pub(super) reads: LeaseReads,
    /// Whose leases they are.
    pub(super) instance_id: InstanceId,
    /// Whether a child of this process that is no wrapper was left by one.
    pub(super) own_children_are_orphans: bool,
}

/// Asks the Leases actor. Cheap to clone; outlives restarts.
#[derive(Debug, Clone)]
pub struct LeasesHandle {
    address: Address<LeasesMessage>,
    shown: Shown<LeasesShown>,
}

impl LeasesHandle {
    /// Makes a handle; `shown` is where the surface shows what it knows.
    pub fn new(address: Address<LeasesMessage>, shown: Shown<LeasesShown>) -> Self {
        Self { address, shown }
    }

    /// Returns the actor's address.
    pub fn address(&self) -> &Address<LeasesMessage> {
        &self.address
    }

    /// Makes a lease in the state `starting`; on disk when this returns, so the process may be spawned.
    ///
    /// # Errors
    /// [`LeasesError::TooMany`] at the bound on processes.
    pub async fn open(&self, lease: OpenLease) -> Result<LeaseRecord, LeasesError> {
        self.call(STORE_LIMIT, |reply| LeasesMessage::Open { lease, reply }).await
    }

    /// Records the wrapper; the actor watches it from here on.
    ///
    /// # Errors
    /// [`LeasesError`]: the caller must end the process.
    pub async fn opened(
        &self,
        lease_id: LeaseId,
        root: RootIdentity,
        exit: ExitWatch,
    ) -> Result<LeaseRecord, LeasesError> {
        self.call(STORE_LIMIT, |reply| LeasesMessage::Opened { lease_id, root, exit, reply }).await
    }

    /// Records that the process could not be started.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn failed(&self, lease_id: LeaseId, error: String) -> Result<LeaseRecord, LeasesError> {
        self.call(STORE_LIMIT, |reply| LeasesMessage::Failed { lease_id, error, reply }).await
    }

    /// Ends a lease's tree and returns when it has gone; a lease that is over is simply returned.
    ///
    /// # Errors
    /// [`LeasesError::Unverifiable`] and [`LeasesError::Survivors`] leave the lease as it is.
    pub async fn close(&self, lease_id: LeaseId, reason: Option<String>) -> Result<LeaseRecord, LeasesError> {
        self.call(END_LIMIT, |reply| LeasesMessage::Close { lease_id, reason, reply }).await
    }

    /// Ends all trees; returns how many leases are not over for all that.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn close_all(&self) -> Result<usize, LeasesError> {
        self.call(END_LIMIT, |reply| LeasesMessage::CloseAll { reply }).await
    }

    /// Gives a lease up without any signal.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn mark_lost(&self, lease_id: LeaseId, reason: String) -> Result<LeaseRecord, LeasesError> {
        self.call(STORE_LIMIT, |reply| LeasesMessage::MarkLost { lease_id, reason, reply }).await
    }

    /// Lists leases, the youngest first.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn list(
        &self,
        filter: LeaseFilter,
        before: Option<LeaseId>,
        limit: u32,
    ) -> Result<LeasePage, LeasesError> {
        Ok(self.shown().await?.reads.lease_list(&filter, before, limit).await?)
    }

    /// Shows a lease.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn show(&self, lease_id: LeaseId) -> Result<Option<LeaseRecord>, LeasesError> {
        Ok(self.shown().await?.reads.lease_show(lease_id).await?)
    }

    /// Returns how many leases are not over.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn unfinished(&self) -> Result<usize, LeasesError> {
        let LeasesShown { reads, instance_id, .. } = self.shown().await?;
        Ok(reads.lease_unfinished(instance_id).await?.len())
    }

    /// Waits for the reaping that runs at start, or runs another.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn reap_startup_orphans(&self) -> Result<ReapReport, LeasesError> {
        self.call(END_LIMIT, |reply| LeasesMessage::ReapStartupOrphans { reply }).await
    }

    /// Says what a reaping would do now, and does nothing.
    ///
    /// # Errors
    /// [`LeasesError`].
    pub async fn foresee(&self) -> Result<ReapReport, LeasesError> {
        self.call(END_LIMIT, |reply| LeasesMessage::Foresee { reply }).await
    }

    /// Looks at a lease's tree, check by check, and signals nothing.
    ///
    /// # Errors
    /// [`LeasesError::Refused`] when there is no such lease.
    pub async fn verify(&self, lease_id: LeaseId) -> Result<(LeaseRecord, Inspection), LeasesError> {
        self.call(STORE_LIMIT, |reply| LeasesMessage::Verify { lease_id, reply }).await
    }

    /// Ends the process of a row without a lease, such as an imported one, if it lives and shows exactly what the row says.
    ///
    /// # Errors
    /// [`LeasesError::Call`].
    pub async fn end_stored(&self, stored: StoredProcess) -> Result<StoredEnd, LeasesError> {
        self.call(END_LIMIT, |reply| LeasesMessage::EndStored { stored, reply }).await
    }

    /// Says who a process is that asks for something.
    ///
    /// # Errors
    /// [`LeasesError`]: then nobody can say.
    pub async fn requester(&self, lineage: &Lineage) -> Result<Requester, LeasesError> {
        let LeasesShown { reads, instance_id, own_children_are_orphans } = self.shown().await?;
        let leases = reads.lease_unfinished(instance_id).await?;
        Ok(requester_of(lineage, &leases, instance_id, own_children_are_orphans))
    }

    /// Says how the leases stand.
    ///
    /// # Errors
    /// [`LeasesError::Call`].
    pub async fn status(&self) -> Result<LeasesStatus, LeasesError> {
        Ok(self.address.call(STORE_LIMIT, |reply| LeasesMessage::Status { reply }).await?)
    }

    async fn shown(&self) -> Result<LeasesShown, LeasesError> {
        Ok(self.shown.get(&self.address, STORE_LIMIT).await?)
    }

    async fn call<T>(
        &self,
        limit: Duration,
        build: impl FnOnce(LeasesReply<T>) -> LeasesMessage,
    ) -> Result<T, LeasesError> {
        self.address.call(limit, build).await?
    }
}
