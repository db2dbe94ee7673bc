//! Adds an agent to the text of `config.toml`, keeping every byte that is there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use holdfast_protocol::ids::AgentAlias;
use toml_edit::{Item, Key, Table, TableLike, Value};

use super::error::ConfigError;
use super::snapshot::parse;

/// An agent to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAgent {
    /// Its name.
    pub alias: AgentAlias,
    /// The command that starts it.
    pub command: Vec<String>,
    /// Variables added to its environment; nothing secret.
    pub env: BTreeMap<String, String>,
}

/// Why an agent was not added.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text can't be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name is taken.
    #[error("agent `{alias}` exists already (line {line})")]
    Exists {
        /// The name.
        alias: AgentAlias,
        /// Where it is.
        line: usize,
    },
    /// `agents` is written in a form that no table can be added to, such as `agents = { … }`.
    #[error("`agents` is written in a form that takes no more tables (line {line})")]
    NoRoom {
        /// Where it is.
        line: usize,
    },
}

/// Adds `agent` to the text `bytes` of `file`, behind the last agent there, and returns the new text.
///
/// Only inserts: line ends, byte order mark, comments and order stay as they are.
///
/// # Errors
/// [`EditError`].
pub fn add_agent(file: &Path, bytes: &[u8], agent: &NewAgent) -> Result<Vec<u8>, EditError> {
    let (source, table) = parse(file, bytes)?;
    let text = source.text();
    let line_of = |span: Option<Range<usize>>| source.position(span.map_or(0, |span| span.start)).line;
    let mut offset = text.len();
    if let Some(agents) = table.get("agents") {
        let line = line_of(agents.span().or_else(|| table.key("agents").and_then(Key::span)));
        let Some(agents) = agents.as_table() else { return Err(EditError::NoRoom { line }) };
        if let Some((key, item)) = agents.get_key_value(agent.alias.as_str()) {
            let line = line_of(item.span().or_else(|| key.span()));
            return Err(EditError::Exists { alias: agent.alias.clone(), line });
        }
        // Behind `agents.a.command = …` at the top, a header would swallow the other keys of the top.
        if !agents.is_dotted()
            && let Some(end) = end_of_table(agents)
        {
            offset = text.get(end..).and_then(|rest| rest.find('\n')).map_or(text.len(), |at| end + at + 1);
        }
    }
    let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let before = text.get(..offset).unwrap_or_default();
    let after = text.get(offset..).unwrap_or_default();
    let mut block = String::new();
    if !before.is_empty() {
        if !before.ends_with('\n') {
            block.push_str(line_end);
        }
        block.push_str(line_end);
    }
    block.push_str(&format!("[agents.{}]{line_end}", agent.alias));
    block.push_str(&format!("command = {}{line_end}", list(&agent.command)));
    if !agent.env.is_empty() {
        let pairs: Vec<String> =
            agent.env.iter().map(|(name, value)| format!("{} = {}", Key::new(name), quoted(value))).collect();
        block.push_str(&format!("env = {{ {} }}{line_end}", pairs.join(", ")));
    }
    let mark = if bytes.starts_with("\u{feff}".as_bytes()) { "\u{feff}" } else { "" };
    let added = [mark, before, &block, after].concat().into_bytes();
    // Which tables a header may add to is the parser's to say.
    match parse(file, &added) {
        Ok(_) => Ok(added),
        Err(_) => Err(EditError::NoRoom { line: line_of(table.key("agents").and_then(Key::span)) }),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("[{}]", words.join(", "))
}

/// Returns where the last thing in a table ends, tables below included.
fn end_of_table(table: &Table) -> Option<usize> {
    let own = table.span().map(|span| span.end);
    let items = table.iter().flat_map(|(name, item)| {
        let below = match item {
            Item::Table(table) => end_of_table(table),
            Item::ArrayOfTables(tables) => tables.iter().filter_map(end_of_table).max(),
            Item::Value(value) => value.span().map(|span| span.end),
            Item::None => None,
        };
        [below, TableLike::key(table, name).and_then(Key::span).map(|span| span.end)]
    });
    items.chain([own]).flatten().max()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent() -> NewAgent {
        NewAgent {
            alias: "claude".parse().unwrap(),
            command: vec!["claude-agent-acp".to_owned(), "a \"b\"".to_owned()],
            env: BTreeMap::from([("IS_SANDBOX".to_owned(), "1".to_owned())]),
        }
    }

    fn add(text: &str) -> Result<String, EditError> {
        add_agent(Path::new("config.toml"), text.as_bytes(), &agent()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    const BLOCK: &str = "[agents.claude]\ncommand = [\"claude-agent-acp\", 'a \"b\"']\nenv = { IS_SANDBOX = \"1\" }\n";

    #[test]
    fn the_block_goes_behind_the_last_agent_or_to_the_end() {
        for (before, after) in [
            ("", ""),
            ("# only this", ""),
            ("x = 1\n[gateway]\nport = 1 # last\n", ""),
            ("[agents.a]\ncommand = ['a'] # one\n", "\n# about the gateway\n[gateway]\nport = 1\n"),
            ("[agents.a]\nenv = {}\n[agents.a.permissions]\npolicy = 'ask'\n", "[x]\n"),
            ("[agents.a]\n", "[agents_else]\n"),
            ("[x]\n[agents.b]\ncommand = [\n  'b',\n]\n", "[y]\n"),
            ("[agents]\na.command = 'x'\n", "# end\n"),
            ("agents.a.command = 'x'\ny = 1\n", ""),
        ] {
            let added = add(&format!("{before}{after}")).unwrap();
            let gap = match before {
                "" => "",
                _ if before.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            assert_eq!(added, format!("{before}{gap}{BLOCK}{after}"));
        }
    }

    #[test]
    fn line_ends_and_mark_stay() {
        let text = "\u{feff}# top\r\n[agents.a]\r\nbuiltin = 'demo'\r\n\r\n[gateway]\r\nport = 1\r\n";
        let added = add(text).unwrap();
        let block = BLOCK.replace('\n', "\r\n");
        assert_eq!(added, text.replace("'demo'\r\n", &format!("'demo'\r\n\r\n{block}")));
    }

    #[test]
    fn what_can_not_be_added_is_refused() {
        assert!(matches!(add("\n[agents.claude]\n"), Err(EditError::Exists { line: 2, .. })));
        assert!(matches!(add("x = 1\nagents = {}\n"), Err(EditError::NoRoom { line: 2 })));
        assert!(matches!(add("[x]\n[[agents]]\n"), Err(EditError::NoRoom { line: 2 })));
        assert!(matches!(add("x = = 1\n"), Err(EditError::Config(ConfigError::Syntax { .. }))));
    }

    proptest! {
        #[test]
        fn only_one_piece_is_inserted_and_the_agent_is_there(
            pieces in proptest::collection::vec(
                prop::sample::select(vec![
                    "# note é\n", "\n", "[gateway]\nport = 1\n", "[agents.a]\nbuiltin = 'demo' # x\n",
                    "[agents.b]\r\ncommand = ['b',\r\n 'c']\r\n", "[agents.b.env]\nX = 'y'", "[[cron.jobs]]\nid = 1\n",
                ]), 0..7),
            mark in any::<bool>(),
            dotted in any::<bool>(),
        ) {
            let top = if dotted { "agents.top.command = 'x'\ny = 1\n" } else { "" };
            let text = format!("{}{top}{}", if mark { "\u{feff}" } else { "" }, pieces.concat());
            prop_assume!(parse(Path::new("c"), text.as_bytes()).is_ok());
            let added = add(&text).unwrap();
            let shared = text.bytes().zip(added.bytes()).take_while(|(old, new)| old == new).count();
            let rest = &text.as_bytes()[shared..];
            prop_assert!(added.as_bytes().ends_with(rest));
            let (_, old) = parse(Path::new("c"), text.as_bytes()).unwrap();
            let (_, table) = parse(Path::new("c"), added.as_bytes()).unwrap();
            for (name, item) in old.iter().filter(|(name, _)| *name != "agents") {
                prop_assert_eq!(table.get(name).map(Item::type_name), Some(item.type_name()));
            }
            let count = |table: &Table| table.get("agents").and_then(Item::as_table).map_or(0, Table::len);
            prop_assert_eq!(count(&table), count(&old) + 1);
            let found = table.get("agents").and_then(|agents| agents.get("claude")).and_then(|agent| agent.get("command"));
            prop_assert_eq!(found.and_then(Item::as_array).map(toml_edit::Array::len), Some(2));
        }
    }
}
