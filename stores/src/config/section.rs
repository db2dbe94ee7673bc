//! Sections: one typed table of `config.toml` each, declared by the surface that owns it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use schemars::{JsonSchema, SchemaGenerator};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde_json::{Map, Value as Schema, json};
use toml_edit::{DocumentMut, Item, Value};

use super::environment::AppliedOverride;
use super::path::{KeyPath, path_of_span, span_of_path};
use super::problem::{Place, Problem, SectionError, explain};
use super::snapshot::Content;
use super::suggest::nearest;

/// A top-level table of `config.toml` (or, for the few there are, a map of tables).
///
/// Types take `#[serde(default)]`, so that a missing key is its default, and never `deny_unknown_fields`: unknown keys are
/// kept and warned about by the loader.
pub trait ConfigSection: DeserializeOwned + JsonSchema + Default + Send + Sync + 'static {
    /// The table's name.
    const NAME: &'static str;

    /// Checks what types can't say: ranges, formats, fields that go together.
    fn validate(&self) -> Vec<SectionProblem> {
        Vec::new()
    }

    /// Checks what depends on other sections, such as the name of an agent.
    fn cross_check(&self, _others: &Sections<'_>) -> Vec<SectionProblem> {
        Vec::new()
    }
}

/// One thing wrong in a section, told by the section itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionProblem {
    /// The key, from the section down.
    pub path: KeyPath,
    /// What is wrong. Must not hold a secret.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl SectionProblem {
    /// Makes a problem of the key `path`, from the section down.
    pub fn new<S: Into<String>>(path: impl IntoIterator<Item = S>, message: impl Into<String>) -> Self {
        Self { path: KeyPath::new(path), message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The other sections of the same document, for [`ConfigSection::cross_check`].
pub struct Sections<'a> {
    content: &'a Content,
}

impl Sections<'_> {
    /// Returns another section, or nothing when it isn't well-typed itself (which is reported there).
    pub fn section<T: ConfigSection>(&self) -> Option<T> {
        decode::<T>(self.content.effective.get(T::NAME)).ok()
    }
}

/// A section type without its type.
#[derive(Clone, Copy)]
pub struct SectionDescriptor {
    /// The table's name.
    pub name: &'static str,
    schema: fn(&mut SchemaGenerator) -> schemars::Schema,
    check: fn(&Content) -> Option<SectionError>,
}

impl SectionDescriptor {
    /// Describes the section `T`.
    pub fn of<T: ConfigSection>() -> Self {
        Self {
            name: T::NAME,
            schema: |generator| generator.subschema_for::<T>(),
            check: |content| read::<T>(content).err(),
        }
    }
}

/// Two sections of one name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two configuration sections are called `{name}`")]
pub struct DuplicateSection {
    /// The name.
    pub name: &'static str,
}

/// All sections this program knows, and the JSON Schema of the whole file made from them.
pub struct SectionRegistry {
    sections: BTreeMap<&'static str, SectionDescriptor>,
    schema: Schema,
}

impl SectionRegistry {
    /// Collects the sections.
    ///
    /// # Errors
    /// [`DuplicateSection`].
    pub fn new(sections: impl IntoIterator<Item = SectionDescriptor>) -> Result<Self, DuplicateSection> {
        let mut by_name = BTreeMap::new();
        for section in sections {
            if by_name.insert(section.name, section).is_some() {
                return Err(DuplicateSection { name: section.name });
            }
        }
        let schema = document_schema(by_name.values());
        Ok(Self { sections: by_name, schema })
    }

    /// Returns the JSON Schema (draft 2020-12) of `config.toml`, for editors and `config schema`.
    pub fn json_schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the names of the sections, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.sections.keys().copied()
    }

    /// Checks every section, and returns those that can't be used.
    pub(super) fn check(&self, content: &Content) -> BTreeMap<&'static str, SectionError> {
        self.sections.values().filter_map(|section| Some((section.name, (section.check)(content)?))).collect()
    }
}

/// Builds the schema of the whole file.
fn document_schema<'a>(sections: impl Iterator<Item = &'a SectionDescriptor>) -> Schema {
    let mut generator = schemars::generate::SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut properties = Map::new();
    properties.insert(
        super::SCHEMA_VERSION_KEY.to_owned(),
        json!({
            "description": "The version of the file's layout.",
            "type": "integer", "minimum": 1, "default": super::SCHEMA_VERSION,
        }),
    );
    for section in sections {
        properties.insert(section.name.to_owned(), (section.schema)(&mut generator).to_value());
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Holdfast config.toml",
        "type": "object",
        "properties": properties,
        "$defs": generator.take_definitions(true),
    })
}

