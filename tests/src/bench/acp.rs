//! An agent through the daemon, stored on the way, against the same agent alone. The client is attached to the daemon's
//! socket, as an editor's bridge is.

use std::ops::DerefMut;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::raw::{RawStore, body};
use super::report::Row;
use super::{Options, median, status_field};
use crate::acp_client::{AcpClient, Conversation};
use crate::acp_socket::AcpSocket;
use crate::daemon::{DaemonOptions, TestDaemon};
use crate::fake_agent::{Script, Step, chunk, monotonic_ns};

/// Chunks of the burst.
const BURST: usize = 10_000;
/// Updates of a turn whose way is measured, and the pause between two.
const STAMPED: usize = 100;
const PAUSE_MS: u64 = 5;

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let directory = crate::daemon::short_directory();
    let script = directory.path().join("agent.json");
    let one = vec![Step::Update(chunk("hello"))];
    let burst = (0..BURST).map(|number| Step::Update(chunk(&format!("chunk {number}")))).collect();
    let stamped = (0..STAMPED).flat_map(|_| [Step::StampedUpdate, Step::DelayMs(PAUSE_MS)]).collect();
    let prompts = [("one".to_owned(), one), ("burst".to_owned(), burst), ("stamped".to_owned(), stamped)].into();
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
    let mut bridge_command = daemon.program();
    bridge_command.args(["acp", "fake"]);
    let mut direct = Agent::open(AcpClient::start(direct_command).unwrap(), directory.path());
    let mut bridged = Agent::open(AcpClient::start(bridge_command).unwrap(), directory.path());
    let bridge_mb = status_field(bridged.client.pid(), "VmRSS:") / 1024.0;
    let mut ours = Agent::open(AcpSocket::connect(&daemon.root.socket(), "fake").unwrap(), directory.path());
    let mut raw = RawStore::open(&directory.path().join("raw.db"));
    let (mut direct_one, mut ours_one, mut raw_one) = (Vec::new(), Vec::new(), Vec::new());
    let (mut direct_way, mut ours_way, mut bridged_way) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        for _ in 0..20 {
            direct_one.push(direct.turn_ms("one"));
            ours_one.push(ours.turn_ms("one"));
        }
        direct_way.extend(direct.ways_ms());
        ours_way.extend(ours.ways_ms());
        bridged_way.extend(bridged.ways_ms());
        raw_one.extend((0..STAMPED).map(|_| raw.append(1, &body()) * 1e3));
    }
    let (mut direct_burst, mut ours_burst) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        direct_burst.push(direct.turn_ms("burst"));
        ours_burst.push(ours.turn_ms("burst"));
    }
    let direct_way = median(direct_way);
    let most_ms = median(raw_one) + 1.0;
    let way = "one ACP update, agent to client: added by the daemon, p50";
    // A turn of one update commits three times one after the other: the prompt, the update, the end.
    let turn_ms = median(ours_one) - median(direct_one);
    vec![
        Row::bounded(way, "ms", median(ours_way) - direct_way, most_ms),
        Row::bounded(format!("{way}, and its bridge"), "ms", median(bridged_way) - direct_way, most_ms),
        Row::bounded("ACP turn of one update: added by the daemon, p50", "ms", turn_ms, 3.0 * most_ms),
        Row::at_most("ACP burst of 10 000 chunks", "ms", median(ours_burst), median(direct_burst), 1.5),
        Row::bounded("idle bridge: memory", "MB", bridge_mb, 12.0),
    ]
}

fn fake_agent() -> std::path::PathBuf {
    crate::daemon::executable().with_file_name("fake-agent")
}

/// A client with one session.
struct Agent<C> {
    client: C,
    session_id: Value,
}

impl<C: DerefMut<Target = Conversation>> Agent<C> {
    fn open(mut client: C, cwd: &Path) -> Self {
        client.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} })).unwrap();
        let made = client.call("session/new", &json!({ "cwd": cwd, "mcpServers": [] })).unwrap();
        let session_id = made["result"]["sessionId"].clone();
        assert!(session_id.is_string(), "{made}");
        Self { client, session_id }
    }

    fn prompt(&mut self, text: &str) {
        let params = json!({ "sessionId": self.session_id, "prompt": [{ "type": "text", "text": text }] });
        self.client.received.clear();
        self.client.request("session/prompt", &params).unwrap();
    }

    fn turn_ms(&mut self, text: &str) -> f64 {
        let began = Instant::now();
        self.prompt(text);
        let answer = self.client.wait_for_line("the end of the turn", |line| line.contains("stopReason")).unwrap();
        assert!(answer.contains("end_turn"), "{answer}");
        began.elapsed().as_secs_f64() * 1e3
    }

    /// Prompts for updates that carry the time they were sent; returns how long each was on its way.
    fn ways_ms(&mut self) -> Vec<f64> {
        self.prompt("stamped");
        let mut ways = Vec::with_capacity(STAMPED);
        loop {
            let line = self.client.next_line().unwrap();
            let arrived = monotonic_ns();
            if line.contains("stopReason") {
                assert_eq!(ways.len(), STAMPED);
                return ways;
            }
            let frame: Value = serde_json::from_str(&line).unwrap();
            let sent = frame["params"]["update"]["content"]["text"].as_str().and_then(|text| text.parse::<u64>().ok());
            ways.extend(sent.map(|sent| (arrived - sent) as f64 / 1e6));
        }
    }
}
