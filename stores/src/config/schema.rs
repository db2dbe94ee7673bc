//! Walks the JSON Schema beside the document: which keys are known, and whether a value is text.

use serde_json::Value;
use toml_edit::{Item, Table, TableLike, Value as TomlValue};

use super::path::KeyPath;
use super::suggest::nearest;

/// A key that no section knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnknownKey {
    pub(super) path: KeyPath,
    pub(super) nearest: Option<String>,
}

/// Lists the keys of `table` that the schema doesn't know, in the order of the file.
///
/// What is below an unknown key is not looked at, and neither is what the schema leaves open.
pub(super) fn unknown_keys(schema: &Value, table: &Table) -> Vec<UnknownKey> {
    let mut walk = Walk { root: schema, found: Vec::new() };
    walk.table(&[schema], table, &mut Vec::new());
    walk.found
}

/// Says whether the schema wants text, and nothing else, at `path`.
pub(super) fn wants_text(schema: &Value, path: &KeyPath) -> bool {
    let walk = Walk { root: schema, found: Vec::new() };
    let mut nodes = vec![schema];
    for segment in &path.0 {
        match walk.child(&nodes, segment) {
            Child::Known(below) => nodes = below,
            Child::Open | Child::Unknown(_) => return false,
        }
    }
    let nodes = walk.alternatives(&nodes);
    !nodes.is_empty()
        && nodes.iter().all(|node| match node.get("type") {
            Some(Value::String(name)) => name == "string" || name == "null",
            Some(Value::Array(names)) => names.iter().all(|name| name == "string" || name == "null"),
            _ => node.get("enum").is_some() || node.get("const").is_some_and(Value::is_string),
        })
}

/// What a schema says about a key.
enum Child<'a> {
    /// Known, with the schemas of its value.
    Known(Vec<&'a Value>),
    /// Anything is allowed here.
    Open,
    /// Not known; these are.
    Unknown(Vec<&'a str>),
}

struct Walk<'a> {
    root: &'a Value,
    found: Vec<UnknownKey>,
}

