//! Ids short enough to read aloud: `0199a3…c2`. What is shown is always accepted back.
//!
//! UUIDv7 begins with the time, so ids of one afternoon share their beginning and differ at their end. A short id
//! therefore shows both, and grows at the end until it is unique in its listing.

use std::collections::HashMap;

/// Characters shown of the beginning.
const HEAD_LEN: usize = 6;
/// Characters shown of the end, at least.
const TAIL_LEN_MIN: usize = 2;
/// The fewest characters a prefix must have to be taken as one; shorter ones are more likely a slip.
const PREFIX_LEN_MIN: usize = 4;

/// Why a short id names nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Nothing begins and ends like this.
    #[error("no {kind} `{text}`")]
    Unknown {
        /// What was looked for, as a noun.
        kind: &'static str,
        /// The text as given.
        text: String,
    },
    /// More than one thing does.
    #[error("`{text}` could be {count} {kind}s")]
    Ambiguous {
        /// What was looked for, as a noun.
        kind: &'static str,
        /// The text as given.
        text: String,
        /// How many match.
        count: usize,
        /// Some of them, in full.
        examples: Vec<String>,
    },
}

/// Shortens the ids of one listing to what tells them apart, in the same order. Equal ids stay equal.
pub fn shorten(ids: &[&str]) -> Vec<String> {
    let length_max = ids.iter().map(|id| id.len()).max().unwrap_or(0);
    let mut lengths = vec![TAIL_LEN_MIN; ids.len()];
    for tail in TAIL_LEN_MIN..=length_max {
        let mut seen: HashMap<String, &str> = HashMap::new();
        let mut clashing: Vec<String> = Vec::new();
        for (id, length) in ids.iter().zip(&lengths).filter(|(_, length)| **length == tail) {
            let short = short(id, *length);
            match seen.get(&short) {
                Some(other) if other != id => clashing.push(short),
                Some(_) => {}
                None => {
                    seen.insert(short, id);
                }
            }
        }
        if clashing.is_empty() {
            break;
        }
        for (id, length) in ids.iter().zip(&mut lengths) {
            if *length == tail && clashing.contains(&short(id, tail)) {
                *length += 1;
            }
        }
    }
    ids.iter().zip(lengths).map(|(id, length)| short(id, length)).collect()
}

/// Finds the one of `candidates` that `text` means: the whole id, a prefix, or `beginning…end` (also typed `..`, `...`).
///
/// `kind` is a noun for the error texts ("session").
///
/// # Errors
/// [`ResolveError::Unknown`] when nothing matches, [`ResolveError::Ambiguous`] when several do.
pub fn resolve<'a>(
    kind: &'static str,
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Result<&'a str, ResolveError> {
    let wanted = text.to_ascii_lowercase();
    let parts = split(&wanted);
    let mut found: Vec<&str> = Vec::new();
    for candidate in candidates {
        if candidate == text {
            return Ok(candidate);
        }
        let matches = match parts {
            Some((head, tail)) => {
                candidate.len() >= head.len() + tail.len() && candidate.starts_with(head) && candidate.ends_with(tail)
            }
            None => wanted.len() >= PREFIX_LEN_MIN && candidate.starts_with(&wanted),
        };
        if matches && !found.contains(&candidate) {
            found.push(candidate);
        }
    }
    match found.as_slice() {
        [] => Err(ResolveError::Unknown { kind, text: text.to_owned() }),
        [one] => Ok(one),
        many => Err(ResolveError::Ambiguous {
            kind,
            text: text.to_owned(),
            count: many.len(),
            examples: many.iter().take(3).map(|id| (*id).to_owned()).collect(),
        }),
    }
}

/// Splits `beginning…end`; a text without either part is no short id.
fn split(text: &str) -> Option<(&str, &str)> {
    ["…", "...", ".."]
        .iter()
        .find_map(|mark| text.split_once(mark))
        .filter(|(head, tail)| !head.is_empty() && !tail.is_empty())
}

/// Returns beginning and end of an id. Ids are ASCII; one that is not, or is short already, stays whole.
fn short(id: &str, tail_len: usize) -> String {
    if !id.is_ascii() || id.len() <= HEAD_LEN + tail_len + 1 {
        return id.to_owned();
    }
    format!("{}…{}", &id[..HEAD_LEN], &id[id.len() - tail_len..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0199a3c2-0000-7000-8000-0000000000c2";
    const B: &str = "0199a3c2-0000-7000-8000-0000000001c2";
    const C: &str = "0199a471-0000-7000-8000-000000000071";

    #[test]
    fn ids_grow_only_where_they_clash() {
        assert_eq!(shorten(&[A, C]), ["0199a3…c2", "0199a4…71"]);
        assert_eq!(shorten(&[A, B, C]), ["0199a3…0c2", "0199a3…1c2", "0199a4…71"]);
        assert_eq!(shorten(&[A, A]), ["0199a3…c2", "0199a3…c2"]);
        assert_eq!(shorten(&["demo"]), ["demo"]);
        assert!(shorten(&[]).is_empty());
    }

    #[test]
    fn what_is_shown_is_accepted_back() {
        let ids: Vec<String> = (0..500u32)
            .map(|number| {
                let mixed = number.wrapping_mul(2_654_435_761);
                format!("0199a3c2-{:04x}-7000-8000-{mixed:012x}", number % 7)
            })
            .collect();
        let all: Vec<&str> = ids.iter().map(String::as_str).collect();
        for (id, short) in all.iter().zip(shorten(&all)) {
            assert_eq!(resolve("session", &short, all.iter().copied()), Ok(*id), "{short}");
            assert_eq!(resolve("session", &short.replace('…', ".."), all.iter().copied()), Ok(*id), "{short}");
        }
    }

    #[test]
    fn a_prefix_must_be_long_enough_and_mean_one_thing() {
        let all = [A, B, C];
        assert_eq!(resolve("session", "0199a4", all), Ok(C));
        assert_eq!(resolve("session", "0199A4", all), Ok(C));
        assert_eq!(resolve("session", B, all), Ok(B));
        assert_eq!(
            resolve("session", "019", all),
            Err(ResolveError::Unknown { kind: "session", text: "019".to_owned() })
        );
        let error = resolve("session", "0199a3", all).unwrap_err();
        assert_eq!(error.to_string(), "`0199a3` could be 2 sessions");
        assert_eq!(resolve("session", "…", all).unwrap_err().to_string(), "no session `…`");
    }
}
