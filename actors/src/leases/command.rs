//! A command in its one canonical form, so that a stored one and a live one can be compared.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Returns the BLAKE3 hash of a command as configured: program and arguments, each with its length before it, so that
/// no two commands share a hash by where their words are parted.
pub fn command_hash<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for word in argv {
        let bytes = word.as_ref().as_bytes();
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    *hasher.finalize().as_bytes()
}

/// Parts a command that was stored as one line of shell words; `None` when a quote is not closed.
///
/// Single quotes, double quotes and backslashes mean what they mean to a shell; nothing is expanded. Source: POSIX shell,
/// section 2.2.
pub fn split_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '\'' => break,
                        other => word.push(other),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '"' => break,
                        '\\' => match characters.next()? {
                            escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                            '\n' => {}
                            other => word.extend(['\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            '\\' => match characters.next()? {
                '\n' => {}
                escaped => word.get_or_insert_default().push(escaped),
            },
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

/// Says whether a stored line is exactly this live command: as shell words, or as words that were joined by single blanks
/// without any quotes.
pub fn is_same_command(stored: &str, live: &[OsString]) -> bool {
    let quoted = || {
        split_words(stored).is_some_and(|words| words.iter().map(OsStr::new).eq(live.iter().map(OsString::as_os_str)))
    };
    !live.is_empty() && (stored.as_bytes() == live.join(OsStr::new(" ")).as_bytes() || quoted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_does_not_matter_and_everything_else_does() {
        let live: Vec<OsString> = ["npx", "a b", "it's", "--x=\"1\"", ""].map(OsString::from).into();
        for stored in [
            r#"npx 'a b' "it's" '--x="1"' ''"#,
            r#"npx a\ b it\'s --x=\"1\" """#,
            "npx  \"a b\"\t'it'\\''s' --x='\"1\"' ''\n",
            "npx a b it's --x=\"1\" ",
        ] {
            assert!(is_same_command(stored, &live), "{stored}");
        }
        for other in
            ["npx 'a b' \"it's\"", "npx a b it\\'s '--x=\"1\"' ''", "npx 'a b", "npx 'a b' \"it's\" '--x=\"1\"'"]
        {
            assert!(!is_same_command(other, &live), "{other}");
        }
    }

    #[test]
    fn nothing_is_the_same_as_no_command() {
        assert!(!is_same_command("", &[]));
        assert!(!is_same_command(" ", &[]));
    }

    #[test]
    fn the_hash_tells_where_words_part() {
        assert_ne!(command_hash(["a", "bc"]), command_hash(["ab", "c"]));
        assert_ne!(command_hash(["a", ""]), command_hash(["a"]));
        assert_eq!(command_hash(["a", "b"]), command_hash(vec![OsString::from("a"), "b".into()]));
    }
}