impl<'a> Walk<'a> {
    fn table(&mut self, nodes: &[&'a Value], table: &dyn TableLike, path: &mut Vec<String>) {
        for (name, item) in table.iter() {
            path.push(name.to_owned());
            match self.child(nodes, name) {
                Child::Open => {}
                Child::Known(below) => self.item(&below, item, path),
                Child::Unknown(known) => {
                    let nearest = nearest(name, known).map(str::to_owned);
                    self.found.push(UnknownKey { path: KeyPath(path.clone()), nearest });
                }
            }
            path.pop();
        }
    }

    fn item(&mut self, nodes: &[&'a Value], item: &Item, path: &mut Vec<String>) {
        match item {
            Item::Table(table) => self.table(nodes, table, path),
            Item::Value(value) => self.value(nodes, value, path),
            Item::ArrayOfTables(tables) => {
                let below = self.elements(nodes);
                for (index, table) in tables.iter().enumerate() {
                    path.push(format!("[{index}]"));
                    self.table(&below, table, path);
                    path.pop();
                }
            }
            Item::None => {}
        }
    }

    fn value(&mut self, nodes: &[&'a Value], value: &TomlValue, path: &mut Vec<String>) {
        match value {
            TomlValue::InlineTable(table) => self.table(nodes, table, path),
            TomlValue::Array(array) => {
                let below = self.elements(nodes);
                for (index, value) in array.iter().enumerate() {
                    path.push(format!("[{index}]"));
                    self.value(&below, value, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    /// Follows references and alternatives down to schemas that say something themselves.
    fn alternatives(&self, nodes: &[&'a Value]) -> Vec<&'a Value> {
        let mut found = Vec::new();
        let mut queue: Vec<&'a Value> = nodes.to_vec();
        // A schema of ours has a few dozen definitions; the limit only guards against one that refers to itself.
        for _ in 0..256 {
            let Some(node) = queue.pop() else { break };
            let mut says_more = node.get("properties").is_some() || node.get("$ref").is_none();
            if let Some(reference) = node.get("$ref").and_then(Value::as_str) {
                match reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) {
                    Some(target) => queue.push(target),
                    None => says_more = true,
                }
            }
            for word in ["anyOf", "oneOf", "allOf"] {
                if let Some(Value::Array(parts)) = node.get(word) {
                    queue.extend(parts);
                    says_more = node.get("properties").is_some();
                }
            }
            if says_more {
                found.push(node);
            }
        }
        found
    }

    fn child(&self, nodes: &[&'a Value], name: &str) -> Child<'a> {
        let mut below = Vec::new();
        let mut known = Vec::new();
        let mut closed = false;
        for node in self.alternatives(nodes) {
            let properties = node.get("properties").and_then(Value::as_object);
            if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
                below.push(schema);
                continue;
            }
            known.extend(properties.into_iter().flatten().map(|(name, _)| name.as_str()));
            let patterns = node.get("patternProperties").and_then(Value::as_object);
            match node.get("additionalProperties") {
                Some(schema @ Value::Object(_)) => below.push(schema),
                Some(Value::Bool(true)) => return Child::Open,
                _ => match patterns {
                    // Our only pattern is that of an alias; a name that breaks it is a type error, told elsewhere.
                    Some(patterns) => below.extend(patterns.values()),
                    None => closed |= properties.is_some(),
                },
            }
        }
        match (below.is_empty(), closed) {
            (false, _) => Child::Known(below),
            (true, true) => Child::Unknown(known),
            (true, false) => Child::Open,
        }
    }

    /// Returns the schemas of a list's elements.
    fn elements(&self, nodes: &[&'a Value]) -> Vec<&'a Value> {
        self.alternatives(nodes).into_iter().filter_map(|node| node.get("items")).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "gateway": { "$ref": "#/$defs/Gateway" },
                "agents": { "type": "object", "additionalProperties": { "$ref": "#/$defs/Agent" } },
                "open": { "type": "object", "additionalProperties": true },
                "jobs": { "anyOf": [
                    { "type": "array", "items": { "$ref": "#/$defs/Agent" } },
                    { "type": "null" }
                ] },
            },
            "$defs": {
                "Gateway": { "type": "object", "properties": {
                    "port": { "type": ["integer", "null"] }, "host": { "type": "string" } } },
                "Agent": { "type": "object", "properties": {
                    "cwd": { "type": ["string", "null"] },
                    "env": { "type": "object", "additionalProperties": { "type": "string" } } } },
            },
        })
    }

    #[test]
    fn unknown_keys_are_found_wherever_they_are() {
        let text = "gatway = 1\n[gateway]\nprot = 1\nhost = 'x'\n[agents.a]\ncwd = 'x'\nenv.ANY = 'y'\nxyzzy = 1\n\
                    [open.deep]\nanything = 1\n[[jobs]]\ncwd = 'x'\n[[jobs]]\ncwt = { x = 1 }\n";
        let document = toml_edit::Document::parse(text).unwrap();
        let found: Vec<(String, Option<String>)> = unknown_keys(&schema(), document.as_table())
            .into_iter()
            .map(|key| (key.path.to_string(), key.nearest))
            .collect();
        assert_eq!(
            found,
            [
                ("gatway".to_owned(), Some("gateway".to_owned())),
                ("gateway.prot".to_owned(), None),
                ("agents.a.xyzzy".to_owned(), None),
                ("jobs[1].cwt".to_owned(), Some("cwd".to_owned())),
            ]
        );
    }

    #[test]
    fn text_is_told_from_other_types() {
        let wants = |path: &[&str]| wants_text(&schema(), &KeyPath::new(path.iter().copied()));
        assert!(wants(&["gateway", "host"]));
        assert!(wants(&["agents", "any", "cwd"]));
        assert!(wants(&["agents", "any", "env", "TOKEN"]));
        assert!(!wants(&["gateway", "port"]));
        assert!(!wants(&["gateway"]));
        assert!(!wants(&["open", "x"]));
        assert!(!wants(&["unknown"]));
    }
}
