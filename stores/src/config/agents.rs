//! `[agents.<alias>]`: the agents, how each is started, and how many may run.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_protocol::ids::AgentAlias;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::permissions::AgentPermissions;
use super::secret::Secret;
use super::section::{ConfigSection, SectionProblem};
use super::suggest::nearest;
use super::visibility::AgentVisibility;

/// Names that the daemon sets in every adapter's environment, so a configuration may not.
const RESERVED_VARIABLES: &[&str] = &["HOLDFAST_LEASE_ID", "HOLDFAST_INSTANCE_ID", "HOLDFAST_SESSION_ID"];

/// All agents, by alias.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct AgentsConfig(pub BTreeMap<AgentAlias, AgentConfig>);

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentConfig {
    /// The command that starts its ACP server: a list of words, or one line with shell-like quotes.
    pub command: Option<CommandLine>,
    /// An agent inside this program, instead of a command.
    pub builtin: Option<BuiltinAgent>,
    /// Variables added to its environment.
    pub env: BTreeMap<String, Secret>,
    /// What is answered when it asks for permission; the rest comes from `[permissions]`.
    pub permissions: AgentPermissions,
    /// Which sessions it may see when it asks the daemon from within one of its own.
    pub visibility: AgentVisibility,
    /// Seconds without a turn after which its process is ended; sessions stay resumable.
    pub idle_timeout_s: u64,
    /// Its adapter processes that may run at once; no bound of its own when missing. Past it the caller gets `busy`.
    pub max_processes: Option<u32>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            command: None,
            builtin: None,
            env: BTreeMap::new(),
            permissions: AgentPermissions::default(),
            visibility: AgentVisibility::default(),
            idle_timeout_s: 900,
            max_processes: None,
        }
    }
}

/// An agent inside this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuiltinAgent {
    /// The demonstration agent: needs no model and no network.
    Demo,
}

/// How an agent is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch<'a> {
    /// By this program's own binary.
    Builtin(BuiltinAgent),
    /// By a program and its arguments; at least one word.
    Command(&'a [String]),
}

/// A command in words. In the file a list, or a line that is split as a shell would, without expanding anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine(pub Vec<String>);

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = CommandLine;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a command: a list of words or one string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CommandLine, E> {
                split_words(text).map(CommandLine).map_err(E::custom)
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut words: A) -> Result<CommandLine, A::Error> {
                let mut command = Vec::new();
                while let Some(word) = words.next_element()? {
                    command.push(word);
                }
                Ok(CommandLine(command))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for CommandLine {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A program and its arguments: a list of words, or one line with shell-like quotes.",
            "anyOf": [
                { "type": "array", "items": { "type": "string" }, "minItems": 1 },
                { "type": "string", "minLength": 1 },
            ],
        })
    }
}

/// Splits a line into words by the quoting rules of the POSIX shell (2.2), without any expansion.
fn split_words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(quoted) => word.push(quoted),
                        None => return Err("a single quote is not closed"),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => match characters.next() {
                            Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                            Some(other) => word.extend(['\\', other]),
                            None => return Err("a double quote is not closed"),
                        },
                        Some(quoted) => word.push(quoted),
                        None => return Err("a double quote is not closed"),
                    }
                }
            }
            '\\' => match characters.next() {
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err("a backslash at the end escapes nothing"),
            },
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

