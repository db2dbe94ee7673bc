//! `agent/…`

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_protocol::error::WireError;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::{AgentList, AgentRow, List};
use holdfast_stores::config::{AgentsConfig, BuiltinAgent, Launch};
use holdfast_stores::leases::{LEASE_PAGE_MAX, LeaseFilter};

use crate::methods::MethodContext;
use crate::router::RouterBuilder;

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    let context = context.clone();
    builder.on_async::<List, _, _>(move |_call, Empty {}| {
        let context = context.clone();
        async move {
            let agents = context.handles.config.agents().await.map_err(WireError::from)?;
            let mut found = list(&context.executable, &agents);
            // What a store that is down can't say is left out; status shows why.
            let running = context.handles.acp_sessions.running_by_agent().await.unwrap_or_default();
            let adapters = adapters_by_agent(&context).await;
            for row in &mut found.agents {
                row.turns_running = running.get(row.agent_id.as_str()).copied().unwrap_or(0);
                row.adapters = adapters.get(row.agent_id.as_str()).copied().unwrap_or(0);
            }
            Ok(found)
        }
    });
}

/// Counts the adapters that run, by the leases that are not over.
async fn adapters_by_agent(context: &MethodContext) -> BTreeMap<String, u64> {
    let mut adapters = BTreeMap::new();
    let mut before = None;
    loop {
        let filter = LeaseFilter { unfinished: true, ..LeaseFilter::default() };
        let Ok(page) = context.handles.leases.list(filter, before, LEASE_PAGE_MAX).await else { return adapters };
        for lease in page.leases {
            *adapters.entry(lease.agent).or_insert(0) += 1;
        }
        match page.next {
            Some(next) => before = Some(next),
            None => return adapters,
        }
    }
}

/// Lists the agents of a configuration, without what runs of them. `program` is this program, which the built-in ones are part of.
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
