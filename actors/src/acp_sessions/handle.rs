//! Typed calls to the owner of the ACP sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_stores::acp_sessions::{
    self, AcpSessionRow, AcpSessionRowId, AcpUpdate, NewAcpSession, SessionChange, SessionFilter, TurnRow,
};
use holdfast_stores::kit::{Reader, Readers, StoreError};

use crate::acp_sessions::{AcpReads, AcpSessionsError, AcpSessionsMessage};
use crate::address::{Address, CallError, Down};
use crate::reply::Reply;
use crate::shown::Shown;
use crate::store;

/// Longer than a disk with a full queue takes; past it the outcome is unknown.
const LIMIT: Duration = Duration::from_secs(30);

/// Asks the owner of the ACP sessions. Reads go through its read-only connections and see committed rows only.
#[derive(Debug, Clone)]
pub struct AcpSessionsHandle {
    address: Address<AcpSessionsMessage>,
    readers: Shown<Readers>,
}

impl AcpSessionsHandle {
    /// Makes a handle; `readers` is where the surface shows what reads its store.
    pub fn new(address: Address<AcpSessionsMessage>, readers: Shown<Readers>) -> Self {
        Self { address, readers }
    }

    /// Makes a session; on disk when this returns.
    ///
    /// # Errors
    /// [`AcpSessionsError::KeyTaken`] when another session of the agent has its name.
    pub async fn create(&self, session: NewAcpSession) -> Result<AcpSessionRow, AcpSessionsError> {
        let session = Box::new(session);
        self.address.call(LIMIT, |reply| AcpSessionsMessage::Create { session, reply }).await?
    }

    /// Sends what happened in one session to be stored; `reply` is answered once it is on disk. Changes sent one after
    /// the other are stored in that order.
    ///
    /// # Errors
    /// When nobody will ever take it.
    pub async fn record(
        &self,
        change: Arc<SessionChange>,
        reply: Reply<Result<(), StoreError>>,
    ) -> Result<(), CallError> {
        self.address.post_in_order(reply, |reply| AcpSessionsMessage::Record { change, reply }).await
    }

    /// Returns a session.
    ///
    /// # Errors
    /// [`AcpSessionsError::NotFound`].
    pub async fn get(&self, session_id: SessionId) -> Result<AcpSessionRow, AcpSessionsError> {
        self.reads().get(session_id).await
    }

    /// Returns the session an agent has under a name, if any.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn find_by_key(
        &self,
        agent: &AgentAlias,
        session_key: &str,
    ) -> Result<Option<AcpSessionRow>, AcpSessionsError> {
        let mut reader = self.reader().await?;
        Ok(acp_sessions::session_find_by_key(&mut reader, agent, session_key).await?)
    }

    /// Returns sessions, newest change first.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn list(&self, filter: &SessionFilter) -> Result<Vec<AcpSessionRow>, AcpSessionsError> {
        self.reads().list(filter).await
    }

    /// Returns up to `limit` updates after a position, in order.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn updates_after(
        &self,
        row_id: AcpSessionRowId,
        after_seq: i64,
        limit: i64,
    ) -> Result<Vec<AcpUpdate>, AcpSessionsError> {
        self.reads().updates_after(row_id, after_seq, limit).await
    }

    /// Returns all turns of a session, in order.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn turns(&self, row_id: AcpSessionRowId) -> Result<Vec<TurnRow>, AcpSessionsError> {
        self.reads().turns(row_id).await
    }

    /// Returns how many sessions of each agent have a turn that runs; agents without one are left out.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn running_by_agent(&self) -> Result<BTreeMap<String, u64>, AcpSessionsError> {
        let mut reader = self.reader().await?;
        let running = acp_sessions::running_by_agent(&mut reader).await?;
        Ok(running.into_iter().map(|(agent, turns)| (agent, u64::try_from(turns).unwrap_or(0))).collect())
    }

    /// Returns what reads through the owner.
    pub(crate) fn reads(&self) -> AcpReads {
        AcpReads::Owner(self.clone())
    }

    /// Says why the store can't serve, if it can't.
    pub fn down(&self) -> Option<Down> {
        self.address.down()
    }

    pub(super) async fn reader(&self) -> Result<Reader, AcpSessionsError> {
        store::reader(&self.readers, |readers| readers, &self.address, LIMIT).await
    }
}
