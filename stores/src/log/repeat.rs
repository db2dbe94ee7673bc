//! Folds the repeats of one message, so that a loop that fails a hundred thousand times is a few lines. A state
//! machine of plain values: time comes in with each event.
//!
//! The first events of a kind in a window are written, the rest counted. When the window ends, one line with the last
//! event and the count is written. While the kind stays noisy its windows double and only that one line is written for
//! each, so a loop of any speed and length costs a handful of lines.

use std::collections::HashMap;

use super::line::{LogEvent, LogLevel};

/// What makes two events repeats of one another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RepeatKey {
    level: LogLevel,
    target: String,
    template: String,
}

impl RepeatKey {
    /// Returns the key of `event`: its level, its target and its message with numbers and ids taken out.
    fn of(event: &LogEvent) -> Self {
        Self { level: event.level, target: event.target.clone().into_owned(), template: template(&event.message) }
    }
}

/// The limits of [`Repeats`].
#[derive(Debug, Clone, Copy)]
pub struct RepeatLimits {
    /// Warnings and errors of one kind written in a first window.
    pub burst_failures: u32,
    /// Other events of one kind written in a first window: their repetition is normal, so more of it is kept.
    pub burst_others: u32,
    /// The length of the first window.
    pub window_ms: i64,
    /// The length that doubling stops at.
    pub window_max_ms: i64,
    /// Kinds remembered at once. Past it the one whose window started first is closed early.
    pub kinds_max: usize,
}

impl Default for RepeatLimits {
    fn default() -> Self {
        Self { burst_failures: 20, burst_others: 200, window_ms: 60_000, window_max_ms: 3_600_000, kinds_max: 512 }
    }
}

impl RepeatLimits {
    fn burst(self, level: LogLevel) -> u32 {
        if level <= LogLevel::Warn { self.burst_failures } else { self.burst_others }
    }
}

/// An event that stands for others: written when their window ends.
pub struct Folded {
    /// The last of them.
    pub event: LogEvent,
    /// How many were held back, `event` included.
    pub count: u64,
}

struct Kind {
    started_ms: i64,
    window_ms: i64,
    /// How many of this window may still be written as they come.
    left: u32,
    seen: u64,
    held: u64,
    last: Option<LogEvent>,
}

/// The kinds of events seen lately.
pub struct Repeats {
    limits: RepeatLimits,
    kinds: HashMap<RepeatKey, Kind>,
}

impl Repeats {
    /// Makes the state with nothing seen.
    pub fn new(limits: RepeatLimits) -> Self {
        Self { limits, kinds: HashMap::new() }
    }

    /// Takes an event in at `now_ms` and gives it back to be written, or counts it. Folded events that its arrival makes due are appended to `due` and come before it.
    pub fn admit(&mut self, event: LogEvent, now_ms: i64, due: &mut Vec<Folded>) -> Option<LogEvent> {
        let key = RepeatKey::of(&event);
        let burst = self.limits.burst(event.level);
        if let Some(kind) = self.kinds.get_mut(&key) {
            if ended(kind, now_ms) && !renew(kind, now_ms, burst, self.limits, due) {
                self.kinds.remove(&key);
            }
        } else if self.kinds.len() >= self.limits.kinds_max {
            self.evict(due);
        }
        let kind = self.kinds.entry(key).or_insert(Kind {
            started_ms: now_ms,
            window_ms: self.limits.window_ms,
            left: burst,
            seen: 0,
            held: 0,
            last: None,
        });
        kind.seen += 1;
        if kind.left > 0 {
            kind.left -= 1;
            return Some(event);
        }
        kind.held += 1;
        kind.last = Some(event);
        None
    }

    /// Ends the windows that are over at `now_ms` and appends what they held. To be called now and then.
    pub fn due(&mut self, now_ms: i64, due: &mut Vec<Folded>) {
        let limits = self.limits;
        self.kinds
            .retain(|key, kind| !ended(kind, now_ms) || renew(kind, now_ms, limits.burst(key.level), limits, due));
    }

    /// Ends all windows: what was held is appended, nothing is remembered.
    pub fn drain(&mut self, due: &mut Vec<Folded>) {
        for (_, kind) in self.kinds.drain() {
            due.extend(fold(kind.last, kind.held));
        }
    }

    fn evict(&mut self, due: &mut Vec<Folded>) {
        let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.started_ms).map(|(key, _)| key.clone());
        if let Some(kind) = oldest.and_then(|key| self.kinds.remove(&key)) {
            due.extend(fold(kind.last, kind.held));
        }
    }
}

/// A clock that was set back ends a window too: nothing may be held for as long as it was wrong.
fn ended(kind: &Kind, now_ms: i64) -> bool {
    now_ms < kind.started_ms || now_ms - kind.started_ms >= kind.window_ms
}

