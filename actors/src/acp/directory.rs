//! Which sessions are in flight: one live session for each that anyone uses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::acp::errors::{acp_error, session_not_found};
use holdfast_protocol::error::{ErrorObject, WireError};
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_stores::acp_sessions::{AcpSessionRow, AcpSessionStatus, NewAcpSession, SessionFilter};

use crate::acp::environment::Environment;
use crate::acp::session::{LiveSession, SessionMessage};
use crate::acp_sessions::{AcpSessionsError, AcpSessionsHandle};
use crate::address::{Address, CallError, Down};
use crate::ports::Ports;
use crate::reply::Reply;
use crate::supervisor::{DynamicSupervisor, Limits};
use crate::surface::{Context, Fault, Surface};
use crate::visibility::Eyes;

/// Messages in flight to one live session: updates on their way to the store count, so this bounds its memory too.
const SESSION_IN_FLIGHT: usize = 2_048;
/// A store that restarts takes less.
const LIMIT: Duration = Duration::from_secs(60);

/// A session that a client wants made.
#[derive(Debug, Clone)]
pub struct WantedSession {
    /// The agent.
    pub agent: AgentAlias,
    /// A name for it, unique an agent.
    pub session_key: Option<String>,
    /// The working directory, absolute.
    pub cwd: String,
    /// `session/new` params as the agent will get them.
    pub new_params: String,
}

/// What the directory can be asked or told.
pub enum DirectoryMessage {
    /// Makes a session and its live side. The agent is not asked yet.
    Create {
        /// The session.
        wanted: Box<WantedSession>,
        /// The session that asks for it, if one does.
        owner: Option<String>,
        /// Its id and live side.
        reply: Reply<Result<(SessionId, Address<SessionMessage>), ErrorObject>>,
    },
    /// The row of a session that a client wanted made is on disk.
    Made {
        /// The row.
        row: Box<AcpSessionRow>,
        /// As for `Create`.
        reply: Reply<Result<(SessionId, Address<SessionMessage>), ErrorObject>>,
    },
    /// Finds a session's live side, or brings it up from the store.
    Find {
        /// Which.
        session_id: SessionId,
        /// Whose it must be; another agent's is not found.
        agent: Option<AgentAlias>,
        /// Its live side.
        reply: Reply<Result<Address<SessionMessage>, ErrorObject>>,
    },
    /// A live session has ended.
    Ended {
        /// Which.
        session_id: SessionId,
        /// Which of its lives.
        life: u64,
    },
}

/// Asks the directory.
#[derive(Debug, Clone)]
pub struct DirectoryHandle {
    address: Address<DirectoryMessage>,
    /// Through whose eyes it is looked; without any, all is seen.
    eyes: Option<Eyes>,
}

impl DirectoryHandle {
    /// Makes a handle.
    pub fn new(address: Address<DirectoryMessage>) -> Self {
        Self { address, eyes: None }
    }

    /// Returns a handle that finds only what `eyes` see, and makes sessions that are theirs.
    #[must_use]
    pub fn seen_by(&self, eyes: Eyes) -> Self {
        Self { address: self.address.clone(), eyes: Some(eyes) }
    }

    /// Makes a session; its row is on disk when this returns, the agent not asked yet.
    ///
    /// # Errors
    /// As an ACP client is told.
    pub async fn create(&self, wanted: WantedSession) -> Result<(SessionId, Address<SessionMessage>), ErrorObject> {
        let wanted = Box::new(wanted);
        let owner = match &self.eyes {
            Some(eyes) => eyes.new_owner().map_err(|error| acp_error(&error, None))?,
            None => None,
        };
        let made = self.address.call(LIMIT, |reply| DirectoryMessage::Create { wanted, owner, reply }).await;
        made.unwrap_or_else(|error| Err(acp_error(&WireError::from(error), None)))
    }

    /// Returns the sessions of a listing that are seen.
    ///
    /// # Errors
    /// As [`AcpSessionsHandle::list`].
    pub async fn list(
        &self,
        store: &AcpSessionsHandle,
        filter: &SessionFilter,
    ) -> Result<Vec<AcpSessionRow>, AcpSessionsError> {
        match &self.eyes {
            Some(eyes) => eyes.list(filter).await,
            None => store.list(filter).await,
        }
    }

    /// Finds a session's live side. One of another agent than `agent`, and one that is not seen, is not found.
    ///
    /// # Errors
    /// As an ACP client is told.
    pub async fn find(
        &self,
        session_id: SessionId,
        agent: Option<AgentAlias>,
    ) -> Result<Address<SessionMessage>, ErrorObject> {
        if let Some(eyes) = &self.eyes {
            let id = session_id.to_string();
            let seen = eyes.see(session_id).await.map_err(|error| acp_error(&error.into(), Some(&id)))?;
            if !seen {
                return Err(session_not_found(&id));
            }
        }
        let found = self.address.call(LIMIT, |reply| DirectoryMessage::Find { session_id, agent, reply }).await;
        found.unwrap_or_else(|error| Err(acp_error(&WireError::from(error), Some(&session_id.to_string()))))
    }
}

async fn new_row(
    environment: &Environment,
    ports: &Ports,
    wanted: WantedSession,
    owner_session_key: Option<String>,
) -> Result<AcpSessionRow, ErrorObject> {
    let told = |error: WireError| acp_error(&error, None);
    let instance_id = environment.catalog.instance_id().await.map_err(told)?;
    // An agent that does not exist must leave no row.
    environment.catalog.settings(&wanted.agent).await.map_err(told)?;
    let session = NewAcpSession {
        session_id: SessionId(ports.ids.uuid_v7()),
        agent_id: wanted.agent,
        session_key: wanted.session_key,
        cwd: wanted.cwd,
        new_params: wanted.new_params,
        owner_session_key,
        instance_id,
        boot_id: environment.boot_id.clone(),
        created_at_ms: ports.clock.now_ms(),
    };
    environment.store.create(session).await.map_err(|error| told(error.into()))
}

