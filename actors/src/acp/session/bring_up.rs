//! From a stored session to a running agent that has it: start, initialize, then new, resume or load.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::acp::capabilities::AgentCapabilities;
use holdfast_protocol::acp::edit::set_member;
use holdfast_protocol::acp::errors::{AUTH_REQUIRED, acp_error, is_unknown_session, not_now};
use holdfast_protocol::acp::initialize::{SouthOffer, negotiated_version, south_params};
use holdfast_protocol::acp::{PROTOCOL_VERSION, envelope, method};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_protocol::raw;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::acp::adapter::{Adapter, AdapterError, AdapterMessage, AgentSink, FromAgent};
use crate::acp::environment::{AgentSettings, Environment};
use crate::acp::launcher::{AgentCommand, LaunchError};
use crate::address::{Address, CallError};
use crate::supervisor::{Ended, Limits};

/// A cold start of an agent takes up to 10 s; one that takes this long hangs.
const INITIALIZE_LIMIT: Duration = Duration::from_secs(60);
/// Some agents take 20 s to make their first session, and a load replays everything.
const SETUP_LIMIT: Duration = Duration::from_secs(180);

/// How long an agent's start waits until its answer to `initialize` is kept. That saves the next start some time, so a
/// store that is slow must not cost this one more.
const KEEP_LIMIT: Duration = Duration::from_millis(500);

/// When to try again to start an agent, if that may help.
const LAUNCH_AGAIN_MS: u64 = 1_000;

/// How an agent came to have the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It made it.
    New,
    /// It still had it.
    Resumed,
    /// It loaded it, replaying what it remembers.
    Loaded,
    /// It had lost it, and made a new one that has to be told what was said.
    Replaced,
}

/// An agent that has the session.
pub struct BroughtUp {
    /// Its process.
    pub adapter: Address<AdapterMessage>,
    /// What it offers.
    pub capabilities: AgentCapabilities,
    /// How it was configured when it started.
    pub settings: AgentSettings,
    /// Its own id of the session.
    pub agent_session_id: String,
    /// Its answer to new, load or resume.
    pub setup: Box<RawValue>,
    /// How it came to have the session.
    pub how: How,
}

/// Why there is no agent that has the session; as a client is told.
#[derive(Debug, Clone)]
pub struct BringUpError(pub ErrorObject);

impl BringUpError {
    fn not_now(message: String) -> Self {
        Self(not_now(ErrorKind::AgentFailed, message, None))
    }
}

impl From<LaunchError> for BringUpError {
    fn from(error: LaunchError) -> Self {
        let remedy = error.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        // Never a code on which clients take the session for lost.
        let retry_after_ms = error.kind.retryable().then_some(LAUNCH_AGAIN_MS);
        Self(not_now(error.kind, format!("{error}{remedy}"), retry_after_ms))
    }
}

/// What of a stored session an agent needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) session_id: Option<SessionId>,
    pub(crate) agent: AgentAlias,
    pub(crate) cwd: PathBuf,
    pub(crate) new_params: Box<RawValue>,
    pub(crate) agent_session_id: Option<String>,
}

/// Starts the agent and brings the session into it. `sink` gets what the agent says, from its first word. When the other
/// end of `broken_off` is dropped, the agent is ended and the start fails.
pub(crate) async fn bring_up<S: AgentSink>(
    environment: &Environment,
    wanted: Wanted,
    sink: S,
    mut broken_off: oneshot::Receiver<()>,
) -> Result<BroughtUp, BringUpError> {
    let settings = settings_of(environment, &wanted.agent).await?;
    let adapter = launch(environment, &settings, &wanted, sink).await?;
    let handshake = async {
        let initialize = introduce(environment, &settings, &adapter, &wanted.agent).await?;
        let capabilities = AgentCapabilities::from_initialize_result(&initialize);
        let (agent_session_id, setup, how) = set_up(&adapter, &wanted, &capabilities).await?;
        Ok(BroughtUp { adapter: adapter.clone(), capabilities, settings, agent_session_id, setup, how })
    };
    let outcome = tokio::select! {
        outcome = handshake => outcome,
        _dropped = &mut broken_off => {
            Err(BringUpError(not_now(ErrorKind::Cancelled, "the session was closed while its agent started", None)))
        }
    };
    if outcome.is_err() {
        end(&adapter).await;
    }
    outcome
}

