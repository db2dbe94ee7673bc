//! One reading of the configuration: text, document, overrides and all that is wrong with it. Never changes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml_edit::{Item, Table};

use super::environment::{AppliedOverride, Overrides};
use super::error::ConfigError;
use super::path::{KeyPath, item_at, span_of_path};
use super::problem::{Place, Problem, SectionError};
use super::schema::unknown_keys;
use super::section::{ConfigSection, SectionRegistry, read};
use super::source::SourceText;
use super::{SCHEMA_VERSION, SCHEMA_VERSION_KEY};

/// Names a state of `config.toml`: the BLAKE3 hash of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revision([u8; 32]);

impl Revision {
    /// Hashes the bytes of a file.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// What was read, before anything is said about it.
pub(super) struct Content {
    pub(super) file: PathBuf,
    pub(super) source: SourceText,
    /// The document as the file has it, with the places of everything.
    pub(super) original: Table,
    /// The same with the overrides laid over.
    pub(super) effective: Table,
    pub(super) overrides: Vec<AppliedOverride>,
    pub(super) override_problems: Vec<Problem>,
}

struct Inner {
    revision: Revision,
    content: Content,
    warnings: Vec<Problem>,
    errors: BTreeMap<&'static str, SectionError>,
}

/// One reading of the configuration. Cheap to clone.
#[derive(Clone)]
pub struct ConfigSnapshot(Arc<Inner>);

impl fmt::Debug for ConfigSnapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The document may hold secrets typed in plain text.
        formatter
            .debug_struct("ConfigSnapshot")
            .field("file", &self.0.content.file)
            .field("revision", &self.0.revision)
            .field("down", &self.0.errors.keys())
            .finish_non_exhaustive()
    }
}

impl ConfigSnapshot {
    /// Reads the bytes of `file`. Sections that can't be used are noted in the snapshot; see
    /// [`ConfigSnapshot::refuse_problems`].
    ///
    /// # Errors
    /// [`ConfigError::NotUtf8`], [`ConfigError::Syntax`] and [`ConfigError::SchemaVersion`]: nothing can be read then.
    pub fn read(
        file: &Path,
        bytes: &[u8],
        registry: &SectionRegistry,
        overrides: &Overrides,
    ) -> Result<Self, ConfigError> {
        let (source, original) = parse(file, bytes)?;
        let mut warnings = check_schema_version(file, &source, &original)?;
        let mut effective = original.clone();
        let (overrides, override_problems) = overrides.apply(&mut effective, registry.json_schema());
        let content = Content { file: file.to_owned(), source, original, effective, overrides, override_problems };
        let known: Vec<&str> = registry.names().collect();
        // Of a section nobody reads, a failed override costs nothing but should be told.
        for problem in &content.override_problems {
            if !known.contains(&problem.path.section()) {
                warnings.push(problem.clone());
            }
        }
        for unknown in unknown_keys(registry.json_schema(), &content.effective) {
            let place = match content.place_of(&unknown.path) {
                Place::Unknown => content
                    .overrides
                    .iter()
                    .find(|applied| unknown.path.covers(&applied.path))
                    .map_or(Place::Unknown, |applied| Place::Variable(applied.variable.clone())),
                place => place,
            };
            let hint = unknown.nearest.map(|nearest| format!("did you mean `{nearest}`?"));
            warnings.push(Problem::new(unknown.path, place, "unknown key, kept but not used").with_hint(hint));
        }
        let errors = registry.check(&content);
        Ok(Self(Arc::new(Inner { revision: Revision::of(bytes), content, warnings, errors })))
    }

    /// Returns an empty configuration: all defaults. For trees without a file.
    ///
    /// # Errors
    /// As [`ConfigSnapshot::read`], but of an empty text there are none.
    pub fn empty(file: &Path, registry: &SectionRegistry) -> Result<Self, ConfigError> {
        Self::read(file, b"", registry, &Overrides::default())
    }

    /// Returns the snapshot if every section can be used.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all problems otherwise.
    pub fn refuse_problems(self) -> Result<Self, ConfigError> {
        let problems: Vec<Problem> = self.problems().cloned().collect();
        self.refuse_if(problems)
    }

    /// Returns the snapshot if every section can be used and nothing is warned about either.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all problems and warnings otherwise.
    pub fn refuse_warnings(self) -> Result<Self, ConfigError> {
        let problems: Vec<Problem> = self.problems().chain(self.warnings()).cloned().collect();
        self.refuse_if(problems)
    }