/// Starts the next window of a kind. `false`: it was quiet, forget it.
fn renew(kind: &mut Kind, now_ms: i64, burst: u32, limits: RepeatLimits, due: &mut Vec<Folded>) -> bool {
    due.extend(fold(kind.last.take(), kind.held));
    // A longer window asks for the same number, so a kind that was noisy stays folded until it is rare.
    let noisy = kind.seen > u64::from(burst);
    kind.held = 0;
    kind.seen = 0;
    kind.started_ms = now_ms;
    kind.window_ms = kind.window_ms.saturating_mul(2).min(limits.window_max_ms);
    kind.left = 0;
    noisy
}

fn fold(event: Option<LogEvent>, count: u64) -> Option<Folded> {
    event.map(|event| Folded { event, count })
}

/// Returns the message with each word that has a digit replaced by `#`, cut to 160 characters: two failures that differ
/// in an attempt number, an id or an address are one kind.
fn template(message: &str) -> String {
    let mut template = String::new();
    for (index, word) in message.split_whitespace().enumerate() {
        if template.len() >= 160 {
            break;
        }
        if index > 0 {
            template.push(' ');
        }
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            template.push('#');
        } else {
            template.extend(word.chars().take(160));
        }
    }
    template
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::event;
    use super::*;

    fn failure(attempt: u64) -> LogEvent {
        let mut event = event(&format!("reconnect attempt {attempt} failed: connection refused"));
        event.level = LogLevel::Warn;
        event
    }

    /// Runs `total` failures `step_ms` apart; returns the lines written, with their counts.
    fn run(total: u64, step_ms: i64) -> (usize, u64) {
        let mut repeats = Repeats::new(RepeatLimits::default());
        let mut due = Vec::new();
        let mut written = 0;
        for attempt in 0..total {
            let now_ms = 1_000 + attempt as i64 * step_ms;
            if attempt % 7 == 0 {
                repeats.due(now_ms, &mut due);
            }
            if repeats.admit(failure(attempt), now_ms, &mut due).is_some() {
                written += 1;
            }
        }
        repeats.drain(&mut due);
        let held: u64 = due.iter().map(|folded| folded.count).sum();
        assert_eq!(written as u64 + held, total, "every event is a line or in a count");
        (written + due.len(), held)
    }

    #[test]
    fn a_hundred_thousand_failures_are_a_few_lines_at_any_speed() {
        for step_ms in [0, 1, 10, 100, 500, 1_000, 2_000] {
            let (lines, held) = run(100_000, step_ms);
            assert!(lines <= 1_000, "{lines} lines at {step_ms} ms");
            assert!(held > 90_000);
        }
    }

    #[test]
    fn a_few_repeats_are_all_written() {
        assert_eq!(run(20, 10), (20, 0));
        // One every ten minutes, for a week: each is news.
        assert_eq!(run(1_008, 600_000), (1_008, 0));
    }

    #[test]
    fn a_quiet_kind_starts_afresh() {
        let mut repeats = Repeats::new(RepeatLimits::default());
        let mut due = Vec::new();
        for attempt in 0..100 {
            let _ = repeats.admit(failure(attempt), 0, &mut due);
        }
        repeats.due(60_000, &mut due);
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].count, 80);
        repeats.due(60_000 + 120_000, &mut due);
        assert!(repeats.admit(failure(1), 200_000, &mut due).is_some());
        assert_eq!(due.len(), 1);
    }

    #[test]
    fn kinds_differ_by_level_target_and_words() {
        let mut repeats = Repeats::new(RepeatLimits { burst_others: 1, ..RepeatLimits::default() });
        let mut due = Vec::new();
        let mut admit = |event| repeats.admit(event, 0, &mut due).is_some();
        assert!(admit(event("a 1")));
        assert!(!admit(event("a 2")));
        assert!(admit(event("b 1")));
        let mut other = event("a 1");
        other.target = "elsewhere".into();
        assert!(admit(other));
    }

    #[test]
    fn the_memory_is_bounded_and_nothing_is_lost_by_it() {
        let mut repeats = Repeats::new(RepeatLimits { burst_others: 1, kinds_max: 4, ..RepeatLimits::default() });
        let mut due = Vec::new();
        let mut written = 0;
        for index in 0..100u8 {
            let word = format!("kind {}", "x".repeat(usize::from(index)));
            for _ in 0..3 {
                written += u64::from(repeats.admit(event(&word), i64::from(index), &mut due).is_some());
            }
            assert!(repeats.kinds.len() <= 4);
        }
        repeats.drain(&mut due);
        assert_eq!(written + due.iter().map(|folded| folded.count).sum::<u64>(), 300);
    }
}
