//! `holdfast agent …`.

use std::ffi::OsStr;
use std::fs;
use std::io;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::{AgentRow, List};
use holdfast_stores::config::{Detection, EditError, NewAgent, Revision, add_agent, detect as find_agents, save};
use serde_json::json;

use super::{Asked, Place, answers};
use crate::cli::AgentAddArguments;
use crate::render::{Cell, Column, Exit, Failure, Listing, Renderer, Tone};

const LIST_COLUMNS: &[Column] = &[
    Column::whole("agent"),
    Column::whole("state"),
    Column::number("adapters"),
    Column::number("turns"),
    Column::text("command"),
];

const DETECT_COLUMNS: &[Column] = &[
    Column::whole("agent"),
    Column::whole("name"),
    Column::whole("state"),
    Column::text("command"),
    Column::note("next"),
];

pub(super) fn list(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let found = answers(place, renderer)?.call::<List>(&Empty {})?;
    show(&found.agents, renderer)?;
    Ok(Exit::Ok)
}

fn show(agents: &[AgentRow], renderer: &mut Renderer) -> Result<(), Failure> {
    let mut listing =
        Listing::new(LIST_COLUMNS, "no agents in config.toml yet; `holdfast agent detect` looks for some");
    for agent in agents {
        let (state, tone) = match (agent.enabled, agent.turns_running) {
            (false, _) => ("disabled", Tone::Dim),
            (true, 0) => ("ready", Tone::Good),
            (true, _) => ("working", Tone::Good),
        };
        let command = if agent.builtin { "(part of this program)".to_owned() } else { agent.command.join(" ") };
        let cells = vec![
            Cell::Text(agent.agent_id.to_string()),
            Cell::State(state.to_owned(), tone),
            Cell::Count(agent.adapters),
            Cell::Count(agent.turns_running),
            Cell::Text(command),
        ];
        listing.push(cells, agent)?;
    }
    renderer.listing(&listing)
}

pub(super) fn detect(write: bool, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let found = look(&search_path);
    let file = place.root.config_file();
    let old = match fs::read(&file) {
        Ok(bytes) => bytes,
        // Looking needs no root; adding does.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !write => Vec::new(),
        Err(error) => return Err(unreadable(place, &error)),
    };
    let mut text = old.clone();
    let mut added = Vec::new();
    let mut listing = Listing::new(DETECT_COLUMNS, "no known agent is on PATH");
    for agent in &found.agents {
        let new = agent.to_new_agent().map_err(|error| Failure::caused(Exit::Failed, &error))?;
        let state = match add_agent(&file, &text, &new) {
            Ok(longer) => {
                text = longer;
                added.push(new.alias.to_string());
                if write { "added" } else { "found" }
            }
            Err(EditError::Exists { .. }) => "configured",
            Err(error) => return Err(not_added(&error)),
        };
        let command = new.command.join(" ");
        let record = json!({
            "agent_id": new.alias, "name": agent.known.title, "state": state, "command": new.command, "path": agent.path,
        });
        listing.push(cells(agent.known.alias, agent.known.title, state, Some(command), None), &record)?;
    }
    for missing in &found.missing_adapters {
        let (alias, title) = (missing.known.alias, missing.known.title);
        let record = json!({ "agent_id": alias, "name": title, "state": "needs_adapter", "install": missing.install });
        listing.push(cells(alias, title, "needs adapter", None, Some(missing.install)), &record)?;
    }
    if write && !added.is_empty() {
        replace_config(place, &old, &text, renderer)?;
    }
    renderer.listing(&listing)?;
    if !renderer.is_for_programs() && !added.is_empty() {
        let next = if write { "next: holdfast reload" } else { "next: holdfast agent detect --write" };
        renderer.note(next);
    }
    Ok(Exit::Ok)
}

/// Looks for agents in the directories of `search_path`.
fn look(search_path: &OsStr) -> Detection {
    find_agents(search_path, rustix::process::geteuid().is_root())
}

fn cells(alias: &str, title: &str, state: &str, command: Option<String>, next: Option<&str>) -> Vec<Cell> {
    let tone = match state {
        "added" | "found" => Tone::Good,
        "configured" => Tone::Dim,
        _ => Tone::Warning,
    };
    vec![
        Cell::Text(alias.to_owned()),
        Cell::Text(title.to_owned()),
        Cell::State(state.to_owned(), tone),
        command.map_or(Cell::Missing, Cell::Text),
        next.map_or(Cell::Missing, |next| Cell::Text(next.to_owned())),
    ]
}

pub(super) fn add(arguments: &AgentAddArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let alias = arguments.alias.parse().map_err(|error| Failure::caused(Exit::Usage, &error))?;
    let agent = NewAgent { alias, command: arguments.command.clone(), env: Default::default() };
    let file = place.root.config_file();
    let old = fs::read(&file).map_err(|error| unreadable(place, &error))?;
    let text = add_agent(&file, &old, &agent).map_err(|error| not_added(&error))?;
    replace_config(place, &old, &text, renderer)?;
    if renderer.is_for_programs() {
        renderer.value(&json!({ "agent_id": agent.alias, "command": agent.command }))?;
    } else {
        renderer.done(&format!("{} added to config.toml", agent.alias));
        renderer.note("next: holdfast reload");
    }
    Ok(Exit::Ok)
}

/// Saves `text`, unless the file is no longer `old`.
fn replace_config(place: &Place, old: &[u8], text: &[u8], renderer: &mut Renderer) -> Result<(), Failure> {
    let saved = save(&place.root, Revision::of(old), text)
        .map_err(|error| Failure::caused(Exit::of_kind(error.kind()), &error).hint("try again"))?;
    if let Some(warning) = saved.warning {
        renderer.note(&format!("warning: {warning}"));
    }
    Ok(())
}

fn unreadable(place: &Place, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, format!("could not read {}: {error}", place.root.config_file().display()))
        .hint("`holdfast init` makes a first one")
}

fn not_added(error: &EditError) -> Failure {
    match error {
        EditError::Config(cause) => Failure::caused(Exit::of_kind(cause.kind()), cause).hint(cause.remedy()),
        EditError::Exists { .. } => {
            Failure::caused(Exit::Conflict, error).hint("choose another name, or edit config.toml")
        }
        EditError::NoRoom { .. } => {
            Failure::caused(Exit::Failed, error).hint("write each agent as a table of its own: [agents.NAME]")
        }
    }
}
