//! `lease/…`

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::LeaseId;
use holdfast_protocol::methods::lease::{
    CheckOutcome, CheckResult, KeptLease, LeaseDetail, LeaseRow, LeaseState as WireState, LeasedProcess, List,
    ListParams, ListResult, Reap, ReapParams, ReapResult, Show, ShowParams, Verdict as WireVerdict, Verification,
    Verify, VerifyParams,
};
use holdfast_stores::kit::CursorKey;
use holdfast_stores::leases::{LEASE_PAGE_MAX, LeaseFilter, LeaseRecord, LeaseState};

use crate::leases::{Inspection, LeaseReads, Verdict};
use crate::methods::MethodContext;
use crate::process::{Finding, Outcome, ProcessStat};
use crate::router::RouterBuilder;
use crate::time::rfc3339_utc;

/// Leases of a page when the caller names no number.
const PAGE_DEFAULT: u32 = 100;

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    let handles = &context.handles;
    register_reads(builder, LeaseReads::Owner(handles.leases.clone()), handles.acp.cursors.clone());
    let handles = context.handles.clone();
    builder.on_async::<Verify, _, _>(move |_call, VerifyParams { lease_id }| {
        let handles = handles.clone();
        async move {
            let (record, inspection) = handles.leases.verify(lease_id).await.map_err(|error| hinted(error.into()))?;
            Ok(verification(&record, inspection))
        }
    });
    let handles = context.handles.clone();
    builder.on_async::<Reap, _, _>(move |_call, ReapParams { dry_run }| {
        let handles = handles.clone();
        async move {
            let report = match dry_run {
                true => handles.leases.foresee().await?,
                false => handles.leases.reap_startup_orphans().await?,
            };
            let kept = report.kept.into_iter().map(|(lease_id, why)| KeptLease { lease_id, why }).collect();
            Ok(ReapResult { dry_run, closed: report.closed, lost: report.lost, kept, expired: report.expired })
        }
    });
}

/// Registers what only reads, over the owner or over its file at rest.
pub(crate) fn register_reads(builder: &mut RouterBuilder, reads: LeaseReads, cursors: CursorKey) {
    let listed = reads.clone();
    builder.on_async::<List, _, _>(move |_call, params| {
        let (reads, cursors) = (listed.clone(), cursors.clone());
        async move { list(&reads, &cursors, params).await }
    });
    builder.on_async::<Show, _, _>(move |_call, ShowParams { lease_id }| {
        let reads = reads.clone();
        async move { reads.show(lease_id).await?.map(detail).ok_or_else(|| unknown(lease_id)) }
    });
}

fn unknown(lease_id: LeaseId) -> WireError {
    hinted(WireError::new(ErrorKind::NotFound, format!("there is no lease {lease_id}")))
}

fn hinted(error: WireError) -> WireError {
    match error.kind {
        ErrorKind::NotFound => error.with_remedy("`holdfast lease list` shows all"),
        _ => error,
    }
}

async fn list(reads: &LeaseReads, cursors: &CursorKey, params: ListParams) -> Result<ListResult, WireError> {
    let limit = params.limit.unwrap_or(PAGE_DEFAULT).clamp(1, LEASE_PAGE_MAX);
    let ListParams { agent, session_id, state, unfinished, id_prefix, cursor, limit: _ } = &params;
    // A cursor is good only with the conditions it was made with.
    let conditions = ("lease/list", agent, session_id, state, unfinished, id_prefix);
    let name = serde_json::to_string(&conditions).unwrap_or_default();
    let before = match cursor {
        Some(cursor) => {
            let decoded = cursors.decode::<LeaseId>(&name, cursor);
            Some(decoded.map_err(|error| error.to_wire().at_path("cursor"))?)
        }
        None => None,
    };
    let filter = LeaseFilter {
        agent: params.agent,
        session_id: params.session_id,
        unfinished: params.unfinished,
        state: params.state.map(stored_state),
        id_prefix: params.id_prefix,
    };
    let page = reads.list(filter, before, limit).await?;
    Ok(ListResult {
        leases: page.leases.into_iter().map(row).collect(),
        next_cursor: page.next.map(|next| cursors.encode(&name, &next)),
    })
}

