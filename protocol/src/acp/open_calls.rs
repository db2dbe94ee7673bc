//! Tool calls that a cut turn left open. Pure.

use crate::acp::META_KEY;
use crate::acp::update::{UpdateKind, parse_update};
use serde_json::json;
use serde_json::value::RawValue;

/// Follows a turn's updates and knows which tool calls have not ended.
#[derive(Debug, Default, Clone)]
pub struct OpenCalls {
    open: Vec<String>,
}

impl OpenCalls {
    /// Takes one update's params. What is no tool call changes nothing.
    pub fn saw(&mut self, params: &RawValue) {
        let Ok(update) = parse_update(Some(params)) else { return };
        if !matches!(update.kind, UpdateKind::ToolCall | UpdateKind::ToolCallUpdate) {
            return;
        }
        let Some(id) = update.tool_call_id else { return };
        if update.kind == UpdateKind::ToolCallUpdate && update.tool_status.is_none() {
            return;
        }
        self.open.retain(|open| *open != id);
        if !update.tool_status.is_some_and(|status| status.is_final()) {
            self.open.push(id.into_owned());
        }
    }

    /// Returns the params of the updates that mark every open call as failed because of `reason`, and forgets them.
    ///
    /// The protocol has no status for an interrupted call; `_meta.holdfast.interrupted` tells it from a failed one.
    pub fn interrupt(&mut self, session_id: &str, reason: &str) -> Vec<String> {
        std::mem::take(&mut self.open)
            .into_iter()
            .map(|id| {
                json!({
                    "sessionId": session_id,
                    "update": {
                        "sessionUpdate": "tool_call_update",
                        "toolCallId": id,
                        "status": "failed",
                        "content": [{ "type": "content", "content": { "type": "text", "text": reason } }],
                        "_meta": { META_KEY: { "interrupted": true } },
                    },
                })
                .to_string()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saw(calls: &mut OpenCalls, update: serde_json::Value) {
        let params = json!({ "sessionId": "s", "update": update });
        calls.saw(&serde_json::value::to_raw_value(&params).unwrap());
    }

    #[test]
    fn only_calls_without_an_end_are_interrupted() {
        let mut calls = OpenCalls::default();
        saw(&mut calls, json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "A", "status": "pending" }));
        saw(&mut calls, json!({ "sessionUpdate": "tool_call", "toolCallId": "b", "title": "B" }));
        saw(&mut calls, json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed" }));
        saw(&mut calls, json!({ "sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "in_progress" }));
        saw(&mut calls, json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "x" } }));
        let marks = calls.interrupt("s", "the daemon ended");
        assert_eq!(marks.len(), 1);
        assert!(marks[0].contains(r#""toolCallId":"b""#) && marks[0].contains("the daemon ended"), "{}", marks[0]);
        assert!(calls.interrupt("s", "again").is_empty());
    }
}
