//! The text of a configuration file and the places in it: lines and columns as an editor counts them.

use std::ops::Range;
use std::sync::Arc;

/// A name with one of these in it may stand for a secret, so its value is never shown. Showing too little costs a look into
/// the file; showing too much can't be undone.
const SECRET_WORDS: &[&str] = &["key", "token", "secret", "password", "passphrase", "credential", "auth", "cookie"];

/// The longest piece of a line that is shown.
const EXCERPT_LIMIT_CHARACTERS: usize = 120;

/// The text of a file, without its byte order mark.
#[derive(Clone)]
pub struct SourceText {
    text: Arc<str>,
    line_starts: Arc<[usize]>,
}

/// A place in a file, as people count: from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// What may be shown of the line; values that may be secret read `…`.
    pub excerpt: String,
    /// The column the excerpt begins at.
    pub excerpt_column: usize,
}

impl Position {
    /// Draws the line with a caret below the column, both indented by two.
    pub fn picture(&self) -> String {
        let number = self.line.to_string();
        let width = self.excerpt.chars().count();
        let before = self.column.saturating_sub(self.excerpt_column).min(width);
        format!("  {number} | {}\n  {:indent$} | {:before$}^", self.excerpt, "", "", indent = number.len())
    }
}

impl SourceText {
    /// Takes the text, dropping a byte order mark: it is no part of what the parser counts.
    pub fn new(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let line_starts = std::iter::once(0).chain(memchr_newlines(text)).collect();
        Self { text: text.into(), line_starts }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the place of a byte offset; one past the end is the end.
    pub fn position(&self, offset: usize) -> Position {
        let offset = self.floor_boundary(offset);
        let index = self.line_starts.partition_point(|start| *start <= offset) - 1;
        let start = self.line_starts.get(index).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        let shown = if self.hides(index) { hide_value(self.line(index)) } else { self.line(index).to_owned() };
        let (excerpt, excerpt_column) = window(&shown, column);
        Position { line: index + 1, column, excerpt, excerpt_column }
    }

    /// Returns a line without its end; empty past the last one.
    fn line(&self, index: usize) -> &str {
        let range = Range {
            start: self.line_starts.get(index).copied().unwrap_or(self.text.len()),
            end: self.line_starts.get(index + 1).copied().unwrap_or(self.text.len()),
        };
        self.text.get(range).unwrap_or_default().trim_end_matches(['\n', '\r'])
    }

    /// The offset itself, or the nearest character boundary before it.
    fn floor_boundary(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }

    /// Says whether the line may hold a secret: by its own words, by the list, table or text it continues, or by the `env`
    /// table it is in.
    ///
    /// Works on text, since it must also answer for files that don't parse.
    fn hides(&self, index: usize) -> bool {
        if looks_secret(self.line(index)) {
            return true;
        }
        let mut continues = key_of(self.line(index)).is_none();
        let mut closed = false;
        for above in (0..index).rev().map(|index| self.line(index)) {
            if let Some(header) = header_of(above) {
                return looks_secret(header);
            }
            if opens(above) {
                if !closed && looks_secret(above) {
                    return true;
                }
                closed = false;
            } else if above.trim_start().starts_with([']', '}']) || above.contains("\"\"\"") || above.contains("'''") {
                closed = true;
            }
            if continues && let Some(key) = key_of(above) {
                if looks_secret(key) {
                    return true;
                }
                continues = false;
            }
        }
        false
    }
}

/// Offsets of what follows each line feed.
fn memchr_newlines(text: &str) -> impl Iterator<Item = usize> + '_ {
    text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset + 1)
}

/// Says whether a name or a line speaks of something secret.
pub(super) fn looks_secret(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let mut names = lower.split(|character: char| !character.is_alphanumeric() && character != '_');
    SECRET_WORDS.iter().any(|word| lower.contains(word)) || names.any(|name| name == "env")
}

/// Returns the name of a table header. A quoted one is not taken for one: it could as well be a list in a list.
fn header_of(line: &str) -> Option<&str> {
    let name = line.trim().trim_start_matches('[');
    let end = name.find(']')?;
    let legal = |character: char| character.is_alphanumeric() || "_-. ".contains(character);
    let name = name.get(..end)?;
    (line.trim_start().starts_with('[')
        && !name.is_empty()
        && name.chars().all(legal)
        && !line.trim_end().ends_with(','))
    .then_some(name)
}