/// Starts the agent only to ask it who it is, for the answer to a client's `initialize`.
pub(crate) async fn probe(environment: &Environment, agent: &AgentAlias) -> Result<Box<RawValue>, BringUpError> {
    let settings = settings_of(environment, agent).await?;
    let wanted = Wanted {
        session_id: None,
        agent: agent.clone(),
        cwd: PathBuf::from("/"),
        new_params: RawValue::NULL.to_owned(),
        agent_session_id: None,
    };
    let adapter = launch(environment, &settings, &wanted, Deaf).await?;
    let result = introduce(environment, &settings, &adapter, agent).await;
    end(&adapter).await;
    result
}

/// Hears nothing: for an agent that is only asked who it is.
struct Deaf;

impl AgentSink for Deaf {
    async fn take(&self, said: FromAgent) -> Result<(), ()> {
        if let FromAgent::Request { asked, method, .. } = said {
            asked.answer(Err(not_offered(&method)));
        }
        Ok(())
    }
}

/// What an agent is told that asks for what no client offers.
pub(crate) fn not_offered(method: &str) -> ErrorObject {
    WireError::new(ErrorKind::MethodNotFound, format!("`{method}` was not offered by this client")).to_object()
}

async fn settings_of(environment: &Environment, agent: &AgentAlias) -> Result<AgentSettings, BringUpError> {
    environment.catalog.settings(agent).await.map_err(|error| BringUpError(acp_error(&error, None)))
}

async fn launch<S: AgentSink>(
    environment: &Environment,
    settings: &AgentSettings,
    wanted: &Wanted,
    sink: S,
) -> Result<Address<AdapterMessage>, BringUpError> {
    let command = AgentCommand {
        alias: wanted.agent.clone(),
        argv: settings.argv.clone(),
        env: settings.env.clone(),
        cwd: wanted.cwd.clone(),
    };
    let launched = environment.launcher.launch(command, wanted.session_id).await?;
    let end_tree = Arc::clone(&launched.end);
    let on_end = move |ended| {
        // An adapter that stops ends its process itself; one that crashed cannot.
        if matches!(ended, Ended::Crashed(_)) {
            tokio::spawn(end_tree());
        }
    };
    let end_tree = Arc::clone(&launched.end);
    let spawned = environment.adapters.spawn("adapter", Limits::default(), Adapter::new(sink), on_end).await;
    let adapter = match spawned {
        Ok(adapter) => adapter,
        Err(error) => {
            end_tree().await;
            return Err(BringUpError::not_now(error.to_string()));
        }
    };
    if let Err(error) = adapter.tell(AdapterMessage::Run { launched }).await {
        end_tree().await;
        return Err(BringUpError::not_now(error.to_string()));
    }
    Ok(adapter)
}

/// Asks the agent who it is and keeps its answer for the next client that asks us.
async fn introduce(
    environment: &Environment,
    settings: &AgentSettings,
    adapter: &Address<AdapterMessage>,
    agent: &AgentAlias,
) -> Result<Box<RawValue>, BringUpError> {
    let result = initialize(environment, adapter, agent).await?;
    let (catalog, alias, settings, kept) =
        (Arc::clone(&environment.catalog), agent.clone(), settings.clone(), result.clone());
    let keeping = tokio::spawn(async move { catalog.keep_initialize_result(&alias, &settings, &kept).await });
    if tokio::time::timeout(KEEP_LIMIT, keeping).await.is_err() {
        tracing::debug!(%agent, "what the agent said of itself is not kept yet; nobody waits for that");
    }
    Ok(result)
}

