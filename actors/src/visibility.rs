//! Which sessions a requester sees: one pure function over what a session's row says, and the viewer that applies it.
//!
//! What is not seen answers as not found, in listings, history, status and prompts alike.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_stores::acp_sessions::{AcpSessionRow, Ownership, PAGE_MAX, SessionFilter, SessionPosition};
use holdfast_stores::config::{A2aPolicy, AgentVisibility, AgentsConfig, SessionVisibility};

use crate::acp_sessions::{AcpReads, AcpSessionsError};
use crate::leases::Requester;
use crate::router::{Caller, Origin};
use crate::tree::Handles;

/// Says whether a requester sees a session. Makes no look-up: all it needs stands in the row.
///
/// Session keys are session ids as text: names that people give are unique within an agent only.
pub fn can_see(
    row: &Ownership,
    requester_session_key: &str,
    requester_agent_id: &AgentAlias,
    visibility: SessionVisibility,
    a2a_policy: &A2aPolicy,
    sandboxed: bool,
) -> bool {
    let is_own = row.session_key == requester_session_key;
    let names = |key: &Option<String>| key.as_deref() == Some(requester_session_key);
    let in_tree = is_own
        || names(&row.owner_session_key)
        || names(&row.spawned_by)
        || names(&row.parent_session_key)
        || row.ancestor_session_keys.iter().any(|key| key == requester_session_key);
    let is_same_agent = row.agent_id == *requester_agent_id;
    match visibility {
        SessionVisibility::OwnSession => is_own,
        SessionVisibility::Agent | SessionVisibility::All if sandboxed => in_tree,
        SessionVisibility::Tree => in_tree,
        SessionVisibility::Agent => is_same_agent || in_tree,
        SessionVisibility::All => is_same_agent || in_tree || a2a_policy.allows(&row.agent_id),
    }
}

/// Through whose eyes sessions are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Viewer {
    /// The owner of the install, who sees all.
    Owner,
    /// A session of ours.
    Session {
        /// Its key; empty for a process that serves no one session, which then owns none.
        session_key: String,
        /// Its agent.
        agent_id: AgentAlias,
        /// What its agent may see.
        visibility: AgentVisibility,
    },
    /// Nobody knows who asks, so nothing is shown.
    Nobody,
}

impl Viewer {
    /// Says whether it sees a session.
    pub fn sees(&self, row: &Ownership) -> bool {
        match self {
            Self::Owner => true,
            Self::Session { session_key, agent_id, visibility } => {
                let AgentVisibility { sessions, a2a, sandboxed } = visibility;
                can_see(row, session_key, agent_id, *sessions, a2a, *sandboxed)
            }
            Self::Nobody => false,
        }
    }

    /// Returns the session that asks, if it is one: what it makes is its own.
    pub fn session_key(&self) -> Option<&str> {
        match self {
            Self::Session { session_key, .. } if !session_key.is_empty() => Some(session_key),
            Self::Session { .. } | Self::Owner | Self::Nobody => None,
        }
    }

    /// Finds out through whose eyes a caller sees. What can't be found out shows nothing.
    pub async fn of(caller: &Caller, handles: &Handles) -> Self {
        let lineage = match (&caller.origin, caller.lineage.as_deref()) {
            // HTTP asks for its own user's processes or a token, and a session has neither by itself.
            (Origin::Http { .. }, _) => return Self::Owner,
            // Outside of our PID namespace nobody descends from us.
            (Origin::Socket { .. }, None) => return Self::Owner,
            (Origin::Socket { .. }, Some(Ok(lineage))) => lineage,
            (Origin::Socket { .. }, Some(Err(error))) => {
                tracing::warn!(%error, "nobody can say who asks, so no session is shown");
                return Self::Nobody;
            }
        };
        let requester = match handles.leases.requester(lineage).await {
            Ok(requester) => requester,
            // Every wrapper of this run is a child of ours, so this one runs below none, whatever the leases say.
            Err(_down) if lineage.is_unrelated() => Requester::Owner,
            Err(error) => {
                tracing::warn!(%error, "nobody can say who asks, so no session is shown");
                return Self::Nobody;
            }
        };
        match requester {
            Requester::Owner => Self::Owner,
            Requester::Unknown { why } => {
                tracing::warn!(why, "nobody can say who asks, so no session is shown");
                Self::Nobody
            }
            Requester::Session(session) => {
                let Ok(agent_id) = session.agent.parse::<AgentAlias>() else { return Self::Nobody };
                let agents = handles.config.section::<AgentsConfig>().await.unwrap_or_default();
                // An agent that the configuration no longer names sees what is its own.
                let visibility = agents.get(&agent_id).map_or_else(least, |agent| agent.visibility.clone());
                let session_key = session.session_id.map(|id| id.to_string()).unwrap_or_default();
                Self::Session { session_key, agent_id, visibility }
            }
        }
    }
}

/// A viewer and the store it looks into.
#[derive(Debug, Clone)]
pub struct Eyes {
    viewer: Viewer,
    reads: AcpReads,
}