impl AgentConfig {
    /// Returns how the agent is started, or nothing when the configuration doesn't say (which validation refuses).
    pub fn launch(&self) -> Option<Launch<'_>> {
        match (&self.command, self.builtin) {
            (_, Some(builtin)) => Some(Launch::Builtin(builtin)),
            (Some(CommandLine(words)), None) if !words.is_empty() => Some(Launch::Command(words)),
            _ => None,
        }
    }

    /// Hashes what decides how the agent's process behaves: command and environment as written. BLAKE3, hex.
    ///
    /// Each part goes in with its length, so that no two configurations run together to the same bytes.
    pub fn launch_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match self.launch() {
            Some(Launch::Builtin(BuiltinAgent::Demo)) => part(b"builtin demo"),
            Some(Launch::Command(words)) => {
                part(b"command");
                part(&(words.len() as u64).to_le_bytes());
                words.iter().for_each(|word| part(word.as_bytes()));
            }
            None => part(b"nothing"),
        }
        for (name, value) in &self.env {
            part(name.as_bytes());
            part(value.as_written().as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Lists what is wrong with this agent.
    fn problems(&self, alias: &str) -> Vec<SectionProblem> {
        let mut problems = Vec::new();
        let mut add = |key: &[&str], message: &str, hint: &str| {
            let path = std::iter::once(alias).chain(key.iter().copied());
            problems.push(SectionProblem::new(path, message).with_hint(hint));
        };
        match (&self.command, self.builtin) {
            (None, None) => {
                add(
                    &[],
                    "the agent has no `command`",
                    "say how it is started, as in command = [\"opencode\", \"acp\"]",
                );
            }
            (Some(_), Some(_)) => {
                add(&["builtin"], "an agent has a `command` or a `builtin`, not both", "remove one of them");
            }
            (Some(CommandLine(words)), None) => match words.first() {
                Some(program) if !program.is_empty() => {
                    if words.iter().any(|word| word.contains('\0')) {
                        add(&["command"], "a word of a command can't hold a NUL", "remove it");
                    }
                }
                _ => {
                    add(&["command"], "the command is empty", "name a program, as in command = [\"opencode\", \"acp\"]")
                }
            },
            (None, Some(_)) => {}
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.as_written().contains('\0') {
                add(&["env", name], "not a possible environment variable", "names have no `=`, and neither part a NUL");
            } else if RESERVED_VARIABLES.contains(&name.as_str()) {
                add(&["env", name], "the daemon sets this variable itself", "remove it");
            }
        }
        if self.idle_timeout_s == 0 {
            add(&["idle_timeout_s"], "must be 1 or more", "leave the key out for the default");
        }
        if self.max_processes == Some(0) {
            add(&["max_processes"], "0 lets the agent not run at all", "use 1 or more, or leave the key out");
        }
        // A century: past it, arithmetic on instants could overflow.
        if self.idle_timeout_s > 100 * 366 * 86_400 {
            add(&["idle_timeout_s"], "is too large", "leave the key out for the default");
        }
        problems
    }
}

impl AgentsConfig {
    /// Returns an agent.
    pub fn get(&self, alias: &AgentAlias) -> Option<&AgentConfig> {
        self.0.get(alias)
    }

    /// Returns the alias nearest to a word that is none, for "did you mean".
    pub fn nearest(&self, word: &str) -> Option<&str> {
        nearest(word, self.0.keys().map(AgentAlias::as_str))
    }
}

impl ConfigSection for AgentsConfig {
    const NAME: &'static str = "agents";

    fn validate(&self) -> Vec<SectionProblem> {
        self.0.iter().flat_map(|(alias, agent)| agent.problems(alias.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_split_as_a_shell_would() {
        for (line, words) in [
            ("opencode acp", &["opencode", "acp"] as &[&str]),
            ("  a\t'b c'  ", &["a", "b c"]),
            (r#"a "b \"c\" \d" e\ f"#, &["a", r#"b "c" \d"#, "e f"]),
            ("a ''", &["a", ""]),
            ("x'y'z", &["xyz"]),
            ("a $HOME", &["a", "$HOME"]),
            ("", &[]),
        ] {
            assert_eq!(split_words(line).unwrap(), words, "{line}");
        }
        for bad in ["'a", "\"a", "a\\", "\"a\\"] {
            assert!(split_words(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in proptest::collection::vec("[ -~]{0,12}", 1..6)) {
            let line: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split_words(&line.join(" ")).unwrap(), words);
        }
    }

    #[test]
    fn the_hash_changes_with_whatever_changes_the_process() {
        let command = |words: &[&str]| Some(CommandLine(words.iter().map(ToString::to_string).collect()));
        let base = AgentConfig { command: command(&["a", "b"]), ..AgentConfig::default() };
        let variants = [
            base.clone(),
            AgentConfig { command: command(&["ab"]), ..base.clone() },
            AgentConfig { command: None, builtin: Some(BuiltinAgent::Demo), ..base.clone() },
            AgentConfig { env: BTreeMap::from([("A".into(), Secret::new("b"))]), ..base.clone() },
            AgentConfig { env: BTreeMap::from([("Ab".into(), Secret::new(""))]), ..base.clone() },
        ];
        let hashes: std::collections::BTreeSet<String> = variants.iter().map(AgentConfig::launch_hash).collect();
        assert_eq!(hashes.len(), variants.len());
        assert_eq!(base.launch_hash(), AgentConfig { idle_timeout_s: 5, ..base.clone() }.launch_hash());
    }
}
