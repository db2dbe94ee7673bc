//! Text for a terminal: how wide it is, what of it may reach the screen, and how it is cut.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Returns how many columns a terminal gives to `text` (Unicode Standard Annex 11).
pub fn display_width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Returns `text` as one line that can't command the terminal.
///
/// Titles, reasons and paths come from agents and files. A control character in them could move the cursor, set the
/// clipboard or hide text, so white space (line breaks and tabs too) becomes one space each and every other control
/// character, the C1 range and the marks that reorder text become U+FFFD.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|character| match character {
                '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
                other if is_unsafe(other) => '\u{fffd}',
                other => other,
            })
            .collect(),
    )
}

/// Returns `text` safe for a terminal with its line breaks and tabs kept, for what is many lines by nature.
pub(super) fn clean_lines(text: &str) -> String {
    let keep = |character: char| matches!(character, '\n' | '\t');
    text.chars()
        .map(|character| if is_unsafe(character) && !keep(character) { '\u{fffd}' } else { character })
        .collect()
}

/// Says whether a character may act on the terminal or on the order of the text around it.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts `text` to at most `width_max` columns; what was cut shows as `…`.
pub(super) fn truncate(text: &str, width_max: usize) -> Cow<'_, str> {
    if display_width(text) <= width_max {
        return Cow::Borrowed(text);
    }
    if width_max == 0 {
        return Cow::Borrowed("");
    }
    // The width of a prefix is asked of the whole prefix: joined emoji are narrower than the sum of their parts, and a
    // zero-width mark stays with the character before it because it does not widen the prefix.
    let end = text
        .char_indices()
        .map(|(start, character)| start + character.len_utf8())
        .take_while(|end| display_width(&text[..*end]) < width_max)
        .last()
        .unwrap_or(0);
    Cow::Owned(format!("{}…", text[..end].trim_end()))
}

/// Appends `text` to `line`, filled with spaces to `width` columns.
pub(super) fn push_padded(line: &mut String, text: &str, width: usize, right: bool) {
    let fill = width.saturating_sub(display_width(text));
    if right {
        line.extend(std::iter::repeat_n(' ', fill));
    }
    line.push_str(text);
    if !right {
        line.extend(std::iter::repeat_n(' ', fill));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_in_columns_not_in_bytes() {
        assert_eq!(display_width("naïve"), 5);
        assert_eq!(display_width("日本"), 4);
        assert_eq!(display_width("e\u{301}"), 1);
    }

    #[test]
    fn nothing_stored_can_command_the_terminal() {
        assert_eq!(clean("two\nlines\tand"), "two lines and");
        assert_eq!(clean("\u{1b}]52;c;aGk=\u{7}x"), "\u{fffd}]52;c;aGk=\u{fffd}x");
        assert_eq!(clean("ab\u{202e}dc"), "ab\u{fffd}dc");
        assert_eq!(clean("c1 \u{9b}31m"), "c1 \u{fffd}31m");
        assert!(matches!(clean("plain ✓ 日本"), Cow::Borrowed(_)));
        assert_eq!(clean_lines("a\n\tb\u{1b}[2J"), "a\n\tb\u{fffd}[2J");
    }

    #[test]
    fn a_cut_never_splits_a_wide_character_and_keeps_marks() {
        assert_eq!(truncate("日本語", 6), "日本語");
        assert_eq!(truncate("日本語", 5), "日本…");
        assert_eq!(truncate("日本語", 4), "日…");
        assert_eq!(truncate("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!(truncate("abc", 0), "");
        assert_eq!(truncate("a bc", 3), "a…");
    }
}
