//! A turn's two ends: the prompt that opens it and the stop reason that closes it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::update::{text_of_block, wire_names};
use crate::raw;

wire_names! {
    /// Why a turn ended.
    StopReason {
        /// The agent had nothing more to do.
        EndTurn = "end_turn",
        /// The model's output limit.
        MaxTokens = "max_tokens",
        /// The limit of model requests in one turn.
        MaxTurnRequests = "max_turn_requests",
        /// The agent refused.
        Refusal = "refusal",
        /// The client cancelled.
        Cancelled = "cancelled",
    }
}

/// Tokens of one turn, as far as the agent tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnUsage {
    /// All of it.
    pub total_tokens: Option<i64>,
    /// Read by the model.
    pub input_tokens: Option<i64>,
    /// Written by the model.
    pub output_tokens: Option<i64>,
    /// Of the output, thought.
    pub thought_tokens: Option<i64>,
    /// Read from the provider's cache.
    pub cached_read_tokens: Option<i64>,
    /// Written to the provider's cache.
    pub cached_write_tokens: Option<i64>,
}

/// A result of `session/prompt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptResult<'a> {
    /// Why the turn ended; `None` if the agent left it out.
    pub stop_reason: Option<StopReason<'a>>,
    /// Its tokens: the protocol's `usage`, else the `_meta.quota.token_count` that three adapters send instead.
    pub usage: Option<TurnUsage>,
}

/// Reads a result of `session/prompt`. Members of an unexpected type count as missing.
pub fn parse_prompt_result(result: &RawValue) -> PromptResult<'_> {
    let [stop_reason, usage] = raw::pick(result.get(), ["stopReason", "usage"]);
    let quota = || raw::at(result.get(), &["_meta", "quota", "token_count"]);
    PromptResult {
        stop_reason: stop_reason.and_then(raw::string).map(StopReason::from_name),
        usage: usage.and_then(standard_usage).or_else(|| quota().and_then(vendor_usage)),
    }
}

fn standard_usage(usage: &str) -> Option<TurnUsage> {
    raw::members(usage)?;
    let names =
        ["totalTokens", "inputTokens", "outputTokens", "thoughtTokens", "cachedReadTokens", "cachedWriteTokens"];
    let [total_tokens, input_tokens, output_tokens, thought_tokens, cached_read_tokens, cached_write_tokens] =
        raw::pick(usage, names).map(|raw| raw.and_then(raw::integer));
    Some(TurnUsage {
        total_tokens,
        input_tokens,
        output_tokens,
        thought_tokens,
        cached_read_tokens,
        cached_write_tokens,
    })
}

fn vendor_usage(token_count: &str) -> Option<TurnUsage> {
    raw::members(token_count)?;
    let [total_tokens, input_tokens, output_tokens] =
        raw::pick(token_count, ["total_tokens", "input_tokens", "output_tokens"]).map(|raw| raw.and_then(raw::integer));
    Some(TurnUsage { total_tokens, input_tokens, output_tokens, ..TurnUsage::default() })
}

/// Returns the content blocks of `session/prompt` params, raw; none if `prompt` is no array.
pub fn prompt_blocks(params: &RawValue) -> impl Iterator<Item = &str> {
    let [prompt] = raw::pick(params.get(), ["prompt"]);
    prompt.and_then(raw::elements).into_iter().flatten().map(|element| element.value)
}

/// Returns the text of all text blocks of a prompt, a line break between two.
pub fn prompt_text(params: &RawValue) -> String {
    let texts: Vec<Cow<'_, str>> = prompt_blocks(params).filter_map(text_of_block).collect();
    texts.join("\n")
}

/// Makes the params of a `session/update` around the JSON text of an `update` object.
///
/// # Errors
/// If `update` is no JSON.
pub fn update_params(session_id: &str, update: &str) -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string(format!("{{\"sessionId\":{},\"update\":{update}}}", raw::quote(session_id)))
}

/// Makes the JSON text of the `user_message_chunk` update that records one block of a prompt: the protocol has a user's
/// message as updates only in a replay, so whoever records a turn makes them.
pub fn user_message_chunk(block: &str, message_id: Option<&str>) -> String {
    let message_id = message_id.map(|id| format!(",\"messageId\":{}", raw::quote(id))).unwrap_or_default();
    format!("{{\"sessionUpdate\":\"user_message_chunk\",\"content\":{block}{message_id}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_prompt_becomes_user_updates_with_its_blocks_unchanged() {
        let params = raw(
            r#"{"sessionId":"s","prompt":[{"type":"text","text":"a"},{"type":"image","x":1.0},{"text":"b", "type":"text"}]}"#,
        );
        let updates: Vec<String> = prompt_blocks(&params).map(|block| user_message_chunk(block, Some("m"))).collect();
        assert_eq!(updates.len(), 3);
        assert_eq!(
            update_params("s\"", &updates[1]).unwrap().get(),
            r#"{"sessionId":"s\"","update":{"sessionUpdate":"user_message_chunk","content":{"type":"image","x":1.0},"messageId":"m"}}"#
        );
        assert_eq!(prompt_text(&params), "a\nb");
        assert_eq!(prompt_blocks(&raw("{}")).count(), 0);
    }

    #[test]
    fn stop_reasons_and_usage_in_both_shapes() {
        let result = raw(
            r#"{"stopReason":"end_turn","usage":{"totalTokens":30,"inputTokens":10,"outputTokens":20,"cachedReadTokens":4}}"#,
        );
        let parsed = parse_prompt_result(&result);
        assert_eq!(parsed.stop_reason, Some(StopReason::EndTurn));
        let usage = parsed.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_read_tokens), (Some(10), Some(20), Some(4)));
        let result =
            raw(r#"{"stopReason":"tired","_meta":{"quota":{"token_count":{"input_tokens":1,"output_tokens":2}}}}"#);
        let parsed = parse_prompt_result(&result);
        assert_eq!(parsed.stop_reason.unwrap().name(), "tired");
        assert_eq!(parsed.usage.unwrap().output_tokens, Some(2));
        assert_eq!(parse_prompt_result(&raw("null")), PromptResult { stop_reason: None, usage: None });
    }
}