    fn refuse_if(self, problems: Vec<Problem>) -> Result<Self, ConfigError> {
        let mut problems = problems.into_iter();
        match problems.next() {
            None => Ok(self),
            Some(first) => Err(ConfigError::Invalid {
                file: self.0.content.file.clone(),
                first: Box::new(first),
                others: problems.collect(),
            }),
        }
    }

    /// Returns a section; a missing one is its default.
    ///
    /// # Errors
    /// [`SectionError`] when it is of the wrong type or doesn't hold together.
    pub fn section<T: ConfigSection>(&self) -> Result<T, SectionError> {
        read::<T>(&self.0.content)
    }

    /// Returns the revision of the file this was read from.
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// Returns the file this was read from.
    pub fn file(&self) -> &Path {
        self.0.content.file()
    }

    /// Returns the text of the file, without its byte order mark. May hold secrets.
    pub fn text(&self) -> &str {
        self.0.content.source.text()
    }

    /// Returns the document with the overrides laid over. May hold secrets.
    pub fn document(&self) -> &Table {
        &self.0.content.effective
    }

    /// Returns the item at a path, overrides included.
    pub fn item(&self, path: &KeyPath) -> Option<&Item> {
        item_at(&self.0.content.effective, path)
    }

    /// Returns where the value of a path comes from.
    pub fn place_of(&self, path: &KeyPath) -> Place {
        self.0.content.place_of(path)
    }

    /// Returns the overrides in force.
    pub fn overrides(&self) -> &[AppliedOverride] {
        &self.0.content.overrides
    }

    /// Returns what works but should be looked at: unknown keys, a newer layout.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.0.warnings.iter()
    }

    /// Returns the sections that can't be used.
    pub fn section_errors(&self) -> impl Iterator<Item = &SectionError> {
        self.0.errors.values()
    }

    /// Returns all that keeps sections from being used.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.0.errors.values().flat_map(SectionError::problems)
    }

    /// Returns the paths of all values that are sealed secrets (`age:…`).
    pub fn sealed_paths(&self) -> Vec<KeyPath> {
        super::secret::sealed_paths(&self.0.content.effective)
    }
}

/// Parses the bytes of a file into its text and its document with places.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<(SourceText, Table), ConfigError> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
            let source = SourceText::new(&valid);
            let position = source.position(valid.len());
            return Err(ConfigError::NotUtf8 { file: file.to_owned(), line: position.line, column: position.column });
        }
    };
    let source = SourceText::new(text);
    match toml_edit::Document::parse(source.text().to_owned()) {
        Ok(document) => Ok((source, document.into_table())),
        Err(error) => {
            let place = error.span().map_or(Place::Unknown, |span| Place::File(source.position(span.start)));
            let message = syntax_message(source.text(), error.message(), error.span());
            Err(ConfigError::Syntax {
                file: file.to_owned(),
                problem: Box::new(Problem::new(KeyPath::default(), place, message)),
                backup: None,
            })
        }
    }
}

/// Words a syntax error on one line. The parser says what it expected; what it found is the character there, unless that
/// could be part of a value.
fn syntax_message(text: &str, message: &str, span: Option<std::ops::Range<usize>>) -> String {
    let message = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ");
    let found = span.and_then(|span| text.get(span.start..)).and_then(|rest| rest.chars().next());
    match found {
        Some(found) if found.is_ascii_punctuation() && !message.contains("found") => {
            format!("{message}, found `{found}`")
        }
        _ => message,
    }
}

/// Checks `schema_version`. A newer layout is read as far as it is understood, since unknown keys are kept anyway.
fn check_schema_version(file: &Path, source: &SourceText, table: &Table) -> Result<Vec<Problem>, ConfigError> {
    let Some(item) = table.get(SCHEMA_VERSION_KEY) else {
        return Ok(Vec::new());
    };
    let path = KeyPath::new([SCHEMA_VERSION_KEY]);
    let place = span_of_path(table, &path).map_or(Place::Unknown, |span| Place::File(source.position(span.start)));
    match item.as_integer() {
        Some(version) if (1..=SCHEMA_VERSION).contains(&version) => Ok(Vec::new()),
        Some(version) if version > SCHEMA_VERSION => Ok(vec![Problem::new(
            path,
            place,
            format!(
                "the file was written for version {version}, this program knows {SCHEMA_VERSION}; what it doesn't know is kept"
            ),
        )]),
        _ => Err(ConfigError::SchemaVersion {
            file: file.to_owned(),
            problem: Box::new(Problem::new(path, place, format!("expected a whole number from 1 to {SCHEMA_VERSION}"))),
        }),
    }
}
