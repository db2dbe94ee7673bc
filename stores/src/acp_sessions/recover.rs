//! What earlier runs of the daemon left unfinished, settled at start: turns that were cut become `interrupted`, tool calls
//! they left open are marked in the history, sessions that never came to be become `failed`.

use std::sync::Arc;

use holdfast_protocol::acp::open_calls::OpenCalls;
use serde_json::value::RawValue;

use super::read::{PAGE_MAX, update_page};
use super::row::{AcpSessionRowId, AcpUpdate, RowChange, SessionChange, TurnEnd, TurnOutcome};
use super::{AcpSessionsStore, ROLE};
use crate::kit::StoreError;
use crate::kit::error::InStore;

/// Why a cut turn ended, as people read it.
pub const CUT_REASON: &str = "the daemon ended in the middle of the turn";

/// What was settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Turns that are `interrupted` now.
    pub turns: usize,
    /// Sessions that are `failed` now.
    pub sessions: usize,
}

/// Settles everything of runs other than `boot_id`. Running it again changes nothing.
pub(super) async fn settle(store: &mut AcpSessionsStore, boot_id: &str, now_ms: i64) -> Result<Recovered, StoreError> {
    let failed =
        sqlx::query!("UPDATE acp_session SET status = 'failed' WHERE status = 'starting' AND boot_id <> ?1", boot_id)
            .execute(store.database.writer())
            .await
            .in_store(ROLE, "settle sessions that never came to be")?;
    let cut = sqlx::query!(
        "SELECT turn.session, turn.number, turn.first_seq, session.session_id, session.update_count
         FROM acp_session AS session JOIN acp_turn AS turn ON turn.session = session.id
         WHERE session.turn_state = 'running' AND turn.state = 'running' AND turn.boot_id <> ?1
         ORDER BY turn.session, turn.number",
        boot_id
    )
    .fetch_all(store.database.writer())
    .await
    .in_store(ROLE, "find turns that were cut")?;
    let turns = cut.len();
    let mut changes = Vec::with_capacity(turns);
    for turn in cut {
        let session = AcpSessionRowId(turn.session);
        let marks = open_call_marks(store, session, turn.first_seq, &turn.session_id).await?;
        let updates = (turn.update_count + 1..).zip(marks).map(|(seq, params)| AcpUpdate {
            seq,
            turn_number: Some(turn.number),
            kind: "tool_call_update".to_owned(),
            method: None,
            params,
            created_at_ms: now_ms,
        });
        changes.push(Arc::new(SessionChange {
            row_id: session,
            updates: updates.collect(),
            begin: None,
            end: Some(TurnEnd {
                number: turn.number,
                outcome: TurnOutcome::Interrupted,
                stop_reason: None,
                result: None,
                error: Some(CUT_REASON.to_owned()),
            }),
            row: RowChange::default(),
            at_ms: now_ms,
        }));
    }
    for answer in store.change_record(&changes).await.answers {
        answer?;
    }
    let sessions = usize::try_from(failed.rows_affected()).unwrap_or(usize::MAX);
    Ok(Recovered { turns, sessions })
}

/// Returns the updates that mark the tool calls a turn left open.
async fn open_call_marks(
    store: &mut AcpSessionsStore,
    session: AcpSessionRowId,
    first_seq: i64,
    session_id: &str,
) -> Result<Vec<String>, StoreError> {
    let mut calls = OpenCalls::default();
    let mut after_seq = first_seq - 1;
    loop {
        let page = update_page(store.database.writer(), session, after_seq, PAGE_MAX).await?;
        let Some(last) = page.last() else { return Ok(calls.interrupt(session_id, CUT_REASON)) };
        after_seq = last.seq;
        for update in page.iter().filter(|update| update.method.is_none() && update.kind.starts_with("tool_call")) {
            if let Ok(params) = serde_json::from_str::<&RawValue>(&update.params) {
                calls.saw(params);
            }
        }
    }
}
