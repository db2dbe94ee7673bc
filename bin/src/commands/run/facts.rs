//! What a person is told of an update: small pure functions from JSON to words.

use std::borrow::Cow;
use std::time::Duration;

use holdfast_protocol::acp::prompt::TurnUsage;
use holdfast_protocol::raw;

use crate::render::{count_short, duration};

/// The largest pair of changed stretches that is compared line by line, as a product of their lengths; larger ones are
/// counted as wholly replaced. A million cells take some milliseconds.
const COMPARE_CELLS_MAX: usize = 1_000_000;

/// Lines added to and removed from a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) added: usize,
    pub(super) removed: usize,
}

/// Adds up the diffs in a tool call's content; `None` where there are none.
pub(super) fn changes(update: &str) -> Option<Changed> {
    let [content] = raw::pick(update, ["content"]);
    let mut total = None;
    for item in content.and_then(raw::elements).into_iter().flatten() {
        let [kind, old, new] =
            raw::pick(item.value, ["type", "oldText", "newText"]).map(|raw| raw.and_then(raw::string));
        if kind.as_deref() != Some("diff") {
            continue;
        }
        let one = compare(&old.unwrap_or_default(), &new.unwrap_or_default());
        let sum: &mut Changed = total.get_or_insert_default();
        sum.added += one.added;
        sum.removed += one.removed;
    }
    total
}

/// Counts the lines that differ: what is common at both ends is left out, the rest compared by its longest common
/// subsequence.
pub(super) fn compare(old: &str, new: &str) -> Changed {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let common = if old.len().saturating_mul(new.len()) <= COMPARE_CELLS_MAX { common_len(old, new) } else { 0 };
    Changed { added: new.len() - common, removed: old.len() - common }
}

fn common_len(old: &[&str], new: &[&str]) -> usize {
    let mut before = vec![0; new.len() + 1];
    for line in old {
        let mut row = vec![0; new.len() + 1];
        for (index, other) in new.iter().enumerate() {
            row[index + 1] = if line == other { before[index] + 1 } else { before[index + 1].max(row[index]) };
        }
        before = row;
    }
    before[new.len()]
}

/// Returns the word that a tool line begins with.
pub(super) fn tool_word(kind: Option<&str>) -> Cow<'_, str> {
    let Some(kind) = kind.filter(|kind| !kind.is_empty() && *kind != "other") else { return Cow::Borrowed("Tool") };
    let words = kind.replace('_', " ");
    let mut characters = words.chars();
    let first = characters.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
    Cow::Owned(first + characters.as_str())
}

/// One entry of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanEntry {
    pub(super) content: String,
    pub(super) status: String,
}

/// Reads the entries of a `plan` update.
pub(super) fn plan_entries(update: &str) -> Vec<PlanEntry> {
    let [entries] = raw::pick(update, ["entries"]);
    let text = |raw: Option<&str>| raw.and_then(raw::string).map(Cow::into_owned).unwrap_or_default();
    let entries = entries.and_then(raw::elements).into_iter().flatten();
    entries
        .map(|entry| {
            let [content, status] = raw::pick(entry.value, ["content", "status"]);
            PlanEntry { content: text(content), status: text(status) }
        })
        .collect()
}

/// Returns the entries of `now` that `before` did not hold in the same state.
pub(super) fn plan_news<'a>(before: &[PlanEntry], now: &'a [PlanEntry]) -> Vec<&'a PlanEntry> {
    now.iter().filter(|entry| !before.contains(entry)).collect()
}

/// What the last line of a turn says.
#[derive(Debug, Default)]
pub(super) struct Footer<'a> {
    pub(super) stop_reason: &'a str,
    pub(super) took: Duration,
    pub(super) usage: Option<TurnUsage>,
    /// The session's cost so far: amount as the agent wrote it, and currency.
    pub(super) cost: Option<(&'a str, &'a str)>,
    /// Whether the session began with this turn, so that its cost is the turn's.
    pub(super) first_turn: bool,
}

