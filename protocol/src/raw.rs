//! Looking into JSON text without decoding it: the members of an object, the elements of an array, one string.
//!
//! What we pass on must come out byte for byte, so routing reads single members out of the text and edits replace byte
//! ranges of it. Every function expects the text of one valid JSON value (what a [`serde_json::value::RawValue`] holds);
//! other text gives fewer or odd members, never a panic. Nothing here allocates, recurses or looks deeper than asked.

use std::borrow::Cow;
use std::ops::Range;

/// One member of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// The key as it stands, without its quotes and with its escapes.
    key: &'a str,
    /// The value's JSON text, without white space around it.
    pub value: &'a str,
    /// Where the value begins in the object's text.
    value_start: usize,
    /// Where the key's opening quote is in the object's text.
    key_start: usize,
}

impl<'a> Member<'a> {
    /// Says whether the key is `name`, however it is escaped.
    pub fn is(&self, name: &str) -> bool {
        if memchr::memchr(b'\\', self.key.as_bytes()).is_none() {
            return self.key == name;
        }
        self.key().is_some_and(|key| key == name)
    }

    /// Returns the decoded key; `None` if it is no Unicode text (half a surrogate pair).
    pub fn key(&self) -> Option<Cow<'a, str>> {
        unescape(self.key)
    }

    /// Returns where the value stands in the object's text.
    pub fn value_range(&self) -> Range<usize> {
        self.value_start..self.value_start + self.value.len()
    }

    /// Returns where the whole member stands in the object's text, key included, comma excluded.
    pub fn range(&self) -> Range<usize> {
        self.key_start..self.value_start + self.value.len()
    }
}

/// Returns the members of an object in their order, duplicates included; `None` if `text` is no object.
pub fn members(text: &str) -> Option<Members<'_>> {
    let position = skip_space(text.as_bytes(), 0);
    (text.as_bytes().get(position) == Some(&b'{')).then(|| Members { text, position: position + 1 })
}

/// Iterator of [`members`].
#[derive(Debug, Clone)]
pub struct Members<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let bytes = self.text.as_bytes();
        let mut position = skip_space(bytes, self.position);
        if bytes.get(position) == Some(&b',') {
            position = skip_space(bytes, position + 1);
        }
        if bytes.get(position) != Some(&b'"') {
            return None;
        }
        let key_start = position;
        let key_end = end_of_string(bytes, key_start)?;
        position = skip_space(bytes, key_end);
        if bytes.get(position) != Some(&b':') {
            return None;
        }
        let value_start = skip_space(bytes, position + 1);
        let value_end = end_of_value(bytes, value_start)?;
        self.position = value_end;
        Some(Member {
            key: self.text.get(key_start + 1..key_end - 1)?,
            value: self.text.get(value_start..value_end)?,
            value_start,
            key_start,
        })
    }
}

/// One element of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    /// The element's JSON text, without white space around it.
    pub value: &'a str,
    /// Where it begins in the array's text.
    pub start: usize,
}

/// Returns the elements of an array; `None` if `text` is no array.
pub fn elements(text: &str) -> Option<Elements<'_>> {
    let position = skip_space(text.as_bytes(), 0);
    (text.as_bytes().get(position) == Some(&b'[')).then(|| Elements { text, position: position + 1 })
}

/// Iterator of [`elements`].
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let bytes = self.text.as_bytes();
        let mut position = skip_space(bytes, self.position);
        if bytes.get(position) == Some(&b',') {
            position = skip_space(bytes, position + 1);
        }
        if matches!(bytes.get(position), None | Some(b']')) {
            return None;
        }
        let end = end_of_value(bytes, position)?;
        self.position = end;
        Some(Element { value: self.text.get(position..end)?, start: position })
    }
}

/// Returns the values of the named members; of a name that comes twice the last one, as parsers commonly do.
///
/// All are `None` if `text` is no object.
pub fn pick<'a, const N: usize>(text: &'a str, names: [&str; N]) -> [Option<&'a str>; N] {
    let mut values = [None; N];
    for member in members(text).into_iter().flatten() {
        if let Some(index) = names.iter().position(|name| member.is(name)) {
            values[index] = Some(member.value);
        }
    }
    values
}

/// Returns the value at a path of member names; `None` if any step is missing or no object.
pub fn at<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(text, |text, name| pick(text, [name])[0])
}

/// Decodes a JSON string, borrowed when nothing in it is escaped. `None` for other values, and for strings that are no
/// Unicode text (half a surrogate pair).
pub fn string(text: &str) -> Option<Cow<'_, str>> {
    unescape(text.strip_prefix('"')?.strip_suffix('"')?)
}