async fn initialize(
    environment: &Environment,
    adapter: &Address<AdapterMessage>,
    agent: &AgentAlias,
) -> Result<Box<RawValue>, BringUpError> {
    let params = south_params(environment.version, SouthOffer::default())
        .map_err(|error| BringUpError::not_now(format!("failed to write `initialize`: {error}")))?;
    let result = ask(adapter, method::INITIALIZE, params, INITIALIZE_LIMIT)
        .await
        .map_err(|error| BringUpError::not_now(format!("agent `{agent}` did not start: {error}")))?;
    match negotiated_version(&result) {
        Some(version) if version == i64::from(PROTOCOL_VERSION) => Ok(result),
        other => Err(BringUpError::not_now(format!(
            "agent `{agent}` speaks version {} of the Agent Client Protocol, Holdfast speaks {PROTOCOL_VERSION}",
            other.map_or_else(|| "no".to_owned(), |version| version.to_string())
        ))),
    }
}

async fn set_up(
    adapter: &Address<AdapterMessage>,
    wanted: &Wanted,
    capabilities: &AgentCapabilities,
) -> Result<(String, Box<RawValue>, How), BringUpError> {
    let Some(agent_session_id) = &wanted.agent_session_id else {
        let (id, setup) = make_new(adapter, wanted).await?;
        return Ok((id, setup, How::New));
    };
    let (method, how) = match (capabilities.resume, capabilities.load) {
        (true, _) => (method::SESSION_RESUME, How::Resumed),
        (false, true) => (method::SESSION_LOAD, How::Loaded),
        (false, false) => {
            let (id, setup) = make_new(adapter, wanted).await?;
            return Ok((id, setup, How::Replaced));
        }
    };
    let params = set_member(&wanted.new_params, &["sessionId"], &raw::quote(agent_session_id))
        .map_err(|error| BringUpError::not_now(format!("failed to write `{method}`: {error}")))?;
    match ask(adapter, method, params, SETUP_LIMIT).await {
        Ok(setup) => Ok((agent_session_id.clone(), setup, how)),
        Err(AdapterError::Agent(error)) if is_unknown_session(&error) => {
            tracing::warn!(agent = %wanted.agent, "the agent no longer has the session; it gets a new one");
            let (id, setup) = make_new(adapter, wanted).await?;
            Ok((id, setup, How::Replaced))
        }
        Err(error) => Err(setup_error(method, error)),
    }
}

async fn make_new(adapter: &Address<AdapterMessage>, wanted: &Wanted) -> Result<(String, Box<RawValue>), BringUpError> {
    let setup = ask(adapter, method::SESSION_NEW, wanted.new_params.clone(), SETUP_LIMIT)
        .await
        .map_err(|error| setup_error(method::SESSION_NEW, error))?;
    match envelope::session_id(&setup) {
        Some(id) => Ok((id.into_owned(), setup)),
        None => Err(BringUpError::not_now(format!("agent `{}` made a session without an id", wanted.agent))),
    }
}

/// What a client is told when an agent refuses to set a session up: a request to sign in unchanged, anything else as
/// "not now", since most other codes make clients start a new session without a word.
fn setup_error(method: &str, error: AdapterError) -> BringUpError {
    match error {
        AdapterError::Agent(object) if object.code == AUTH_REQUIRED => BringUpError(object),
        error @ (AdapterError::Agent(_) | AdapterError::Gone(_) | AdapterError::Timeout { .. }) => {
            BringUpError::not_now(format!("`{method}` failed: {error}"))
        }
    }
}

/// Asks the agent, with a limit.
pub(crate) async fn ask(
    adapter: &Address<AdapterMessage>,
    method: &str,
    params: Box<RawValue>,
    limit: Duration,
) -> Result<Box<RawValue>, AdapterError> {
    let request = |reply| AdapterMessage::Request { method: method.to_owned(), params, reply };
    match adapter.call_waiting(limit, request).await {
        Ok(answer) => answer,
        Err(CallError::Timeout) => Err(AdapterError::Timeout { method: method.to_owned(), limit }),
        Err(error) => Err(AdapterError::Gone(error.to_string())),
    }
}

/// Ends the agent's process tree; returns when it has gone or cannot be ended.
pub(crate) async fn end(adapter: &Address<AdapterMessage>) {
    // Longer than the wrapper's grace period and kill; an adapter that is gone has ended its tree.
    let limit = Duration::from_secs(60);
    if let Err(CallError::Timeout) = adapter.call_waiting(limit, |reply| AdapterMessage::End { reply }).await {
        tracing::error!("an agent's process tree did not end in time; its lease stays open for the reaper");
    }
}
