//! Process leases: which adapter processes are ours, and the proof of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{LeaseId, SessionId};
use crate::method;

method!(
    List = "lease/list", false, ListParams => ListResult,
    "Returns process leases that meet all conditions, the youngest first, a page at a time."
);
method!(
    Show = "lease/show", false, ShowParams => LeaseDetail,
    "Returns one process lease in full."
);
method!(
    Verify = "lease/verify", false, VerifyParams => Verification,
    "Checks a lease against the live processes, check by check, and signals nothing."
);
method!(
    Reap = "lease/reap", true, ReapParams => ReapResult,
    "Looks after the leases that earlier runs left open: verified trees are ended, what is gone or foreign is given up, what \
     can't be verified is kept. Repeating it does no harm."
);

/// Params of `lease/list`. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListParams {
    /// Of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// In this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LeaseState>,
    /// Only those that are not over.
    #[serde(default)]
    pub unfinished: bool,
    /// Whose id begins with this; so a shortened id is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Goes on from `next_cursor` of an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Leases at most; 100 when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Result of `lease/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListResult {
    /// The leases.
    pub leases: Vec<LeaseRow>,
    /// Where to go on; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What listings show of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseRow {
    /// Its id.
    pub lease_id: LeaseId,
    /// Whose processes they are: the agent as `config.toml` names it.
    pub agent: String,
    /// The session they serve, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Where it stands.
    pub state: LeaseState,
    /// The process id of the tree's root, the wrapper, as recorded: any number. Once the lease is over it may be another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_pid: Option<i64>,
    /// How the adapter ended: its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How the adapter ended: the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    /// The last thing that went wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it was made, RFC 3339 in UTC.
    pub started_at: String,
    /// When it was made.
    pub started_at_ms: i64,
    /// Since when it is in its state, RFC 3339 in UTC.
    pub state_changed_at: String,
    /// Since when it is in its state.
    pub state_changed_at_ms: i64,
}

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Recorded; its process is about to be started.
    Starting,
    /// Its tree runs.
    Open,
    /// Its tree is being ended.
    Closing,
    /// Its whole tree has gone, and we saw it go.
    Closed,
    /// Its tree was gone, or not ours any more, when we looked.
    Lost,
}

/// Params of `lease/show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShowParams {
    /// Which lease.
    pub lease_id: LeaseId,
}

/// Result of `lease/show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseDetail {
    /// What listings show.
    #[serde(flatten)]
    pub row: LeaseRow,
    /// The install that made it.
    pub instance_id: crate::ids::InstanceId,
    /// The boot its processes belong to.
    pub boot_id: String,
    /// The wrapper's start time, in clock ticks after boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_start_ticks: Option<u64>,
    /// The inode of the wrapper's pidfd, where the kernel has one (Linux 6.9): unique within a boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_pidfd_inode: Option<u64>,
    /// The process group and session that the wrapper leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_group_id: Option<i64>,
    /// The cgroup made for the tree, where there can be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The wrapper's executable.
    pub wrapper: String,
    /// BLAKE3 of the command as configured, hexadecimal.
    pub command_hash: String,
}

/// Params of `lease/verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyParams {
    /// Which lease.
    pub lease_id: LeaseId,
}

/// Result of `lease/verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// The lease.
    pub lease_id: LeaseId,
    /// Where it stands.
    pub state: LeaseState,
    /// What follows from the checks.
    pub verdict: Verdict,
    /// What there is to say beside the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The checks in their order; none when the lease records no process.
    pub checks: Vec<CheckResult>,
    /// The processes found: the tree from its root down when it is ours, else what is left of it.
    pub processes: Vec<LeasedProcess>,
}

/// What follows from the checks of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All evidence agrees: the tree is ours to end.
    Owned,
    /// The wrapper has ended.
    Gone,
    /// What lives at that process id is not this lease's; it is never signalled.
    Foreign,
    /// A check could not be made; nothing is signalled until it can.
    Unclear,
    /// No process was recorded, yet some carry the lease in their environment: a start that was cut short.
    Unrecorded,
}

/// One check and what came out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckResult {
    /// Its stable name: `root_pid`, `recorded_group`, `recorded_cgroup`, `boot`, `alive`, `pidfd_inode`, `start_ticks`,
    /// `group_and_session`, `environment`, `executable`, `cgroup`, `descendants`.
    pub check: String,
    /// What came out of it.
    pub outcome: CheckOutcome,
    /// What the lease records, where it differs from what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// What was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What came out of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// It holds.
    Passed,
    /// It does not hold.
    Failed,
    /// It could not be made.
    Unknown,
    /// Nothing was recorded that could be compared.
    NotRecorded,
    /// One before it decided already.
    NotMade,
}

/// A process under a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeasedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its parent's.
    pub parent_pid: i32,
    /// Its process group.
    pub process_group_id: i32,
    /// Its session.
    pub session_id: i32,
}

/// Params of `lease/reap`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapParams {
    /// Only says what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of `lease/reap`: what was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapResult {
    /// Whether this only says what would be done.
    pub dry_run: bool,
    /// Leases whose verified trees were ended.
    pub closed: Vec<LeaseId>,
    /// Leases whose trees were gone or not ours.
    pub lost: Vec<LeaseId>,
    /// Leases that could not be verified or whose trees would not end; they stay as they are.
    pub kept: Vec<KeptLease>,
    /// Old leases removed.
    pub expired: u64,
}

/// A lease that a reaping left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptLease {
    /// Which.
    pub lease_id: LeaseId,
    /// Why.
    pub why: String,
}
