//! Overrides from the environment: `HOLDFAST_CONFIG__gateway__port=7421` sets `gateway.port` for this process.
//!
//! They are laid over the document in memory and never saved.

use std::ffi::OsString;
use std::fmt;

use serde_json::Value as Schema;
use toml_edit::{Item, Table, TableLike, Value, value};

use super::path::KeyPath;
use super::problem::{Place, Problem};
use super::schema::wants_text;

/// What the names of override variables begin with. The dots of the path are `__`.
pub const OVERRIDE_PREFIX: &str = "HOLDFAST_CONFIG__";

/// The overrides found in an environment, sorted by path, not yet typed.
#[derive(Clone, Default)]
pub struct Overrides {
    entries: Vec<Entry>,
    problems: Vec<Problem>,
}

#[derive(Clone)]
struct Entry {
    variable: String,
    path: KeyPath,
    text: String,
}

/// An override laid over the document. Its value may be secret and is not shown.
#[derive(Clone)]
pub struct AppliedOverride {
    /// The variable.
    pub variable: String,
    /// The key it sets.
    pub path: KeyPath,
    value: Value,
}

impl fmt::Debug for AppliedOverride {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AppliedOverride")
            .field("variable", &self.variable)
            .field("path", &self.path.to_string())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.entries.iter().map(|entry| &entry.variable)).finish()
    }
}

impl Overrides {
    /// Picks the overrides out of an environment; all other variables are ignored.
    ///
    /// A name with an empty part, or a name or value that is no UTF-8, becomes a problem of its section when the
    /// configuration is read.
    pub fn from_environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut overrides = Self::default();
        for (name, text) in variables {
            let variable = name.to_string_lossy().into_owned();
            let Some(dotted) = variable.strip_prefix(OVERRIDE_PREFIX) else { continue };
            let path = KeyPath::new(dotted.split("__"));
            let problem = |message| Problem::new(path.clone(), Place::Variable(variable.clone()), message);
            if path.0.iter().any(String::is_empty) {
                overrides.problems.push(
                    problem("the name has an empty part")
                        .with_hint(Some(format!("write {OVERRIDE_PREFIX}section__key=value"))),
                );
            } else if name.to_str().is_none() {
                overrides.problems.push(problem("the name is not valid UTF-8"));
            } else if let Some(text) = text.to_str() {
                overrides.entries.push(Entry { text: text.to_owned(), variable: variable.clone(), path });
            } else {
                overrides.problems.push(problem("the value is not valid UTF-8"));
            }
        }
        overrides.entries.sort_by(|left, right| left.path.cmp(&right.path));
        overrides
    }

    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.problems.is_empty()
    }

    /// Lays the overrides over `table`, and returns those applied and those that don't fit the document.
    pub(super) fn apply(&self, table: &mut Table, schema: &Schema) -> (Vec<AppliedOverride>, Vec<Problem>) {
        let mut applied = Vec::new();
        let mut problems = self.problems.clone();
        for entry in &self.entries {
            let value = typed(&entry.text, wants_text(schema, &entry.path));
            let candidate = AppliedOverride { variable: entry.variable.clone(), path: entry.path.clone(), value };
            match candidate.apply_to(table) {
                Ok(()) => applied.push(candidate),
                Err(message) => {
                    problems.push(Problem::new(entry.path.clone(), Place::Variable(entry.variable.clone()), message))
                }
            }
        }
        (applied, problems)
    }
}

impl AppliedOverride {
    /// Sets the value in `table`, making the tables on the way.
    pub(super) fn apply_to(&self, table: &mut Table) -> Result<(), String> {
        let Some((last, parents)) = self.path.0.split_last() else { return Ok(()) };
        let mut at: &mut dyn TableLike = table;
        for segment in parents {
            let item = at.entry(segment).or_insert_with(|| Item::Table(Table::new()));
            let kind = item.type_name();
            at = item.as_table_like_mut().ok_or_else(|| {
                format!("`{segment}` is no table but {kind}: lists and plain values are overridden as a whole")
            })?;
        }
        // The new value must not take over the old one's place in the file: errors in it are the variable's.
        at.remove(last);
        at.insert(last, value(self.value.clone()));
        Ok(())
    }
}

