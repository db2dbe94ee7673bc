//! Who asks: the owner of the install, or something that one of our sessions started.
//!
//! Ancestry to a live wrapper of ours is proof, and so is membership in the cgroup of its lease: neither can be shaken off
//! by a process that the wrapper's tree started. The environment is only a claim. Believing a claim can only take rights
//! away, as a session may never do more than the owner; so a claim that fits a live lease counts, and one that does not
//! is passed over.

use holdfast_protocol::ids::{InstanceId, LeaseId, SessionId};
use holdfast_stores::leases::LeaseRecord;

use crate::process::lineage::{Ancestor, ChainEnd, Lineage};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requester {
    /// The person who owns the install: an editor, a shell, a script.
    Owner,
    /// Something that runs in one of our sessions.
    Session(SessionRequester),
    /// Nobody can say who it is; it has no rights.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Something that runs under a lease of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRequester {
    /// The lease.
    pub lease_id: LeaseId,
    /// The agent.
    pub agent: String,
    /// The session, where the lease is for one.
    pub session_id: Option<SessionId>,
    /// How that is known.
    pub proof: Proof,
}

/// How it is known that something runs under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A live wrapper of ours is its ancestor.
    Ancestry,
    /// It is in the cgroup of the lease.
    Cgroup,
    /// Its environment says so, and no proof contradicts that.
    Claim,
}

/// Decides who a process is. `leases` are those that are not over; the process is `own_children_are_orphans` where this
/// process starts children through wrappers only, so that any other child of its own was left by one.
pub fn requester_of(
    lineage: &Lineage,
    leases: &[LeaseRecord],
    instance_id: InstanceId,
    own_children_are_orphans: bool,
) -> Requester {
    let ours = |record: &&LeaseRecord| record.instance_id == instance_id && record.boot_id == lineage.boot_id;
    let named = |lease_id: LeaseId| leases.iter().filter(ours).find(|record| record.lease_id == lease_id);
    // The nearest wrapper: a session that another one started is itself, not the other.
    let wrapper =
        lineage.chain.iter().find_map(|ancestor| leases.iter().filter(ours).find(|record| is_root(record, ancestor)));
    if let Some(record) = wrapper {
        return session(record, Proof::Ancestry);
    }
    let in_cgroup = lineage.cgroups.iter().rev().find_map(|lease_id| named(*lease_id));
    if let Some(record) = in_cgroup.filter(|record| record.cgroup_path.is_some()) {
        return session(record, Proof::Cgroup);
    }
    let claimed = lineage.claim.and_then(|claim| {
        let record = named(claim.lease_id)?;
        let fits = claim.instance_id == Some(instance_id)
            && (claim.session_id.is_none() || claim.session_id == record.session_id);
        fits.then_some(record)
    });
    if let Some(record) = claimed {
        return session(record, Proof::Claim);
    }
    let is_child = lineage.end == ChainEnd::Us && lineage.chain.len() > 1;
    if is_child && own_children_are_orphans {
        return Requester::Unknown { why: "its session's wrapper was killed".to_owned() };
    }
    Requester::Owner
}

fn is_root(record: &LeaseRecord, ancestor: &Ancestor) -> bool {
    let same_inode = |recorded: Option<u64>| match (recorded, ancestor.pidfd_inode) {
        (Some(recorded), Some(live)) => recorded == live,
        (None, _) | (_, None) => true,
    };
    record.root.is_some_and(|root| {
        root.pid == i64::from(ancestor.pid) && root.start_ticks == ancestor.start_ticks && same_inode(root.pidfd_ino)
    })
}

fn session(record: &LeaseRecord, proof: Proof) -> Requester {
    Requester::Session(SessionRequester {
        lease_id: record.lease_id,
        agent: record.agent.clone(),
        session_id: record.session_id,
        proof,
    })
}
