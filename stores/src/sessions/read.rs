//! Reading sessions and transcripts: single statements on a reader, each with a limit.

use holdfast_protocol::ids::SessionId;

use super::ROLE;
use super::row::{EventColumns, SessionColumns};
use super::types::{ListFilter, ListPosition, SessionRecord, StoredEvent, status_name};
use crate::kit::error::InStore;
use crate::kit::{Readers, StoreError};

/// Events or sessions on one page at most.
pub const PAGE_MAX: u32 = 1000;

/// Reads the store of sessions. Cheap to clone; sees committed rows only and never waits for the writer.
#[derive(Debug, Clone)]
pub struct SessionReads {
    readers: Readers,
}

/// A page of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsPage {
    /// The events, in order.
    pub events: Vec<StoredEvent>,
    /// Whether there are more: after the last one, or before the first one of a tail.
    pub more: bool,
}

/// A page of sessions, the last changed first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// The sessions.
    pub sessions: Vec<SessionRecord>,
    /// Where the next page begins; none on the last.
    pub next: Option<ListPosition>,
}

impl SessionReads {
    /// Reads through `readers` of the store's database.
    pub fn new(readers: Readers) -> Self {
        Self { readers }
    }

    /// Returns up to `limit` events behind `after_seq`, in order, [`PAGE_MAX`] at most. None: there is no such session.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn events_page(
        &self,
        session_id: SessionId,
        after_seq: u64,
        limit: u32,
    ) -> Result<Option<EventsPage>, StoreError> {
        const ACTION: &str = "read events";
        let limit = limit.clamp(1, PAGE_MAX);
        let (asked, after_seq) = (i64::from(limit) + 1, i64::try_from(after_seq).unwrap_or(i64::MAX));
        let id = session_id.0.as_bytes().as_slice();
        let mut reader = self.readers.reader().await?;
        let rows = sqlx::query_as!(
            EventColumns,
            "SELECT seq, event_id, parent_event_id, kind, role, created_at_ms, body_json FROM transcript_events
             WHERE session = (SELECT id FROM sessions WHERE session_id = ?) AND seq > ? ORDER BY seq LIMIT ?",
            id,
            after_seq,
            asked
        )
        .fetch_all(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        drop(reader);
        if rows.is_empty() && self.session_get(session_id).await?.is_none() {
            return Ok(None);
        }
        let more = rows.len() > limit as usize;
        let events = rows.into_iter().take(limit as usize).map(|row| row.into_event(ACTION));
        Ok(Some(EventsPage { events: events.collect::<Result<_, _>>()?, more }))
    }

    /// Returns the last `limit` events, in order, [`PAGE_MAX`] at most. None: there is no such session.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn events_tail(&self, session_id: SessionId, limit: u32) -> Result<Option<EventsPage>, StoreError> {
        const ACTION: &str = "read the last events";
        let limit = limit.clamp(1, PAGE_MAX);
        let asked = i64::from(limit) + 1;
        let id = session_id.0.as_bytes().as_slice();
        let mut reader = self.readers.reader().await?;
        let mut rows = sqlx::query_as!(
            EventColumns,
            "SELECT seq, event_id, parent_event_id, kind, role, created_at_ms, body_json FROM transcript_events
             WHERE session = (SELECT id FROM sessions WHERE session_id = ?) ORDER BY seq DESC LIMIT ?",
            id,
            asked
        )
        .fetch_all(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        drop(reader);
        if rows.is_empty() && self.session_get(session_id).await?.is_none() {
            return Ok(None);
        }
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let events = rows.into_iter().rev().map(|row| row.into_event(ACTION));
        Ok(Some(EventsPage { events: events.collect::<Result<_, _>>()?, more }))
    }

    /// Returns one session.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn session_get(&self, session_id: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        const ACTION: &str = "read a session";
        let id = session_id.0.as_bytes().as_slice();
        let mut reader = self.readers.reader().await?;
        let row = sqlx::query_as!(
            SessionColumns,
            r#"SELECT id AS "id!", session_id, agent_id, session_key, scope, status, display_name, model, turn_state,
                      turn_id, turn_count, message_count, last_seq, created_at_ms, updated_at_ms
               FROM sessions WHERE session_id = ?"#,
            id
        )
        .fetch_optional(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        row.map(|row| row.into_record(ACTION)).transpose()
    }

    /// Returns up to `limit` sessions after `after`, the last changed first, [`PAGE_MAX`] at most.
    ///
    /// A session that changes between two pages moves to the front; none that stays unchanged is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn session_list(
        &self,
        filter: &ListFilter,
        after: Option<ListPosition>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        const ACTION: &str = "list sessions";
        let Some((from, to)) = id_range(filter.id_prefix.as_deref().unwrap_or_default()) else {
            return Ok(ListPage { sessions: Vec::new(), next: None });
        };
        let (from, to) = (from.as_slice(), to.as_slice());
        let limit = limit.clamp(1, PAGE_MAX);
        let asked = i64::from(limit) + 1;
        let after = after.unwrap_or(ListPosition { updated_at_ms: i64::MAX, row: i64::MAX });
        let agent_id = filter.agent_id.as_ref().map(|agent_id| agent_id.as_str());
        let status = filter.status.map(status_name);
        let mut reader = self.readers.reader().await?;
        // The plus signs keep the index for the order: a page ends the walk, a sort of all sessions would not.
        let mut rows = sqlx::query_as!(
            SessionColumns,
            r#"SELECT id AS "id!", session_id, agent_id, session_key, scope, status, display_name, model, turn_state,
                      turn_id, turn_count, message_count, last_seq, created_at_ms, updated_at_ms
               FROM sessions
               WHERE (updated_at_ms, id) < (?1, ?2)
                 AND (?3 IS NULL OR agent_id = ?3)
                 AND (?4 IS NULL OR status = ?4)
                 AND (?5 IS NULL OR session_key = ?5)
                 AND +session_id BETWEEN ?6 AND ?7
               ORDER BY updated_at_ms DESC, id DESC LIMIT ?8"#,
            after.updated_at_ms,
            after.row,
            agent_id,
            status,
            filter.session_key,
            from,
            to,
            asked
        )
        .fetch_all(&mut *reader)
        .await
        .in_store(ROLE, ACTION)?;
        drop(reader);
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let last = rows.last().map(|row| ListPosition { updated_at_ms: row.updated_at_ms, row: row.id });
        let sessions = rows.into_iter().map(|row| row.into_record(ACTION)).collect::<Result<_, _>>()?;
        Ok(ListPage { sessions, next: last.filter(|_| more) })
    }
}

/// Returns the first and last id that begin with these hexadecimal digits. None: no id does.
fn id_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    let digits: Vec<u8> = prefix
        .chars()
        .filter(|letter| *letter != '-')
        .map(|letter| letter.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    if digits.len() > 32 {
        return None;
    }
    let filled = |filler: u8| {
        let mut bytes = [0_u8; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let digit = |at: usize| digits.get(at).copied().unwrap_or(filler);
            *byte = digit(2 * at) << 4 | digit(2 * at + 1);
        }
        bytes
    };
    Some((filled(0), filled(15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_the_ids_that_begin_with_it() {
        assert_eq!(id_range(""), Some(([0; 16], [0xff; 16])));
        let (from, to) = id_range("0199A3C2-0").unwrap();
        assert_eq!(from[..5], [0x01, 0x99, 0xa3, 0xc2, 0x00]);
        assert_eq!(to[..6], [0x01, 0x99, 0xa3, 0xc2, 0x0f, 0xff]);
        assert_eq!(id_range("xyz"), None);
        assert_eq!(id_range(&"0".repeat(33)), None);
    }
}