/// Says whether a line begins something that goes on below it.
fn opens(line: &str) -> bool {
    let count = |pattern: &str| line.matches(pattern).count();
    count("[") > count("]") || count("{") > count("}") || count("\"\"\"") % 2 == 1 || count("'''") % 2 == 1
}

/// Returns the key of a `key = value` line. A line that ends in `=` is rather the end of some base64.
fn key_of(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    let legal = |character: char| character.is_alphanumeric() || "_-.\"' \t".contains(character);
    (!key.trim().is_empty() && key.chars().all(legal) && !value.trim_matches(['=', ' ']).is_empty()).then_some(key)
}

/// Replaces the value of a line, or all of a line without a key.
fn hide_value(line: &str) -> String {
    if line.trim_start().starts_with('[') && !line.contains(['"', '\'']) {
        return line.to_owned();
    }
    match line.split_once('=') {
        Some((key, _)) if !key.contains(['"', '\'']) => format!("{key}= …"),
        _ => "…".to_owned(),
    }
}

/// Cuts a long line to what surrounds the column, and returns the column the piece begins at. Tabs become spaces, so that
/// the caret below stands right.
fn window(line: &str, column: usize) -> (String, usize) {
    let characters: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if characters.len() <= EXCERPT_LIMIT_CHARACTERS {
        return (characters.into_iter().collect(), 1);
    }
    let first = column.saturating_sub(EXCERPT_LIMIT_CHARACTERS / 2).min(characters.len() - EXCERPT_LIMIT_CHARACTERS);
    (characters.into_iter().skip(first).take(EXCERPT_LIMIT_CHARACTERS).collect(), first + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_and_columns_are_the_same_under_every_line_end_and_mark() {
        for (mark, end) in [("", "\n"), ("", "\r\n"), ("\u{feff}", "\n"), ("\u{feff}", "\r\n")] {
            let source = SourceText::new(&format!("{mark}# é{end}{end}[gateway]{end}port = = 1{end}"));
            let offset = source.text().find("= 1").unwrap();
            let position = source.position(offset);
            assert_eq!((position.line, position.column), (4, 8), "{mark:?} {end:?}");
            assert_eq!(position.picture(), "  4 | port = = 1\n    |        ^");
            assert_eq!(source.position(usize::MAX).line, 5);
        }
    }

    #[test]
    fn columns_count_characters() {
        let source = SourceText::new("name = \"ééé\" x");
        assert_eq!(source.position(source.text().find('x').unwrap()).column, 14);
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        for (text, expected) in [
            ("api_key = \"marker", "api_key = …"),
            ("keys = [\n \"marker\", x", "…"),
            ("private_key = \"\"\"\nAAmarker==\nBBmarker", "…"),
            ("[agents.a.env]\nPLAIN = \"marker", "PLAIN = …"),
            ("env = { A = \"marker", "env = …"),
            ("env = {\n A = \"marker", " A = …"),
            ("api_keys = [\n \"x\",\n]\nport = = 1", "port = = 1"),
            ("api_keys = [\n [\"x\"],\n \"marker", "…"),
            ("[a.env]\nX = 1\n[b]\nport = = 1", "port = = 1"),
            ("[x]\nport = 1", "port = 1"),
            ("[x]\nlist = [\n 1,", " 1,"),
        ] {
            let source = SourceText::new(text);
            let position = source.position(text.len());
            assert_eq!(position.excerpt, expected, "{text:?}");
            assert!(position.picture().ends_with('^'));
        }
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let source = SourceText::new(&format!("{}X{}", "a".repeat(5_000), "b".repeat(5_000)));
        let position = source.position(5_000);
        assert_eq!(position.column, 5_001);
        let picture = position.picture();
        let (line, caret) = picture.split_once('\n').unwrap();
        assert_eq!(line.chars().nth(caret.chars().count() - 1), Some('X'));
        assert!(line.len() < 140);
    }

    proptest! {
        #[test]
        fn every_offset_has_a_place(text in "[a=\\[\"é\r\n]{0,80}", offset in 0usize..120) {
            let source = SourceText::new(&text);
            let position = source.position(offset);
            prop_assert!(position.line >= 1 && position.column >= 1);
            prop_assert!(position.picture().ends_with('^'));
        }
    }
}
