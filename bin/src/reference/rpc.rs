//! The page of methods, from the same declarations as dispatch and the OpenRPC document.

use holdfast_protocol::method::openrpc_document;
use holdfast_protocol::methods;
use serde_json::Value;

use super::schema::{one_line, push_schema};
use super::{marker, push_line};

/// Returns the page.
pub(super) fn page() -> String {
    let document = openrpc_document(&methods::all(), env!("CARGO_PKG_VERSION"));
    let types = &document["components"]["schemas"];
    let mut page = format!(
        "# Methods\n\n{}\n\n\
         NDJSON JSON-RPC 2.0 over `data/holdfast.sock`; the same methods, except those of a connection, at `POST /api/rpc`. \
         `holdfast rpc rpc/discover` prints this as an OpenRPC document. A `?` marks what may be missing. Unknown fields are \
         ignored.\n",
        marker("protocol/src/methods")
    );
    let link = |name: &str| {
        if types.get(name).is_some() { format!("[{name}](#{})", name.to_lowercase()) } else { name.to_owned() }
    };
    let mut shared: Vec<&str> = types.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    for method in document["methods"].as_array().into_iter().flatten() {
        let name = method["name"].as_str().unwrap_or_default();
        let changes = if method["x-mutates"] == true { " Changes something." } else { "" };
        push_line(&mut page, format_args!("\n## `{name}`\n"));
        push_line(&mut page, format_args!("{}{changes}", one_line(method["summary"].as_str().unwrap_or_default())));
        for (title, schema) in [("Params", &method["params"][0]["schema"]), ("Result", &method["result"]["schema"])] {
            push_line(&mut page, format_args!("\n**{title}**"));
            push_schema(&mut page, &resolved(schema, types, &mut shared), &link);
        }
    }
    page.push_str("\n## Types\n");
    for name in shared {
        push_line(&mut page, format_args!("\n### {name}"));
        push_schema(&mut page, &types[name], &link);
    }
    page
}

/// Follows a reference, so that params and results are described with their method and not once more among the types.
fn resolved<'a>(schema: &'a Value, types: &'a Value, shared: &mut Vec<&'a str>) -> Value {
    match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        Some(name) => {
            shared.retain(|other| *other != name);
            // "Params of …" and "Result of …" would only say the heading again.
            let mut schema = types[name].clone();
            if let Some(fields) = schema.as_object_mut() {
                fields.remove("description");
            }
            schema
        }
        None => schema.clone(),
    }
}