/// The directory of sessions in flight.
pub struct Directory {
    environment: Arc<Environment>,
    sessions: DynamicSupervisor,
}

impl Directory {
    /// Makes the directory; live sessions are put under `sessions`.
    pub fn new(environment: Arc<Environment>, sessions: DynamicSupervisor) -> Self {
        Self { environment, sessions }
    }
}

/// The live sessions. A crash forgets them: they end with their supervisor, and come back from the store.
#[derive(Default)]
pub struct DirectoryState {
    live: HashMap<SessionId, LiveEntry>,
    lives: u64,
}

struct LiveEntry {
    life: u64,
    agent: AgentAlias,
    address: Address<SessionMessage>,
}

impl Surface for Directory {
    type Message = DirectoryMessage;
    type State = DirectoryState;

    async fn start(&self, _context: &Context<DirectoryMessage>) -> Result<DirectoryState, Down> {
        Ok(DirectoryState::default())
    }

    async fn handle(
        &self,
        context: &Context<DirectoryMessage>,
        message: DirectoryMessage,
        state: &mut DirectoryState,
    ) -> Result<(), Fault> {
        match message {
            DirectoryMessage::Create { wanted, owner, reply } => self.create(*wanted, owner, reply, context),
            DirectoryMessage::Made { row, reply } => {
                let session_id = row.session_id;
                let live = self.bring_to_life(*row, state, context).await;
                reply.send(live.map(|address| (session_id, address)));
            }
            DirectoryMessage::Find { session_id, agent, reply } => {
                let outcome = self.find(session_id, agent, state, context).await;
                reply.send(outcome);
            }
            DirectoryMessage::Ended { session_id, life } => {
                if state.live.get(&session_id).is_some_and(|entry| entry.life == life) {
                    state.live.remove(&session_id);
                }
            }
        }
        Ok(())
    }

    async fn stop(&self, _context: &Context<DirectoryMessage>, _state: DirectoryState) {}
}

impl Directory {
    /// Makes the row beside the actor: a store that waits for its file must not hold up those who look for a session.
    fn create(
        &self,
        wanted: WantedSession,
        owner: Option<String>,
        reply: Reply<Result<(SessionId, Address<SessionMessage>), ErrorObject>>,
        context: &Context<DirectoryMessage>,
    ) {
        let (environment, ports, reporter) = (Arc::clone(&self.environment), context.ports.clone(), context.reporter());
        tokio::spawn(async move {
            match new_row(&environment, &ports, wanted, owner).await {
                Ok(row) => {
                    let made = DirectoryMessage::Made { row: Box::new(row), reply };
                    // A directory that has gone drops the reply, which tells that the outcome is unknown.
                    let _gone = reporter.report(made);
                }
                Err(error) => reply.send(Err(error)),
            }
        });
    }

    async fn find(
        &self,
        session_id: SessionId,
        agent: Option<AgentAlias>,
        state: &mut DirectoryState,
        context: &Context<DirectoryMessage>,
    ) -> Result<Address<SessionMessage>, ErrorObject> {
        let id = session_id.to_string();
        let theirs = |owner: &AgentAlias| agent.as_ref().is_none_or(|agent| agent == owner);
        if let Some(entry) = state.live.get(&session_id)
            && entry.address.state_name() != "stopped"
        {
            return if theirs(&entry.agent) { Ok(entry.address.clone()) } else { Err(session_not_found(&id)) };
        }
        let row = match self.environment.store.get(session_id).await {
            Ok(row) => row,
            Err(AcpSessionsError::NotFound(_)) => return Err(session_not_found(&id)),
            Err(error) => return Err(acp_error(&error.into(), Some(&id))),
        };
        if !theirs(&row.agent_id) || row.status == AcpSessionStatus::Failed {
            return Err(session_not_found(&id));
        }
        self.bring_to_life(row, state, context).await
    }

    async fn bring_to_life(
        &self,
        row: AcpSessionRow,
        state: &mut DirectoryState,
        context: &Context<DirectoryMessage>,
    ) -> Result<Address<SessionMessage>, ErrorObject> {
        // Whoever lists sessions may have found a new one before its maker comes here.
        if let Some(entry) = state.live.get(&row.session_id)
            && entry.address.state_name() != "stopped"
        {
            return Ok(entry.address.clone());
        }
        state.lives += 1;
        let (life, session_id, agent) = (state.lives, row.session_id, row.agent_id.clone());
        let limits = Limits { in_flight_max: SESSION_IN_FLIGHT, drain: Duration::from_secs(20), ..Limits::default() };
        let live = LiveSession::new(Arc::clone(&self.environment), row);
        let reporter = context.reporter();
        let on_end = move |_ended| {
            // A directory that has gone knows of no session anyway.
            let _gone = reporter.report(DirectoryMessage::Ended { session_id, life });
        };
        let address = self
            .sessions
            .spawn("acp-session", limits, live, on_end)
            .await
            .map_err(|error: CallError| acp_error(&error.into(), Some(&session_id.to_string())))?;
        state.live.insert(session_id, LiveEntry { life, agent, address: address.clone() });
        Ok(address)
    }
}
