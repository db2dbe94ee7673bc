//! `session/update`: its kind, the ids in it, and the few facts that other surfaces are told of.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::error::{ErrorKind, WireError};
use crate::raw;

macro_rules! wire_names {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name<'a> {
            $($(#[$variant_meta])* $variant,)*
            /// One that this version does not know; carried like any other.
            Other(Cow<'a, str>),
        }

        impl<'a> $name<'a> {
            /// Returns what a wire name means.
            pub fn from_name(name: Cow<'a, str>) -> Self {
                match &*name {
                    $($text => Self::$variant,)*
                    _ => Self::Other(name),
                }
            }

            /// Returns the wire name.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(name) => name,
                }
            }
        }
    };
}
pub(super) use wire_names;

wire_names! {
    /// `sessionUpdate` of an update.
    UpdateKind {
        /// A piece of what the user said.
        UserMessageChunk = "user_message_chunk",
        /// A piece of what the agent says.
        AgentMessageChunk = "agent_message_chunk",
        /// A piece of what the agent thinks.
        AgentThoughtChunk = "agent_thought_chunk",
        /// A tool call begins.
        ToolCall = "tool_call",
        /// A tool call goes on.
        ToolCallUpdate = "tool_call_update",
        /// The whole plan, anew.
        Plan = "plan",
        /// Slash commands, anew.
        AvailableCommandsUpdate = "available_commands_update",
        /// The mode changed.
        CurrentModeUpdate = "current_mode_update",
        /// Options changed.
        ConfigOptionUpdate = "config_option_update",
        /// Title and such changed.
        SessionInfoUpdate = "session_info_update",
        /// Context and cost so far.
        UsageUpdate = "usage_update",
        /// Part of a plan changed.
        PlanUpdate = "plan_update",
        /// A plan is gone.
        PlanRemoved = "plan_removed",
        /// A word to the user; live only, never replayed.
        Notice = "notice",
        /// Compaction begins or ends.
        CompactionUpdate = "compaction_update",
        /// A piece of a compaction's summary.
        CompactionSummaryChunk = "compaction_summary_chunk",
        /// A child session.
        SubagentUpdate = "subagent_update",
        /// A message between sessions.
        SessionMessage = "session_message",
        /// A piece of one.
        SessionMessageChunk = "session_message_chunk",
        /// What the user might ask next; unstable.
        PromptSuggestionsUpdate = "prompt_suggestions_update",
        /// Where the agent works; unstable.
        CursorUpdate = "cursor_update",
    }
}

wire_names! {
    /// Status of a tool call.
    ToolStatus {
        /// Not started: input is streaming or permission is asked.
        Pending = "pending",
        /// Runs.
        InProgress = "in_progress",
        /// Ended well.
        Completed = "completed",
        /// Ended badly.
        Failed = "failed",
    }
}

impl ToolStatus<'_> {
    /// Says whether the call has ended.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// The params of one `session/update`, seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update<'a> {
    /// The session, as the sender calls it.
    pub session_id: Cow<'a, str>,
    /// What kind it is.
    pub kind: UpdateKind<'a>,
    /// JSON text of the `update` object.
    pub raw: &'a str,
    /// `messageId` of a chunk or session message. Opaque and, in practice, not unique.
    pub message_id: Option<Cow<'a, str>>,
    /// `toolCallId`, unique in a session.
    pub tool_call_id: Option<Cow<'a, str>>,
    /// Status of the tool call, where the update states one.
    pub tool_status: Option<ToolStatus<'a>>,
    /// `update.sessionId`: the child session of a `subagent_update`.
    pub child_session_id: Option<Cow<'a, str>>,
}

/// Reads the params of `session/update`. Members of an unexpected type count as missing.
///
/// # Errors
/// [`ErrorKind::InvalidParams`] without `sessionId` or `update.sessionUpdate`: such an update can't be routed.
pub fn parse_update(params: Option<&RawValue>) -> Result<Update<'_>, WireError> {
    let missing = |path: &str| WireError::new(ErrorKind::InvalidParams, format!("`{path}` is missing")).at_path(path);
    let [session_id, update] = raw::pick(params.map_or("{}", RawValue::get), ["sessionId", "update"]);
    let session_id = session_id.and_then(raw::string).ok_or_else(|| missing("sessionId"))?;
    let update = update.ok_or_else(|| missing("update"))?;
    let [kind, message_id, tool_call_id, status, child_session_id] =
        raw::pick(update, ["sessionUpdate", "messageId", "toolCallId", "status", "sessionId"])
            .map(|raw| raw.and_then(raw::string));
    let kind = kind.map(UpdateKind::from_name).ok_or_else(|| missing("update.sessionUpdate"))?;
    let is_tool = matches!(kind, UpdateKind::ToolCall | UpdateKind::ToolCallUpdate);
    Ok(Update {
        session_id,
        raw: update,
        message_id,
        tool_status: if is_tool { status.map(ToolStatus::from_name) } else { None },
        tool_call_id,
        child_session_id,
        kind,
    })
}