/// Returns the integer; `None` for other values, fractions and numbers out of range.
pub fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Returns the text unless it is `null`: the protocol treats null like a missing member nearly everywhere.
pub fn not_null(text: &str) -> Option<&str> {
    (text != "null").then_some(text)
}

/// Writes `text` as a JSON string.
pub fn quote(text: &str) -> String {
    // A string always serialises.
    serde_json::to_string(text).unwrap_or_default()
}

fn unescape(inner: &str) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<String>(&format!("\"{inner}\"")).ok().map(Cow::Owned)
}

fn skip_space(bytes: &[u8], mut position: usize) -> usize {
    while matches!(bytes.get(position), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        position += 1;
    }
    position
}

/// Returns the position after the closing quote of the string that opens at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> Option<usize> {
    let mut position = start + 1;
    loop {
        position += memchr::memchr2(b'"', b'\\', bytes.get(position..)?)?;
        match bytes[position] {
            b'"' => return Some(position + 1),
            _ => position += 2,
        }
    }
}

/// Returns the position after the value that begins at `start`.
fn end_of_value(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => end_of_string(bytes, start),
        b'{' | b'[' => {
            let mut depth = 0_usize;
            let mut position = start;
            loop {
                match bytes.get(position)? {
                    b'"' => position = end_of_string(bytes, position)?,
                    b'{' | b'[' => {
                        depth += 1;
                        position += 1;
                    }
                    b'}' | b']' => {
                        depth -= 1;
                        position += 1;
                        if depth == 0 {
                            return Some(position);
                        }
                    }
                    _ => position += 1,
                }
            }
        }
        _ => {
            let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            let length = bytes[start..].iter().position(is_end).unwrap_or(bytes.len() - start);
            (length > 0).then_some(start + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn members_keep_order_duplicates_and_places() {
        let text = r#" { "a" : 1.50 , "\u0062":"x\"}," ,"c":{"d":[1,{"e":"]"}]},"a":null } "#;
        let found: Vec<(String, &str)> =
            members(text).unwrap().map(|member| (member.key().unwrap().into_owned(), member.value)).collect();
        assert_eq!(
            found,
            [
                ("a".to_owned(), "1.50"),
                ("b".to_owned(), r#""x\"},""#),
                ("c".to_owned(), r#"{"d":[1,{"e":"]"}]}"#),
                ("a".to_owned(), "null"),
            ]
        );
        for member in members(text).unwrap() {
            assert_eq!(&text[member.value_range()], member.value);
            assert!(text[member.range()].starts_with('"'));
        }
        assert_eq!(pick(text, ["a", "b", "z"]), [Some("null"), Some(r#""x\"},""#), None]);
        assert_eq!(at(text, &["c", "d"]), Some(r#"[1,{"e":"]"}]"#));
        assert!(members("[]").is_none() && members("").is_none() && members("{}").unwrap().next().is_none());
    }

    #[test]
    fn elements_are_whole_values() {
        let found: Vec<&str> = elements(r#"[1, "a]" ,{"b":[]}, [ ] ,null]"#).unwrap().map(|e| e.value).collect();
        assert_eq!(found, ["1", r#""a]""#, r#"{"b":[]}"#, "[ ]", "null"]);
        assert!(elements("{}").is_none() && elements("[ ]").unwrap().next().is_none());
    }

    #[test]
    fn strings_decode_or_are_refused() {
        assert_eq!(string(r#""plain é""#), Some(Cow::Borrowed("plain é")));
        assert_eq!(string(r#""a\nb""#).as_deref(), Some("a\nb"));
        assert_eq!((string(r#""\ud800""#), string("5"), string("\"")), (None, None, None));
    }

    proptest! {
        #[test]
        fn it_sees_what_serde_sees(map in prop::collection::btree_map(any::<String>(), (any::<String>(), any::<i64>(), prop::collection::vec(any::<String>(), 0..3)), 0..6)) {
            let text = serde_json::to_string(&map).unwrap();
            let mut seen = std::collections::BTreeMap::new();
            for member in members(&text).unwrap() {
                seen.insert(member.key().unwrap().into_owned(), serde_json::from_str::<(String, i64, Vec<String>)>(member.value).unwrap());
                let parts: Vec<Element<'_>> = elements(member.value).unwrap().collect();
                prop_assert_eq!(parts.len(), 3);
                prop_assert!(integer(parts[1].value).is_some());
            }
            prop_assert_eq!(seen, map);
        }

        #[test]
        fn text_that_is_no_json_does_no_harm(text in "[\\[\\]{}\",:\\\\ a1é]{0,40}") {
            let _ = members(&text).map(Iterator::count);
            let _ = elements(&text).map(Iterator::count);
            let _ = (string(&text), at(&text, &["a", "1"]));
        }
    }
}