impl Footer<'_> {
    /// Returns the words behind `done`.
    pub(super) fn text(&self) -> String {
        let mut text = format!(" · {} · {}", self.stop_reason, duration(self.took));
        if let Some(tokens) = self.usage.and_then(tokens) {
            text.push_str(" · ");
            text.push_str(&tokens);
        }
        if let Some((amount, currency)) = self.cost {
            let money = if currency == "USD" { format!("${amount}") } else { format!("{amount} {currency}") };
            text.push_str(if self.first_turn { " · " } else { " · session " });
            text.push_str(&money);
        }
        text
    }
}

fn tokens(usage: TurnUsage) -> Option<String> {
    let count = |tokens: Option<i64>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).map(count_short);
    let (input, output) = (count(usage.input_tokens)?, count(usage.output_tokens)?);
    let cached = count(usage.cached_read_tokens.filter(|cached| *cached > 0));
    let cached = cached.map(|cached| format!(" ({cached} cached)")).unwrap_or_default();
    Some(format!("{input} in{cached} / {output} out tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_counted() {
        for (old, new, added, removed) in [
            ("", "", 0, 0),
            ("a\n", "a\n", 0, 0),
            ("", "a\nb\n", 2, 0),
            ("Hello\n", "Hello, world!\n", 1, 1),
            ("a\nb\nc\nd\n", "a\nx\nc\ny\nd\n", 2, 1),
            ("a\na\na\n", "a\na\n", 0, 1),
        ] {
            assert_eq!(compare(old, new), Changed { added, removed }, "{old:?} {new:?}");
        }
        let long: String = (0..2000).map(|line| format!("{line}\n")).collect();
        let other: String = (0..2000).map(|line| format!("x{line}\n")).collect();
        assert_eq!(compare(&long, &other), Changed { added: 2000, removed: 2000 });
        let update = r#"{"content":[{"type":"content"},{"type":"diff","oldText":null,"newText":"a\n"},{"type":"diff","oldText":"b","newText":""}]}"#;
        assert_eq!(changes(update), Some(Changed { added: 1, removed: 1 }));
        assert_eq!(changes("{}"), None);
    }

    #[test]
    fn tools_have_a_word() {
        assert_eq!(tool_word(Some("edit")), "Edit");
        assert_eq!(tool_word(Some("switch_mode")), "Switch mode");
        assert_eq!(tool_word(Some("other")), "Tool");
        assert_eq!(tool_word(None), "Tool");
    }

    #[test]
    fn only_what_is_new_in_a_plan_is_told() {
        let plan = |statuses: [&str; 2]| {
            let text = format!(
                r#"{{"entries":[{{"content":"a","status":"{}"}},{{"content":"b","status":"{}"}}]}}"#,
                statuses[0], statuses[1]
            );
            plan_entries(&text)
        };
        let (first, second) = (plan(["in_progress", "pending"]), plan(["completed", "pending"]));
        assert_eq!(plan_news(&[], &first).len(), 2);
        assert_eq!(plan_news(&first, &second), [&second[0]]);
    }

    #[test]
    fn the_last_line_says_why_how_long_and_how_much() {
        let usage = TurnUsage {
            input_tokens: Some(18_249),
            output_tokens: Some(1100),
            cached_read_tokens: Some(15_000),
            ..TurnUsage::default()
        };
        let footer = Footer {
            stop_reason: "end_turn",
            took: Duration::from_secs(41),
            usage: Some(usage),
            cost: Some(("0.043", "USD")),
            first_turn: true,
        };
        assert_eq!(footer.text(), " · end_turn · 41 s · 18.2k in (15.0k cached) / 1.1k out tokens · $0.043");
        let plain = Footer { stop_reason: "cancelled", cost: Some(("2", "EUR")), ..Footer::default() };
        assert_eq!(plain.text(), " · cancelled · 0.0 ms · session 2 EUR");
    }
}