/// Reads and checks a section; a missing one is its default.
pub(super) fn read<T: ConfigSection>(content: &Content) -> Result<T, SectionError> {
    let error = |problems| SectionError::of(T::NAME, &content.file, problems);
    // An override that couldn't be applied would otherwise be silently missing.
    let unapplied = content.override_problems.iter().filter(|problem| problem.path.section() == T::NAME).cloned();
    if let Some(error) = error(unapplied.collect()) {
        return Err(error);
    }
    let value = match decode::<T>(content.effective.get(T::NAME)) {
        Ok(value) => value,
        Err(cause) => {
            let problem = locate_type_error::<T>(content, cause);
            return Err(SectionError {
                section: T::NAME,
                file: content.file.clone(),
                first: Box::new(problem),
                others: Vec::new(),
            });
        }
    };
    let mut problems = value.validate();
    problems.extend(value.cross_check(&Sections { content }));
    let located = problems.into_iter().map(|problem| {
        let path = KeyPath::new([T::NAME]).join(&problem.path);
        let place = content.place_of(&path);
        Problem::new(path, place, problem.message).with_hint(problem.hint)
    });
    match error(located.collect()) {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// Why an item is not of a section's type: in serde's words, and where.
struct TypeError {
    message: String,
    span: Option<Range<usize>>,
}

/// Turns the item of a section into its type.
fn decode<T: ConfigSection>(item: Option<&Item>) -> Result<T, TypeError> {
    let decoded = match item {
        None | Some(Item::None) => return Ok(T::default()),
        Some(Item::Table(table)) => T::deserialize(toml_edit::de::Deserializer::from(DocumentMut::from(table.clone()))),
        Some(Item::Value(value @ Value::InlineTable(_))) => T::deserialize(value.clone().into_deserializer()),
        // Said here because serde would also read a struct from a list, field by field.
        Some(other) => {
            let found = match other {
                Item::Value(Value::Boolean(value)) => format!("boolean `{}`", value.value()),
                Item::Value(Value::Integer(value)) => format!("integer `{}`", value.value()),
                Item::Value(Value::Array(_)) | Item::ArrayOfTables(_) => "sequence".to_owned(),
                other => other.type_name().to_owned(),
            };
            return Err(TypeError { message: format!("invalid type: {found}, expected a map"), span: other.span() });
        }
    };
    decoded.map_err(|error| TypeError { message: error.message().to_owned(), span: error.span() })
}

/// Finds out where a type error comes from: the file, or the override that brought it in.
fn locate_type_error<T: ConfigSection>(content: &Content, error: TypeError) -> Problem {
    let section = KeyPath::new([T::NAME]);
    let concerned: Vec<&AppliedOverride> =
        content.overrides.iter().filter(|applied| applied.path.section() == T::NAME).collect();
    if !concerned.is_empty() && decode::<T>(content.original.get(T::NAME)).is_ok() {
        let alone = concerned.iter().find(|applied| {
            let mut table = content.original.clone();
            applied.apply_to(&mut table).is_ok() && decode::<T>(table.get(T::NAME)).is_err()
        });
        if let Some(guilty) = alone.or(concerned.last()) {
            let place = Place::Variable(guilty.variable.clone());
            return type_problem(guilty.path.clone(), place, &error.message);
        }
    }
    let span = error.span.clone();
    let path = span.as_ref().and_then(|span| path_of_span(&content.original, span)).unwrap_or_else(|| section.clone());
    let span = span.or_else(|| span_of_path(&content.original, &path));
    let place = span.map_or(Place::Unknown, |span| Place::File(content.source.position(span.start)));
    type_problem(path, place, &error.message)
}

/// Words a type error.
fn type_problem(path: KeyPath, place: Place, message: &str) -> Problem {
    let (message, expected, found) = explain(message, path.looks_secret());
    let hint = match (&expected, &found) {
        (Some(expected), Some(found)) => {
            let words: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
            nearest(found.trim_matches(['`', '"']), words.iter().copied()).map(|word| format!("did you mean `{word}`?"))
        }
        _ => None,
    };
    Problem { path, place, message, expected, found, hint }
}

impl std::fmt::Debug for SectionRegistry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.sections.keys()).finish()
    }
}

impl Content {
    /// Finds the place of a path: an override that sets it or something around it, else the file.
    pub(super) fn place_of(&self, path: &KeyPath) -> Place {
        if let Some(applied) = self.overrides.iter().rfind(|applied| applied.path.covers(path)) {
            return Place::Variable(applied.variable.clone());
        }
        match span_of_path(&self.original, path) {
            Some(span) => Place::File(self.source.position(span.start)),
            None => Place::Unknown,
        }
    }

    /// Returns the file's name for messages.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}