/// The context window and the money, as a `usage_update` states them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextUsage<'a> {
    /// Tokens in the context.
    pub used_tokens: Option<i64>,
    /// Tokens the context can hold.
    pub size_tokens: Option<i64>,
    /// Cumulative cost of the session: the number as the agent wrote it (never a float on our side) and the currency.
    pub cost: Option<(&'a str, Cow<'a, str>)>,
}

impl<'a> Update<'a> {
    /// Returns the text of a chunk; `None` for other content and other kinds.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        let [content] = raw::pick(self.raw, ["content"]);
        content.and_then(text_of_block)
    }

    /// Returns the title that a tool call, a child session or a `session_info_update` states.
    pub fn title(&self) -> Option<Cow<'a, str>> {
        raw::pick(self.raw, ["title"])[0].and_then(raw::string)
    }

    /// Returns context and cost of a `usage_update`; `None` for other kinds.
    pub fn usage(&self) -> Option<ContextUsage<'a>> {
        if self.kind != UpdateKind::UsageUpdate {
            return None;
        }
        let [used, size, cost] = raw::pick(self.raw, ["used", "size", "cost"]);
        let cost = cost.map(|cost| raw::pick(cost, ["amount", "currency"])).and_then(|[amount, currency]| {
            let amount = amount.filter(|raw| raw.starts_with(|first: char| first == '-' || first.is_ascii_digit()))?;
            Some((amount, currency.and_then(raw::string)?))
        });
        Some(ContextUsage { used_tokens: used.and_then(raw::integer), size_tokens: size.and_then(raw::integer), cost })
    }
}

/// Returns the text of a content block of type `text`.
pub fn text_of_block(block: &str) -> Option<Cow<'_, str>> {
    let [kind, text] = raw::pick(block, ["type", "text"]);
    (kind.and_then(raw::string)? == "text").then(|| text.and_then(raw::string)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn known_and_unknown_kinds_are_carried_alike() {
        let params = raw(
            r#"{"sessionId":"s","update":{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed"}}"#,
        );
        let update = parse_update(Some(&params)).unwrap();
        assert_eq!((update.kind.name(), update.tool_call_id.as_deref()), ("tool_call_update", Some("t")));
        assert!(update.tool_status.unwrap().is_final());
        let params = raw(r#"{"sessionId":"s","update":{"sessionUpdate":"brand_new","status":"x","status2":5}}"#);
        let update = parse_update(Some(&params)).unwrap();
        assert_eq!(update.kind, UpdateKind::Other("brand_new".into()));
        assert_eq!(update.tool_status, None);
        assert!(update.raw.ends_with(r#""status2":5}"#));
        for bad in ["{}", r#"{"sessionId":"s"}"#, r#"{"sessionId":"s","update":{}}"#, r#"{"sessionId":"s","update":5}"#]
        {
            assert!(parse_update(Some(&raw(bad))).is_err(), "{bad}");
        }
    }

    #[test]
    fn facts_for_other_surfaces_are_exact() {
        let params = raw(
            r#"{"sessionId":"s","update":{"sessionUpdate":"usage_update","used":12,"size":200000,"cost":{"amount":0.10000000000000000001,"currency":"USD"}}}"#,
        );
        let usage = parse_update(Some(&params)).unwrap().usage().unwrap();
        assert_eq!((usage.used_tokens, usage.size_tokens), (Some(12), Some(200_000)));
        assert_eq!(usage.cost, Some(("0.10000000000000000001", "USD".into())));
        let params = raw(
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"h\u00e9"},"messageId":"m"}}"#,
        );
        let update = parse_update(Some(&params)).unwrap();
        assert_eq!((update.text().as_deref(), update.message_id.as_deref()), (Some("hé"), Some("m")));
        assert_eq!(update.usage(), None);
    }
}
