//! What an agent that lost the session is told before the next prompt.

use holdfast_protocol::acp::edit::set_member;
use holdfast_protocol::acp::prompt::prompt_blocks;
use holdfast_protocol::acp::update::{UpdateKind, parse_update};
use holdfast_stores::acp_sessions::{AcpSessionRowId, AcpUpdate};
use serde_json::json;
use serde_json::value::RawValue;

use crate::acp_sessions::AcpSessionsHandle;

/// The newest part of the conversation that is told, in bytes.
const PRIMER_BYTES_MAX: usize = 32 * 1024;
/// Updates read at once.
const PAGE: i64 = 512;

/// Puts what was said up to `before_seq` in front of a prompt. A history that can't be read leaves the prompt as it is:
/// the user was told that the agent starts anew.
pub(super) async fn with_primer(
    store: &AcpSessionsHandle,
    row_id: AcpSessionRowId,
    before_seq: i64,
    params: Box<RawValue>,
) -> Box<RawValue> {
    let mut transcript = Transcript::default();
    let mut after_seq = 0;
    while after_seq < before_seq {
        let page = match store.updates_after(row_id, after_seq, PAGE).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "the agent is not told what was said before: the history can't be read");
                return params;
            }
        };
        let Some(last) = page.last() else { break };
        after_seq = last.seq;
        page.iter().filter(|update| update.seq <= before_seq).for_each(|update| transcript.add(update));
    }
    match transcript.before_prompt(&params) {
        Some(primed) => primed,
        None => params,
    }
}

/// The conversation as text.
#[derive(Default)]
struct Transcript {
    text: String,
    speaker: Option<&'static str>,
}

impl Transcript {
    fn add(&mut self, update: &AcpUpdate) {
        if update.method.is_some() {
            return;
        }
        let Ok(params) = serde_json::from_str::<&RawValue>(&update.params) else { return };
        let Ok(parsed) = parse_update(Some(params)) else { return };
        let speaker = match parsed.kind {
            UpdateKind::UserMessageChunk => "User",
            UpdateKind::AgentMessageChunk => "Agent",
            _ => return,
        };
        let Some(text) = parsed.text() else { return };
        if self.speaker != Some(speaker) {
            self.speaker = Some(speaker);
            self.text.push_str(&format!("\n\n{speaker}: "));
        }
        self.text.push_str(&text);
    }

    fn before_prompt(&self, params: &RawValue) -> Option<Box<RawValue>> {
        if self.text.is_empty() {
            return None;
        }
        let mut from = self.text.len().saturating_sub(PRIMER_BYTES_MAX);
        while !self.text.is_char_boundary(from) {
            from += 1;
        }
        let primer = format!(
            "[This conversation continues one that you no longer have. What was said so far{}:]{}\n\n[The next message:]",
            if from > 0 { ", its newest part" } else { "" },
            &self.text[from..]
        );
        let block = json!({ "type": "text", "text": primer }).to_string();
        let blocks: Vec<&str> = std::iter::once(block.as_str()).chain(prompt_blocks(params)).collect();
        set_member(params, &["prompt"], &format!("[{}]", blocks.join(","))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_part_of_the_conversation_comes_before_the_prompt() {
        let mut transcript = Transcript::default();
        let mut say = |kind: &str, text: &str| {
            let update = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
            transcript.add(&AcpUpdate {
                seq: 1,
                turn_number: None,
                kind: kind.to_owned(),
                method: None,
                params: json!({ "sessionId": "s", "update": update }).to_string(),
                created_at_ms: 0,
            });
        };
        say("user_message_chunk", "what is 1+1?");
        say("agent_message_chunk", "It ");
        say("agent_message_chunk", "is 2.");
        say("agent_thought_chunk", "secret");
        let prompt = json!({ "sessionId": "s", "prompt": [{ "type": "text", "text": "and 2+2?" }] });
        let params = serde_json::value::to_raw_value(&prompt).unwrap();
        let primed: serde_json::Value = serde_json::from_str(transcript.before_prompt(&params).unwrap().get()).unwrap();
        let primer = primed["prompt"][0]["text"].as_str().unwrap();
        assert!(primer.contains("User: what is 1+1?\n\nAgent: It is 2."), "{primer}");
        assert!(!primer.contains("secret"));
        assert_eq!(primed["prompt"][1]["text"], "and 2+2?");
    }
}
