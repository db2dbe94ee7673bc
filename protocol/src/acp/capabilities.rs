//! What each side of a connection can do, as far as we act on it.

use serde_json::value::RawValue;

use super::update::UpdateKind;
use crate::raw;

/// What an agent offers, from its answer to `initialize`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCapabilities {
    /// `session/load`.
    pub load: bool,
    /// `session/resume`.
    pub resume: bool,
    /// `session/list`.
    pub list: bool,
    /// `session/close`.
    pub close: bool,
    /// `session/delete`.
    pub delete: bool,
    /// `session/fork`.
    pub fork: bool,
}

impl AgentCapabilities {
    /// Reads a result of `initialize`.
    pub fn from_initialize_result(result: &RawValue) -> Self {
        let [capabilities] = raw::pick(result.get(), ["agentCapabilities"]);
        let [load, session] = raw::pick(capabilities.unwrap_or("{}"), ["loadSession", "sessionCapabilities"]);
        let [resume, list, close, delete, fork] =
            raw::pick(session.unwrap_or("{}"), ["resume", "list", "close", "delete", "fork"]).map(is_offered);
        Self { load: load == Some("true"), resume, list, close, delete, fork }
    }
}

/// What a client can take, from its `initialize`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// `fs/read_text_file`.
    pub read_text_file: bool,
    /// `fs/write_text_file`.
    pub write_text_file: bool,
    /// `terminal/*`.
    pub terminal: bool,
    /// `elicitation/create` with a form.
    pub elicitation_form: bool,
    /// `elicitation/create` with an address to open.
    pub elicitation_url: bool,
    /// `plan_update`, `plan_removed`.
    pub plan: bool,
    /// `notice`.
    pub notices: bool,
    /// `compaction_update`, `compaction_summary_chunk`.
    pub compaction: bool,
    /// `subagent_update`, `session_message`, `session_message_chunk`.
    pub subagents: bool,
    /// `prompt_suggestions_update`.
    pub prompt_suggestions: bool,
    /// `cursor_update`.
    pub cursors: bool,
}

impl ClientCapabilities {
    /// Reads the params of `initialize`.
    pub fn from_initialize_params(params: Option<&RawValue>) -> Self {
        let [capabilities] = raw::pick(params.map_or("{}", RawValue::get), ["clientCapabilities"]);
        let [fs, terminal, elicitation, plan, subagents, session] =
            raw::pick(capabilities.unwrap_or("{}"), ["fs", "terminal", "elicitation", "plan", "subagents", "session"]);
        let [read_text_file, write_text_file] =
            raw::pick(fs.unwrap_or("{}"), ["readTextFile", "writeTextFile"]).map(|raw| raw == Some("true"));
        let [elicitation_form, elicitation_url] =
            raw::pick(elicitation.unwrap_or("{}"), ["form", "url"]).map(is_offered);
        let [notices, compaction, prompt_suggestions, cursors] =
            raw::pick(session.unwrap_or("{}"), ["notices", "compaction", "promptSuggestions", "cursors"])
                .map(is_offered);
        Self {
            read_text_file,
            write_text_file,
            terminal: terminal == Some("true"),
            elicitation_form,
            elicitation_url,
            plan: is_offered(plan),
            notices,
            compaction,
            subagents: is_offered(subagents),
            prompt_suggestions,
            cursors,
        }
    }

    /// Says whether an update of this kind may be sent to the client. The agent was promised the union of what clients
    /// can take, so each client's share has to be filtered out again.
    ///
    /// Kinds that we do not know pass: a client ignores what it does not know either.
    pub fn takes(&self, kind: &UpdateKind<'_>) -> bool {
        match kind {
            UpdateKind::PlanUpdate | UpdateKind::PlanRemoved => self.plan,
            UpdateKind::Notice => self.notices,
            UpdateKind::CompactionUpdate | UpdateKind::CompactionSummaryChunk => self.compaction,
            UpdateKind::SubagentUpdate | UpdateKind::SessionMessage | UpdateKind::SessionMessageChunk => self.subagents,
            UpdateKind::PromptSuggestionsUpdate => self.prompt_suggestions,
            UpdateKind::CursorUpdate => self.cursors,
            UpdateKind::UserMessageChunk
            | UpdateKind::AgentMessageChunk
            | UpdateKind::AgentThoughtChunk
            | UpdateKind::ToolCall
            | UpdateKind::ToolCallUpdate
            | UpdateKind::Plan
            | UpdateKind::AvailableCommandsUpdate
            | UpdateKind::CurrentModeUpdate
            | UpdateKind::ConfigOptionUpdate
            | UpdateKind::SessionInfoUpdate
            | UpdateKind::UsageUpdate
            | UpdateKind::Other(_) => true,
        }
    }
}

/// Most capabilities are objects whose presence counts; null and false mean no.
pub(super) fn is_offered(capability: Option<&str>) -> bool {
    !matches!(capability, None | Some("null" | "false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn presence_counts_and_null_does_not() {
        let result = raw(
            r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{},"list":null,"fork":{"x":1}}}}"#,
        );
        let agent = AgentCapabilities::from_initialize_result(&result);
        assert_eq!(agent, AgentCapabilities { load: true, resume: true, fork: true, ..Default::default() });
        assert_eq!(AgentCapabilities::from_initialize_result(&raw("{}")), AgentCapabilities::default());
    }

    #[test]
    fn gated_updates_reach_only_clients_that_asked_for_them() {
        let params = raw(
            r#"{"clientCapabilities":{"fs":{"readTextFile":true},"terminal":true,"plan":{},"session":{"notices":{},"compaction":null},"elicitation":{"form":{}}}}"#,
        );
        let client = ClientCapabilities::from_initialize_params(Some(&params));
        let expected = ClientCapabilities {
            read_text_file: true,
            terminal: true,
            plan: true,
            notices: true,
            elicitation_form: true,
            ..Default::default()
        };
        assert_eq!(client, expected);
        for (kind, taken) in [
            (UpdateKind::PlanUpdate, true),
            (UpdateKind::Notice, true),
            (UpdateKind::CompactionUpdate, false),
            (UpdateKind::SubagentUpdate, false),
            (UpdateKind::AgentMessageChunk, true),
            (UpdateKind::Other("new".into()), true),
        ] {
            assert_eq!(client.takes(&kind), taken, "{kind:?}");
        }
        assert_eq!(ClientCapabilities::from_initialize_params(None), ClientCapabilities::default());
    }
}
