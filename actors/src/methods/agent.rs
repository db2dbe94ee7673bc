//! `agent/…`

use std::path::Path;

use holdfast_protocol::error::WireError;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::{AgentList, AgentRow, List};
use holdfast_stores::config::{AgentsConfig, BuiltinAgent, Launch};

use crate::methods::MethodContext;
use crate::router::RouterBuilder;

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    let context = context.clone();
    builder.on_async::<List, _, _>(move |_call, Empty {}| {
        let context = context.clone();
        async move {
            let agents = context.handles.config.agents().await.map_err(WireError::from)?;
            Ok(list(&context.executable, &agents))
        }
    });
}

/// Lists the agents of a configuration. `program` is this program, which the built-in ones are part of.
pub(crate) fn list(program: &Path, agents: &AgentsConfig) -> AgentList {
    let program = program.display().to_string();
    let row = |(alias, agent): (&holdfast_protocol::ids::AgentAlias, &holdfast_stores::config::AgentConfig)| {
        let (command, builtin) = match agent.launch() {
            Some(Launch::Builtin(BuiltinAgent::Demo)) => (vec![program.clone(), "demo-agent".to_owned()], true),
            Some(Launch::Command(words)) => (words.to_vec(), false),
            None => (Vec::new(), false),
        };
        let enabled = !command.is_empty();
        AgentRow { agent_id: alias.clone(), command, builtin, enabled, adapters: 0, turns_running: 0 }
    };
    AgentList { agents: agents.0.iter().map(row).collect() }
}