fn stored_state(state: WireState) -> LeaseState {
    match state {
        WireState::Starting => LeaseState::Starting,
        WireState::Open => LeaseState::Open,
        WireState::Closing => LeaseState::Closing,
        WireState::Closed => LeaseState::Closed,
        WireState::Lost => LeaseState::Lost,
    }
}

fn wire_state(state: LeaseState) -> WireState {
    match state {
        LeaseState::Starting => WireState::Starting,
        LeaseState::Open => WireState::Open,
        LeaseState::Closing => WireState::Closing,
        LeaseState::Closed => WireState::Closed,
        LeaseState::Lost => WireState::Lost,
    }
}

fn row(record: LeaseRecord) -> LeaseRow {
    LeaseRow {
        lease_id: record.lease_id,
        agent: record.agent,
        session_id: record.session_id,
        state: wire_state(record.state),
        root_pid: record.root.map(|root| root.pid),
        exit_code: record.exit.exit_code,
        exit_signal: record.exit.exit_signal,
        last_error: record.last_error,
        started_at: rfc3339_utc(record.started_at_ms),
        started_at_ms: record.started_at_ms,
        state_changed_at: rfc3339_utc(record.state_changed_at_ms),
        state_changed_at_ms: record.state_changed_at_ms,
    }
}

fn detail(record: LeaseRecord) -> LeaseDetail {
    LeaseDetail {
        instance_id: record.instance_id,
        boot_id: record.boot_id.clone(),
        root_start_ticks: record.root.map(|root| root.start_ticks),
        root_pidfd_inode: record.root.and_then(|root| root.pidfd_ino),
        process_group_id: record.root.and_then(|root| root.process_group_id),
        cgroup: record.cgroup_path.as_ref().map(|path| path.display().to_string()),
        wrapper: record.wrapper_path.display().to_string(),
        command_hash: blake3::Hash::from_bytes(record.command_hash).to_hex().to_string(),
        row: row(record),
    }
}

fn verification(record: &LeaseRecord, inspection: Inspection) -> Verification {
    Verification {
        lease_id: record.lease_id,
        state: wire_state(record.state),
        verdict: match inspection.verdict {
            Verdict::Owned => WireVerdict::Owned,
            Verdict::Gone => WireVerdict::Gone,
            Verdict::Foreign(_) => WireVerdict::Foreign,
            Verdict::Unclear(_) => WireVerdict::Unclear,
            Verdict::Unrecorded => WireVerdict::Unrecorded,
        },
        reason: inspection.verdict.reason(),
        checks: inspection.findings.into_iter().map(check_result).collect(),
        processes: inspection.processes.iter().map(process).collect(),
    }
}

fn check_result(finding: Finding) -> CheckResult {
    let (outcome, recorded, found, why) = match finding.outcome {
        Outcome::Passed { found } => (CheckOutcome::Passed, None, Some(found), None),
        Outcome::Failed { recorded, found } => (CheckOutcome::Failed, Some(recorded), Some(found), None),
        Outcome::Unknown { why } => (CheckOutcome::Unknown, None, None, Some(why)),
        Outcome::NotRecorded => (CheckOutcome::NotRecorded, None, None, None),
        Outcome::NotMade => (CheckOutcome::NotMade, None, None, None),
    };
    CheckResult { check: finding.check.name().to_owned(), outcome, recorded, found, why }
}

fn process(stat: &ProcessStat) -> LeasedProcess {
    LeasedProcess {
        pid: stat.pid,
        parent_pid: stat.parent_pid,
        process_group_id: stat.process_group_id,
        session_id: stat.session_id,
    }
}
