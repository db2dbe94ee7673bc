//! Values that are, or may be, secret: in memory they are wiped and never shown, in the file they may be sealed.

use std::borrow::Cow;
use std::fmt;

use age::secrecy::{ExposeSecret, SecretString};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use toml_edit::{Item, Table, TableLike, Value};

use super::path::KeyPath;

/// What a sealed value begins with; base64 of an age file follows.
pub const SEALED_PREFIX: &str = "age:";

/// A value that may be secret. `Debug` shows nothing, memory is wiped, and a sealed one gives no text until it is opened.
#[derive(Clone)]
pub struct Secret(SecretString);

/// A sealed value was used without being opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value is sealed")]
pub struct Sealed;

impl Secret {
    /// Takes a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// Says whether the value is sealed.
    pub fn is_sealed(&self) -> bool {
        self.0.expose_secret().starts_with(SEALED_PREFIX)
    }

    /// Returns the text.
    ///
    /// # Errors
    /// [`Sealed`] when it is ciphertext: nobody must ever be sent that in place of the secret.
    pub fn expose(&self) -> Result<&str, Sealed> {
        match self.is_sealed() {
            true => Err(Sealed),
            false => Ok(self.0.expose_secret()),
        }
    }

    /// Returns the text as the file has it, sealed or not. For hashing and for opening.
    pub fn as_written(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_sealed() { "Secret(sealed)" } else { "Secret(…)" })
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.as_written() == other.as_written()
    }
}

impl Eq for Secret {}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "writeOnly": true,
            "description": "A value that may be secret. `age:…` is one sealed with the root's key.",
        })
    }
}

/// Lists the paths of all sealed values.
pub(super) fn sealed_paths(table: &Table) -> Vec<KeyPath> {
    let mut found = Vec::new();
    in_table(table, &mut Vec::new(), &mut found);
    found
}

fn in_table(table: &dyn TableLike, path: &mut Vec<String>, found: &mut Vec<KeyPath>) {
    for (name, item) in table.iter() {
        path.push(name.to_owned());
        match item {
            Item::Table(table) => in_table(table, path, found),
            Item::Value(value) => in_value(value, path, found),
            Item::ArrayOfTables(tables) => {
                for (index, table) in tables.iter().enumerate() {
                    path.push(format!("[{index}]"));
                    in_table(table, path, found);
                    path.pop();
                }
            }
            Item::None => {}
        }
        path.pop();
    }
}

fn in_value(value: &Value, path: &mut Vec<String>, found: &mut Vec<KeyPath>) {
    match value {
        Value::String(text) if text.value().starts_with(SEALED_PREFIX) => found.push(KeyPath(path.clone())),
        Value::InlineTable(table) => in_table(table, path, found),
        Value::Array(array) => {
            for (index, value) in array.iter().enumerate() {
                path.push(format!("[{index}]"));
                in_value(value, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_by_nothing_and_a_sealed_one_gives_no_text() {
        let plain = Secret::new("marker");
        assert_eq!(format!("{plain:?}"), "Secret(…)");
        assert_eq!(plain.expose(), Ok("marker"));
        let sealed = Secret::new("age:bWFya2Vy");
        assert_eq!(format!("{sealed:?}"), "Secret(sealed)");
        assert_eq!(sealed.expose(), Err(Sealed));
    }

    #[test]
    fn sealed_values_are_found_everywhere() {
        let text = "a = 'age:x'\n[b]\nc = ['y', 'age:z']\n[[d]]\ne = { f = 'age:w' }\ng = 'image:x'\n";
        let document = toml_edit::Document::parse(text).unwrap();
        let paths: Vec<String> = sealed_paths(document.as_table()).iter().map(ToString::to_string).collect();
        assert_eq!(paths, ["a", "b.c[1]", "d[0].e.f"]);
    }
}