impl Eyes {
    /// Looks through the eyes of a caller.
    pub async fn of(caller: &Caller, handles: &Handles) -> Self {
        Self::over(Viewer::of(caller, handles).await, handles.acp_sessions.reads())
    }

    /// Lets `viewer` look at what `reads` reads.
    pub(crate) fn over(viewer: Viewer, reads: AcpReads) -> Self {
        Self { viewer, reads }
    }

    /// Returns what reads sessions that were seen already.
    pub(crate) fn reads(&self) -> &AcpReads {
        &self.reads
    }

    /// Returns a session; one that it does not see is not found.
    ///
    /// # Errors
    /// [`AcpSessionsError::NotFound`].
    pub async fn get(&self, session_id: SessionId) -> Result<AcpSessionRow, AcpSessionsError> {
        let row = self.reads.get(session_id).await?;
        let ownership = match &self.viewer {
            Viewer::Owner => return Ok(row),
            Viewer::Session { .. } | Viewer::Nobody => self.reads.ownership(&[row.row_id]).await?,
        };
        let sees = ownership.get(&row.row_id).is_some_and(|ownership| self.viewer.sees(ownership));
        if sees { Ok(row) } else { Err(AcpSessionsError::NotFound(session_id)) }
    }

    /// Says whether it sees a session; one that is not there it may see.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn see(&self, session_id: SessionId) -> Result<bool, AcpSessionsError> {
        if self.viewer == Viewer::Owner {
            return Ok(true);
        }
        match self.get(session_id).await {
            Ok(_row) => Ok(true),
            Err(AcpSessionsError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the sessions of a listing that it sees, as many as were asked for if there are.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn list(&self, filter: &SessionFilter) -> Result<Vec<AcpSessionRow>, AcpSessionsError> {
        if self.viewer == Viewer::Owner {
            return self.reads.list(filter).await;
        }
        let wanted = usize::try_from(filter.limit.clamp(1, PAGE_MAX)).unwrap_or(usize::MAX);
        let mut filter = SessionFilter { limit: PAGE_MAX, ..filter.clone() };
        let mut seen = Vec::new();
        loop {
            let page = self.reads.list(&filter).await?;
            let is_last = i64::try_from(page.len()).is_ok_and(|count| count < PAGE_MAX);
            let ids: Vec<_> = page.iter().map(|row| row.row_id).collect();
            let ownership = self.reads.ownership(&ids).await?;
            filter.after =
                page.last().map(|last| SessionPosition { updated_at_ms: last.updated_at_ms, row_id: last.row_id.0 });
            let sees = |row: &AcpSessionRow| ownership.get(&row.row_id).is_some_and(|of| self.viewer.sees(of));
            seen.extend(page.into_iter().filter(sees));
            if is_last || seen.len() >= wanted {
                seen.truncate(wanted);
                return Ok(seen);
            }
        }
    }

    /// Returns whose a session that it makes is, if not its own.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] for nobody.
    pub fn new_owner(&self) -> Result<Option<String>, WireError> {
        match &self.viewer {
            Viewer::Owner | Viewer::Session { .. } => Ok(self.viewer.session_key().map(str::to_owned)),
            Viewer::Nobody => {
                let error = WireError::new(ErrorKind::Denied, "nobody can say which session asks for a new one");
                Err(error.with_remedy("ask from a process that still runs below its session's wrapper"))
            }
        }
    }
}

fn least() -> AgentVisibility {
    AgentVisibility { sessions: SessionVisibility::Tree, ..AgentVisibility::default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ME: &str = "me";

    fn alias(name: &str) -> AgentAlias {
        name.parse().unwrap()
    }

    fn row(agent: &str) -> Ownership {
        Ownership {
            session_key: "row".to_owned(),
            agent_id: alias(agent),
            owner_session_key: None,
            spawned_by: None,
            parent_session_key: None,
            ancestor_session_keys: Vec::new(),
        }
    }

    fn me() -> Option<String> {
        Some(ME.to_owned())
    }

    const EVERY: [SessionVisibility; 4] =
        [SessionVisibility::OwnSession, SessionVisibility::Tree, SessionVisibility::Agent, SessionVisibility::All];

    /// One line a row and a policy: what is seen with self, tree, agent, all, and with each of them sandboxed.
    #[test]
    fn the_whole_matrix() {
        let policies = [
            ("off", A2aPolicy::Everyone(false)),
            ("on", A2aPolicy::Everyone(true)),
            ("list", A2aPolicy::Agents([alias("codex")].into())),
        ];
        let rows = [
            ("own", Ownership { session_key: ME.to_owned(), ..row("claude") }),
            ("same agent", row("claude")),
            ("listed agent", row("codex")),
            ("other agent", row("gemini")),
            ("other agent, owned", Ownership { owner_session_key: me(), ..row("gemini") }),
            ("other agent, spawned", Ownership { spawned_by: me(), ..row("gemini") }),
            ("other agent, child", Ownership { parent_session_key: me(), ..row("gemini") }),
            (
                "other agent, grandchild",
                Ownership { ancestor_session_keys: vec![ME.to_owned(), "child".to_owned()], ..row("gemini") },
            ),
        ];
        let expected = [
            ("own", "off", "yyyy yyyy"),
            ("own", "on", "yyyy yyyy"),
            ("own", "list", "yyyy yyyy"),
            ("same agent", "off", "--yy ----"),
            ("same agent", "on", "--yy ----"),
            ("same agent", "list", "--yy ----"),
            ("listed agent", "off", "---- ----"),
            ("listed agent", "on", "---y ----"),
            ("listed agent", "list", "---y ----"),
            ("other agent", "off", "---- ----"),
            ("other agent", "on", "---y ----"),
            ("other agent", "list", "---- ----"),
            ("other agent, owned", "off", "-yyy -yyy"),
            ("other agent, owned", "on", "-yyy -yyy"),
            ("other agent, owned", "list", "-yyy -yyy"),
            ("other agent, spawned", "off", "-yyy -yyy"),
            ("other agent, spawned", "on", "-yyy -yyy"),
            ("other agent, spawned", "list", "-yyy -yyy"),
            ("other agent, child", "off", "-yyy -yyy"),
            ("other agent, child", "on", "-yyy -yyy"),
            ("other agent, child", "list", "-yyy -yyy"),
            ("other agent, grandchild", "off", "-yyy -yyy"),
            ("other agent, grandchild", "on", "-yyy -yyy"),
            ("other agent, grandchild", "list", "-yyy -yyy"),
        ];
        let mut seen = Vec::new();
        for (name, row) in &rows {
            for (policy_name, policy) in &policies {
                let half = |sandboxed: bool| -> String {
                    let sees = |each| can_see(row, ME, &alias("claude"), each, policy, sandboxed);
                    EVERY.into_iter().map(|each| if sees(each) { 'y' } else { '-' }).collect()
                };
                seen.push((*name, *policy_name, format!("{} {}", half(false), half(true))));
            }
        }
        let expected: Vec<_> = expected.into_iter().map(|(row, policy, line)| (row, policy, line.to_owned())).collect();
        assert_eq!(seen, expected);
    }

    fn any_key() -> impl Strategy<Value = String> {
        proptest::sample::select(vec![ME, "a", "b", ""]).prop_map(str::to_owned)
    }

    fn any_agent() -> impl Strategy<Value = AgentAlias> {
        proptest::sample::select(vec!["claude", "codex", "gemini"]).prop_map(alias)
    }

    prop_compose! {
        fn any_row()(
            session_key in any_key(),
            agent_id in any_agent(),
            owner_session_key in proptest::option::of(any_key()),
            spawned_by in proptest::option::of(any_key()),
            parent_session_key in proptest::option::of(any_key()),
            ancestor_session_keys in proptest::collection::vec(any_key(), 0..3),
        ) -> Ownership {
            // A session belongs to its own agent, whoever looks.
            let agent_id = if session_key == ME { alias("claude") } else { agent_id };
            Ownership { session_key, agent_id, owner_session_key, spawned_by, parent_session_key, ancestor_session_keys }
        }
    }

    fn any_policy() -> impl Strategy<Value = A2aPolicy> {
        prop_oneof![
            any::<bool>().prop_map(A2aPolicy::Everyone),
            proptest::collection::btree_set(any_agent(), 0..3).prop_map(A2aPolicy::Agents),
        ]
    }

    proptest! {
        #[test]
        fn wider_views_hold_narrower_ones(row in any_row(), policy in any_policy(), sandboxed in any::<bool>()) {
            let sees = |each, sandboxed| can_see(&row, ME, &alias("claude"), each, &policy, sandboxed);
            let [own, tree, agent, all] = EVERY.map(|each| sees(each, sandboxed));
            prop_assert!(!own || tree, "self ⊆ tree");
            prop_assert!(!tree || all, "tree ⊆ all");
            prop_assert!(!agent || all, "agent ⊆ all");
            for each in EVERY {
                prop_assert!(!sees(each, true) || sees(each, false), "a sandbox only takes away");
                prop_assert!(!sees(each, true) || sees(SessionVisibility::Tree, false), "no more than tree");
            }
        }
    }

    #[test]
    fn the_owner_sees_all_nobody_nothing_and_a_process_without_a_session_owns_nothing() {
        let child = Ownership { owner_session_key: Some(String::new()), ..row("gemini") };
        assert!(Viewer::Owner.sees(&child) && !Viewer::Nobody.sees(&child));
        let visibility = AgentVisibility { sessions: SessionVisibility::All, ..AgentVisibility::default() };
        let process = Viewer::Session { session_key: String::new(), agent_id: alias("claude"), visibility };
        assert_eq!(process.session_key(), None);
        assert!(process.sees(&row("claude")) && !process.sees(&row("gemini")));
    }
}