/// Reads a value as TOML would (`7421`, `true`, `["a", "b"]`, `{ a = 1 }`), or else takes it as text. Where only text fits,
/// it stays text unless it is a quoted TOML string.
fn typed(text: &str, wants_text: bool) -> Value {
    match text.trim().parse::<Value>() {
        Ok(parsed) if !wants_text || parsed.is_str() => {
            let mut parsed = parsed;
            parsed.decor_mut().clear();
            parsed
        }
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn applied(document: &str, variables: &[(&str, &str)]) -> (Table, Vec<AppliedOverride>, Vec<Problem>) {
        let schema = json!({ "properties": { "agents": { "additionalProperties": {
            "properties": { "cwd": { "type": "string" } } } } } });
        let mut table = toml_edit::Document::parse(document).unwrap().into_table();
        let overrides = Overrides::from_environment(
            variables.iter().map(|(name, text)| (OsString::from(name), OsString::from(text))),
        );
        let (applied, problems) = overrides.apply(&mut table, &schema);
        (table, applied, problems)
    }

    fn get<'a>(table: &'a Table, path: &str) -> &'a Value {
        super::super::path::item_at(table, &KeyPath::new(path.split('.'))).unwrap().as_value().unwrap()
    }

    #[test]
    fn values_are_typed_as_toml_or_stay_text() {
        for (text, name) in [
            ("7421", "integer"),
            ("true", "boolean"),
            ("1.5", "float"),
            ("[\"a\", 'b']", "array"),
            ("{ a = 1 }", "inline table"),
            ("\"quoted\"", "string"),
            ("plain", "string"),
            ("127.0.0.1", "string"),
            ("", "string"),
            ("1\nb = 2", "string"),
            ("a = 1", "string"),
            ("[unclosed", "string"),
        ] {
            let (table, applied, problems) = applied("", &[("HOLDFAST_CONFIG__a__b", text)]);
            assert_eq!((applied.len(), problems.len()), (1, 0), "{text:?}");
            assert_eq!(get(&table, "a.b").type_name(), name, "{text:?}");
        }
    }

    #[test]
    fn where_text_is_wanted_a_number_stays_text() {
        let (table, ..) = applied("", &[("HOLDFAST_CONFIG__agents__x__cwd", "12345")]);
        assert_eq!(get(&table, "agents.x.cwd").as_str(), Some("12345"));
        let (table, ..) = applied("", &[("HOLDFAST_CONFIG__agents__x__cwd", "'12345'")]);
        assert_eq!(get(&table, "agents.x.cwd").as_str(), Some("12345"));
    }

    #[test]
    fn other_keys_stay_and_other_variables_are_ignored() {
        let (table, applied, problems) = applied(
            "[a]\nb = 1\nc = { d = 1 }\n",
            &[("HOLDFAST_ROOT", "/x"), ("HOLDFAST_CONFIG__a__c__d", "2"), ("HOLDFAST_CONFIG__z", "3")],
        );
        assert_eq!((applied.len(), problems.len()), (2, 0));
        assert_eq!(get(&table, "a.b").as_integer(), Some(1));
        assert_eq!(get(&table, "a.c.d").as_integer(), Some(2));
        assert_eq!(get(&table, "z").as_integer(), Some(3));
    }

    #[test]
    fn what_does_not_fit_is_a_problem_of_the_variable() {
        for (name, text) in [
            ("HOLDFAST_CONFIG__a__b__c", "1"),
            ("HOLDFAST_CONFIG__list__0", "1"),
            ("HOLDFAST_CONFIG__", "1"),
            ("HOLDFAST_CONFIG__a____b", "1"),
        ] {
            let (table, applied, problems) = applied("list = [1]\n[a]\nb = 1\n", &[(name, text)]);
            assert_eq!((applied.len(), problems.len()), (0, 1), "{name}");
            assert_eq!(problems.first().unwrap().place, Place::Variable(name.to_owned()));
            assert_eq!(get(&table, "a.b").as_integer(), Some(1));
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_one_value_and_touches_nothing_else(text in any::<String>(), key in "[a-z]{1,8}") {
            prop_assume!(!text.contains('\0') && key != "keep");
            let (table, applied, problems) =
                applied("keep = 'me'\n", &[(&format!("HOLDFAST_CONFIG__s__{key}"), &text)]);
            prop_assert_eq!((applied.len(), problems.len()), (1, 0));
            prop_assert_eq!(table.len(), 2);
            prop_assert_eq!(get(&table, "keep").as_str(), Some("me"));
            let found = get(&table, &format!("s.{key}"));
            if let Some(found) = found.as_str() {
                let parsed = text.trim().parse::<Value>().ok();
                prop_assert!(found == text || parsed.as_ref().and_then(Value::as_str) == Some(found));
            }
        }

        #[test]
        fn numbers_and_words_keep_their_value(number in any::<i64>(), word in "[a-zA-Z][a-zA-Z ./:-]{0,20}") {
            let (table, ..) = applied("", &[("HOLDFAST_CONFIG__a__n", &number.to_string())]);
            prop_assert_eq!(get(&table, "a.n").as_integer(), Some(number));
            prop_assume!(!["true", "false", "inf", "nan"].contains(&word.trim()));
            let (table, ..) = applied("", &[("HOLDFAST_CONFIG__a__w", &word)]);
            prop_assert_eq!(get(&table, "a.w").as_str(), Some(word.as_str()));
        }

        #[test]
        fn a_quoted_string_means_what_it_means_in_the_file(text in any::<String>()) {
            let quoted = Value::from(text.as_str()).to_string();
            let (table, ..) = applied("", &[("HOLDFAST_CONFIG__a__b", &quoted)]);
            prop_assert_eq!(get(&table, "a.b").as_str(), Some(text.as_str()));
        }
    }
}
