//! `holdfast agent list`.

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::{AgentRow, List};

use super::{Place, connect};
use crate::render::{Cell, Column, Exit, Failure, Listing, Renderer, Tone};

const COLUMNS: &[Column] = &[
    Column::whole("agent"),
    Column::whole("state"),
    Column::number("adapters"),
    Column::number("turns"),
    Column::text("command"),
];

pub(super) fn list(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let found = connect(place)?.call::<List>(&Empty {})?;
    show(&found.agents, renderer)?;
    Ok(Exit::Ok)
}

pub(super) fn show(agents: &[AgentRow], renderer: &mut Renderer) -> Result<(), Failure> {
    let mut listing = Listing::new(COLUMNS, "no agents in config.toml yet; `holdfast agent detect` looks for some");
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
