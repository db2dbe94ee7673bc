//! JSON Schemas as tables.

use serde_json::Value;

use super::push_line;

/// Appends what a schema says: a table of fields, a list of values, or its type in words.
///
/// `link` turns the name of a shared type into a link to where it is described.
pub(super) fn push_schema(page: &mut String, schema: &Value, link: &dyn Fn(&str) -> String) {
    if let Some(description) = schema["description"].as_str() {
        push_line(page, format_args!("\n{}", one_line(description)));
    }
    if let Some(fields) = schema["properties"].as_object() {
        if fields.is_empty() {
            page.push_str("\nNo fields.\n");
            return;
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        page.push_str("\n| field | type | means |\n| --- | --- | --- |\n");
        for (name, field) in fields {
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            push_line(page, format_args!("| `{name}`{mark} | {} | {} |", type_words(field, link), meaning(field)));
        }
    } else if let Some(values) = described_values(schema) {
        page.push_str("\n| value | means |\n| --- | --- |\n");
        for (value, means) in values {
            push_line(page, format_args!("| `{value}` | {means} |"));
        }
    } else if schema["type"] == "object" && member(schema).is_none() {
        page.push_str("\nNo fields.\n");
    } else {
        push_line(page, format_args!("\n{}", type_words(schema, link)));
    }
}

/// Returns what a map holds, where the schema is one.
fn member(schema: &Value) -> Option<&Value> {
    let by_pattern = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
    by_pattern.or_else(|| Some(&schema["additionalProperties"]).filter(|member| member.is_object()))
}

/// Returns the values of an enumeration whose variants are described.
fn described_values(schema: &Value) -> Option<Vec<(String, String)>> {
    let variants = schema["oneOf"].as_array()?;
    let plain = |variant: &Value| match (variant["const"].as_str(), variant["enum"].as_array()) {
        (Some(value), _) => Some(vec![(value.to_owned(), meaning(variant))]),
        (None, Some(values)) => values.iter().map(|value| Some((value.as_str()?.to_owned(), String::new()))).collect(),
        (None, None) => None,
    };
    Some(variants.iter().map(plain).collect::<Option<Vec<_>>>()?.concat())
}

/// Returns what a field means, with its default and limits.
fn meaning(field: &Value) -> String {
    let mut words = one_line(field["description"].as_str().unwrap_or_default());
    if let Some(value) = field.get("default").filter(|value| !value.is_null() && !is_empty(value)) {
        words.push_str(&format!(" Default `{value}`."));
    }
    words.trim().replace('|', "\\|")
}

/// Says whether a default says nothing: no members, or only missing ones.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.values().all(Value::is_null))
        || value.as_array().is_some_and(Vec::is_empty)
}

/// Returns a type in words: `string (uuid)`, `array of Event`, `SessionKind`.
fn type_words(schema: &Value, link: &dyn Fn(&str) -> String) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return link(name);
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(options) = schema[choice].as_array() {
            let words: Vec<String> = options
                .iter()
                .filter(|option| option["type"] != "null")
                .map(|option| type_words(option, link))
                .collect();
            return words.join(" or ");
        }
    }
    if let Some(value) = schema["const"].as_str() {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        let words: Vec<String> =
            values.iter().filter(|value| !value.is_null()).map(|value| format!("`{}`", bare(value))).collect();
        return words.join(" or ");
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect(),
        _ => vec!["any JSON"],
    };
    let words: Vec<String> = names
        .into_iter()
        .map(|name| match name {
            "array" => format!("array of {}", type_words(&schema["items"], link)),
            "object" => match member(schema) {
                Some(member) => format!("map to {}", type_words(member, link)),
                None => "object".to_owned(),
            },
            "string" => match schema["format"].as_str() {
                Some(format) => format!("string ({format})"),
                None => "string".to_owned(),
            },
            other => other.to_owned(),
        })
        .collect();
    words.join(" or ")
}

fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns a doc comment as one line; links between Rust items lose their brackets.
pub(super) fn one_line(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    joined.replace("[`", "`").replace("`]", "`")
}
