//! The page of the configuration, from the sections that the surfaces own.

use holdfast_actors::tree::config_registry;

use super::schema::push_schema;
use super::{marker, push_line};

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = format!(
        "# Configuration\n\n{}\n\n\
         One file, `<root>/config.toml`. Order: the file, then environment overrides (`HOLDFAST_CONFIG__section__key=value`, two \
         underscores for each dot), then validation of the whole. An unknown key is kept and warned about with the nearest \
         known one. Every key may be missing. A change counts after `holdfast reload`.\n",
        marker("the sections that the surfaces own")
    );
    // Names are the sections' own and differ; a clash would stop the daemon's start and the tests of the tree.
    let Ok(registry) = config_registry([]) else { return page };
    let schema = registry.json_schema();
    let types = &schema["$defs"];
    let link = |name: &str| {
        if types.get(name).is_some() { format!("[{name}](#{})", name.to_lowercase()) } else { name.to_owned() }
    };
    let mut shared: Vec<&str> = types.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    for (name, section) in schema["properties"].as_object().into_iter().flatten() {
        let is_table = section.get("$ref").is_some() || section["type"] == "object";
        let heading = if is_table { format!("[{name}]") } else { name.clone() };
        push_line(&mut page, format_args!("\n## `{heading}`"));
        let mut section = section;
        if let Some(target) = section["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            shared.retain(|other| *other != target);
            section = &types[target];
        }
        push_schema(&mut page, section, &link);
    }
    page.push_str("\n## Types\n");
    for name in shared {
        push_line(&mut page, format_args!("\n### {name}"));
        push_schema(&mut page, &types[name], &link);
    }
    page
}
