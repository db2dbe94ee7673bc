//! Reading ACP sessions: through their owner, or from its file while no owner runs.

use std::collections::HashMap;

use holdfast_protocol::ids::SessionId;
use holdfast_stores::acp_sessions::{
    self, AcpSessionRow, AcpSessionRowId, AcpSessionStatus, AcpUpdate, CUT_REASON, Ownership, SessionFilter, TurnRow,
    TurnState,
};
use holdfast_stores::kit::{Reader, Readers};

use super::{AcpSessionsError, AcpSessionsHandle};
use crate::address::{CallError, Down};

/// Reads ACP sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum AcpReads {
    /// Through the owner: committed rows, while the owner writes.
    Owner(AcpSessionsHandle),
    /// From the file, which nobody owns now.
    AtRest {
        /// `None`: there is no file, so there are no sessions.
        readers: Result<Option<Readers>, Down>,
        /// Whether a turn that is noted as running has ended with its daemon, and is shown as the next start will have it.
        settled: bool,
    },
}

impl AcpReads {
    pub(crate) async fn get(&self, session_id: SessionId) -> Result<AcpSessionRow, AcpSessionsError> {
        let Some(mut reader) = self.reader().await? else { return Err(AcpSessionsError::NotFound(session_id)) };
        let row = acp_sessions::session_get(&mut reader, session_id).await?;
        row.map(|row| self.as_it_stands(row)).ok_or(AcpSessionsError::NotFound(session_id))
    }

    pub(crate) async fn list(&self, filter: &SessionFilter) -> Result<Vec<AcpSessionRow>, AcpSessionsError> {
        let Some(mut reader) = self.reader().await? else { return Ok(Vec::new()) };
        let rows = acp_sessions::session_list(&mut reader, filter).await?;
        let rows = rows.into_iter().map(|row| self.as_it_stands(row));
        // Those that never came to be are listed when asked for.
        let wanted = |row: &AcpSessionRow| {
            row.status != AcpSessionStatus::Failed || filter.statuses.contains(&AcpSessionStatus::Failed)
        };
        Ok(rows.filter(wanted).collect())
    }

    /// Returns whose these sessions are; those that are not there are left out.
    pub(crate) async fn ownership(
        &self,
        sessions: &[AcpSessionRowId],
    ) -> Result<HashMap<AcpSessionRowId, Ownership>, AcpSessionsError> {
        let Some(mut reader) = self.reader().await? else { return Ok(HashMap::new()) };
        Ok(acp_sessions::ownership_list(&mut reader, sessions).await?)
    }

    pub(crate) async fn updates_after(
        &self,
        row_id: AcpSessionRowId,
        after_seq: i64,
        limit: i64,
    ) -> Result<Vec<AcpUpdate>, AcpSessionsError> {
        let Some(mut reader) = self.reader().await? else { return Ok(Vec::new()) };
        Ok(acp_sessions::update_page(&mut reader, row_id, after_seq, limit).await?)
    }

    pub(crate) async fn turns(&self, row_id: AcpSessionRowId) -> Result<Vec<TurnRow>, AcpSessionsError> {
        let Some(mut reader) = self.reader().await? else { return Ok(Vec::new()) };
        let mut turns = acp_sessions::turn_list(&mut reader, row_id).await?;
        for turn in turns.iter_mut().filter(|turn| self.is_settled() && turn.state == TurnState::Running.name()) {
            turn.state = TurnState::Interrupted.name().to_owned();
            turn.error = Some(CUT_REASON.to_owned());
        }
        Ok(turns)
    }

    fn is_settled(&self) -> bool {
        matches!(self, Self::AtRest { settled: true, .. })
    }

    /// The row as the next start of a daemon will leave it.
    fn as_it_stands(&self, mut row: AcpSessionRow) -> AcpSessionRow {
        if self.is_settled() {
            if row.turn_state == TurnState::Running {
                row.turn_state = TurnState::Interrupted;
            }
            if row.status == AcpSessionStatus::Starting {
                row.status = AcpSessionStatus::Failed;
            }
        }
        row
    }

    async fn reader(&self) -> Result<Option<Reader>, AcpSessionsError> {
        match self {
            Self::Owner(handle) => handle.reader().await.map(Some),
            Self::AtRest { readers: Ok(Some(readers)), .. } => Ok(Some(readers.reader().await?)),
            Self::AtRest { readers: Ok(None), .. } => Ok(None),
            Self::AtRest { readers: Err(down), .. } => Err(CallError::Down(down.clone()).into()),
        }
    }
}
