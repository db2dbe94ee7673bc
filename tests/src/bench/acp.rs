//! An agent through the daemon, stored on the way, against the same agent alone.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::report::Row;
use super::{Options, median};
use crate::acp_client::AcpClient;
use crate::daemon::{DaemonOptions, TestDaemon};
use crate::fake_agent::{Script, Step, chunk};

/// Chunks of the burst.
const BURST: usize = 10_000;

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let directory = crate::daemon::short_directory();
    let script = directory.path().join("agent.json");
    let one = vec![Step::Update(chunk("hello"))];
    let burst = (0..BURST).map(|number| Step::Update(chunk(&format!("chunk {number}")))).collect();
    let prompts = [("one".to_owned(), one), ("burst".to_owned(), burst)].into();
    Script { prompts_by_text: prompts, ..Script::default() }.write_to(&script).unwrap();

    let mut daemon = TestDaemon::prepare(DaemonOptions::default());
    holdfast_stores::config::init(&daemon.root, holdfast_stores::config::InitMode::New).unwrap();
    let config = format!(
        "schema_version = 1\n[agents.fake]\ncommand = [{:?}, {:?}]\n",
        fake_agent().display().to_string(),
        script.display().to_string()
    );
    std::fs::write(daemon.root.config_file(), config).unwrap();
    daemon.boot();

    let mut direct_command = Command::new(fake_agent());
    direct_command.arg(&script);
    let mut ours_command = daemon.program();
    ours_command.args(["acp", "fake"]);
    let mut direct = Agent::open(direct_command, directory.path());
    let mut ours = Agent::open(ours_command, directory.path());
    let (mut direct_one, mut ours_one) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds * 20 {
        direct_one.push(direct.turn_ms("one"));
        ours_one.push(ours.turn_ms("one"));
    }
    let (mut direct_burst, mut ours_burst) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        direct_burst.push(direct.turn_ms("burst"));
        ours_burst.push(ours.turn_ms("burst"));
    }
    let added_ms = median(ours_one) - median(direct_one);
    // A turn of one update commits three times one after the other: the prompt, the update, the end.
    vec![
        Row::bounded("ACP turn of one update: added by the daemon, p50", "ms", added_ms, 4.0),
        Row::at_most("ACP burst of 10 000 chunks", "ms", median(ours_burst), median(direct_burst), 1.5),
    ]
}

fn fake_agent() -> std::path::PathBuf {
    crate::daemon::executable().with_file_name("fake-agent")
}

/// A client with one session.
struct Agent {
    client: AcpClient,
    session_id: Value,
}

impl Agent {
    fn open(command: Command, cwd: &Path) -> Self {
        let mut client = AcpClient::start(command).unwrap();
        client.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} })).unwrap();
        let made = client.call("session/new", &json!({ "cwd": cwd, "mcpServers": [] })).unwrap();
        let session_id = made["result"]["sessionId"].clone();
        assert!(session_id.is_string(), "{made}");
        Self { client, session_id }
    }

    fn turn_ms(&mut self, text: &str) -> f64 {
        let params = json!({ "sessionId": self.session_id, "prompt": [{ "type": "text", "text": text }] });
        self.client.received.clear();
        let began = Instant::now();
        self.client.request("session/prompt", &params).unwrap();
        let answer = self.client.wait_for_line("the end of the turn", |line| line.contains("stopReason")).unwrap();
        assert!(answer.contains("end_turn"), "{answer}");
        began.elapsed().as_secs_f64() * 1e3
    }
}
