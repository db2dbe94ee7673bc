//! Dotted paths: naming, finding and showing places in a document.

use std::fmt;
use std::ops::Range;

use toml_edit::{Item, Key, Table, TableLike, Value};

/// The way to a key: `agents.claude.cwd`. Positions in lists are segments such as `[0]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyPath(pub Vec<String>);

impl KeyPath {
    /// Makes a path of its segments.
    pub fn new<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// Returns the path with `rest` below it.
    #[must_use]
    pub fn join(&self, rest: &KeyPath) -> Self {
        Self(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// Returns the first segment: the section.
    pub fn section(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Returns the last segment that is a name.
    pub fn leaf(&self) -> &str {
        self.0.iter().rev().find(|segment| !segment.starts_with('[')).map_or("", String::as_str)
    }

    /// Says whether `other` is this path or below it.
    pub fn covers(&self, other: &KeyPath) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Says whether the value may be secret, by the names on the way to it.
    pub fn looks_secret(&self) -> bool {
        self.0.iter().any(|segment| segment == "env") || super::source::looks_secret(self.leaf())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            if segment.starts_with('[') {
                formatter.write_str(segment)?;
                continue;
            }
            if index > 0 {
                formatter.write_str(".")?;
            }
            let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            match !segment.is_empty() && segment.bytes().all(bare) {
                true => formatter.write_str(segment)?,
                false => fmt::Display::fmt(&Key::new(segment.as_str()), formatter)?,
            }
        }
        Ok(())
    }
}

/// Finds the path of the deepest key or value that holds `span`, in a document parsed with spans.
///
/// A table's own span is its header only, so its content is always looked through.
pub(super) fn path_of_span(table: &Table, span: &Range<usize>) -> Option<KeyPath> {
    let mut path = Vec::new();
    find_in_table(table, span, &mut path).then_some(KeyPath(path))
}

fn holds(outer: Option<Range<usize>>, inner: &Range<usize>) -> bool {
    outer.is_some_and(|outer| outer.start <= inner.start && inner.end <= outer.end)
}

fn find_in_table(table: &dyn TableLike, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    for (name, item) in table.iter() {
        path.push(name.to_owned());
        if find_in_item(item, span, path)
            || holds(item.span(), span)
            || holds(table.key(name).and_then(Key::span), span)
        {
            return true;
        }
        path.pop();
    }
    false
}

fn find_in_item(item: &Item, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    match item {
        Item::None => false,
        Item::Value(value) => find_in_value(value, span, path),
        Item::Table(table) => find_in_table(table, span, path),
        Item::ArrayOfTables(tables) => tables.iter().enumerate().any(|(index, table)| {
            path.push(format!("[{index}]"));
            if find_in_table(table, span, path) || holds(table.span(), span) {
                return true;
            }
            path.pop();
            false
        }),
    }
}

fn find_in_value(value: &Value, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    match value {
        Value::InlineTable(table) => find_in_table(table, span, path),
        Value::Array(array) => array.iter().enumerate().any(|(index, value)| {
            path.push(format!("[{index}]"));
            if find_in_value(value, span, path) || holds(value.span(), span) {
                return true;
            }
            path.pop();
            false
        }),
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => false,
    }
}

/// Returns the span of the value at `path`, or of the nearest thing above it that is in the text.
pub(super) fn span_of_path(table: &Table, path: &KeyPath) -> Option<Range<usize>> {
    let mut found = None;
    let mut place = Place::Table(table);
    for segment in &path.0 {
        let (span, next) = place.step(segment)?;
        match next {
            Some(next) => {
                found = span.or(found);
                place = next;
            }
            None => return span.or(found),
        }
        if matches!(place, Place::Missing) {
            return found;
        }
    }
    found
}

/// Returns the item at `path`, which may not pass through lists.
pub(super) fn item_at<'a>(table: &'a Table, path: &KeyPath) -> Option<&'a Item> {
    let (last, parents) = path.0.split_last()?;
    let mut at: &dyn TableLike = table;
    for segment in parents {
        at = at.get(segment)?.as_table_like()?;
    }
    at.get(last)
}

/// A step's result on the way down.
enum Place<'a> {
    Table(&'a dyn TableLike),
    Array(&'a toml_edit::Array),
    Tables(&'a toml_edit::ArrayOfTables),
    Missing,
}

impl<'a> Place<'a> {
    /// Goes to `segment`; the span of what is there, and where to go on from.
    fn step(&self, segment: &str) -> Option<(Option<Range<usize>>, Option<Place<'a>>)> {
        let index = || segment.strip_prefix('[')?.strip_suffix(']')?.parse::<usize>().ok();
        let of_value = |value: &'a Value| match value {
            Value::Array(array) => Some(Place::Array(array)),
            Value::InlineTable(table) => Some(Place::Table(table)),
            _ => None,
        };
        Some(match self {
            Self::Missing => return None,
            Self::Table(table) => match table.get(segment) {
                None | Some(Item::None) => (None, Some(Place::Missing)),
                Some(item) => {
                    let span = item.span().or_else(|| table.key(segment).and_then(Key::span));
                    let next = match item {
                        Item::Table(table) => Some(Place::Table(table)),
                        Item::ArrayOfTables(tables) => Some(Place::Tables(tables)),
                        Item::Value(value) => of_value(value),
                        Item::None => None,
                    };
                    (span, next)
                }
            },
            Self::Array(array) => match index().and_then(|index| array.get(index)) {
                Some(value) => (value.span(), of_value(value)),
                None => (None, Some(Place::Missing)),
            },
            Self::Tables(tables) => match index().and_then(|index| tables.get(index)) {
                Some(table) => (table.span(), Some(Place::Table(table))),
                None => (None, Some(Place::Missing)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n[b]\nc = { d = [1, 2] }\n[[e.f]]\ng = 'x'\n[[e.f]]\nh.i = true\n";

    #[test]
    fn paths_and_spans_find_each_other() {
        let document = toml_edit::Document::parse(TEXT).unwrap();
        for (needle, path) in [
            ("1\n", "a"),
            ("c =", "b.c"),
            ("2]", "b.c.d[1]"),
            ("'x'", "e.f[0].g"),
            ("true", "e.f[1].h.i"),
            ("[b]", "b"),
        ] {
            let start = TEXT.find(needle).unwrap();
            let found = path_of_span(document.as_table(), &(start..start + 1)).unwrap();
            assert_eq!(found.to_string(), path);
            let span = span_of_path(document.as_table(), &found).unwrap();
            if needle != "c =" {
                assert!(span.contains(&start), "{path}: {span:?} {start}");
            }
        }
    }

    #[test]
    fn a_missing_key_is_placed_at_the_nearest_thing_above() {
        let document = toml_edit::Document::parse(TEXT).unwrap();
        let at = |segments: &[&str]| span_of_path(document.as_table(), &KeyPath::new(segments.iter().copied()));
        assert_eq!(at(&["b", "x", "y"]), at(&["b"]));
        assert_eq!(at(&["e", "f", "[7]", "g"]), at(&["e", "f"]));
        assert_eq!(at(&["nothing"]), None);
        assert_eq!(at(&["a", "below"]), at(&["a"]));
    }

    #[test]
    fn odd_names_are_quoted() {
        assert_eq!(KeyPath::new(["a", "b c", "[0]", "d"]).to_string(), "a.\"b c\"[0].d");
    }
}
