//! The commands against a daemon that is played by a thread: what is asked, what is shown, how it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

mod at_rest;

use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::cli::Cli;
use crate::render::testing::{shown, surroundings};
use crate::render::{ColorChoice, Format};

/// Answers one connection by `script`, which gets method and params. Returns what was asked, `initialize` left out.
struct Daemon {
    directory: TempDir,
    asked: JoinHandle<Vec<(String, Value)>>,
}

impl Daemon {
    fn play(script: impl Fn(&str, &Value) -> Result<Value, Value> + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let listener = UnixListener::bind(directory.path().join("data/holdfast.sock")).unwrap();
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
                let method = request["method"].as_str().unwrap().to_owned();
                let outcome = if method == "initialize" {
                    Ok(initialized())
                } else {
                    let outcome = script(&method, &request["params"]);
                    asked.push((method, request["params"].clone()));
                    outcome
                };
                let answer = match outcome {
                    Ok(result) => json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }),
                    Err(error) => json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }),
                };
                stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
            asked
        });
        Self { directory, asked }
    }

    /// Types `words` and returns what is shown, and what the daemon was asked.
    fn typed(self, words: &[&str]) -> (String, Vec<(String, Value)>) {
        let text = typed(words, self.directory.path().to_owned());
        (text, self.asked.join().unwrap())
    }
}

fn typed(words: &[&str], root: PathBuf) -> String {
    let cli = Cli::try_parse_from(std::iter::once("holdfast").chain(words.iter().copied())).unwrap();
    let place = Place { root: InstallRoot::at(&root), home: None };
    let text = shown(cli.global.format(), ColorChoice::Never, surroundings(None), |renderer| {
        run(&cli.command, &place, renderer).expect("a command of this module")
    });
    text.replace(&root.display().to_string(), "ROOT")
}

fn initialized() -> Value {
    json!({
        "protocol_version": 1,
        "server": { "name": "holdfast", "version": "0.1.0" },
        "instance_id": "0199a3c2-0000-7000-8000-000000000001",
        "generation": 7,
        "capabilities": { "batches": true, "cancel": true, "acp_attach": true },
        "limits": {
            "frame_bytes": 16777216, "acp_frame_bytes": 67108864, "batch_messages": 1024, "in_flight_requests": 256,
            "subscriptions": 64, "unread_bytes": 1048576, "idle_ms": 600000,
        },
    })
}

fn surface(name: &str, state: &str, extra: Value) -> Value {
    let mut surface = json!({
        "name": name, "state": state, "generation": 7, "restarts": 0, "queue_depth": 0, "in_flight_max": 1024,
        "size_bytes": 4096,
    });
    surface.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    surface
}

fn status_report() -> Value {
    json!({
        "pid": 4711, "version": "0.1.0", "instance_id": "0199a3c2-0000-7000-8000-000000000001", "generation": 7,
        "root": "/r", "socket": "/r/data/holdfast.sock",
        "http": { "state": "listening", "url": "http://127.0.0.1:7420" },
        "started_at": "2026-11-27T16:00:00Z", "started_at_ms": 1_795_795_200_000_i64, "uptime_ms": 273_600_000,
        "surfaces": [
            surface("config", "up", json!({ "commit_p50_us": 1100 })),
            surface("sessions", "up", json!({ "queue_depth": 3, "size_bytes": 82_000_000 })),
            surface("cost", "degraded", json!({
                "reason": "the storage is full", "remedy": "free some space", "since": "2026-11-30T19:58:00.000Z",
                "since_ms": 1_796_068_680_000_i64,
            })),
            surface("leases", "down", json!({
                "reason": "leases.db was written by a newer version", "remedy": "upgrade holdfast", "size_bytes": 0,
            })),
        ],
        "counts": { "agents": 3, "turns_running": 2, "adapters": 5, "adapters_idle": 1, "connections": 1 },
        "warnings": ["config.toml line 3: unknown key `gatway`, did you mean `gateway`?"],
    })
}

fn row(id: &str, title: Option<&str>, status: &str, turn_state: &str) -> Value {
    let mut row = json!({
        "session_id": id, "agent_id": "demo", "kind": "acp", "status": status, "turn_state": turn_state,
        "turn_count": 2, "message_count": 4, "created_at": "2026-11-30T19:00:00Z", "created_at_ms": 1_796_065_200_000_i64,
        "updated_at": "2026-11-30T19:58:00Z", "updated_at_ms": 1_796_068_680_000_i64,
    });
    if let Some(title) = title {
        row["title"] = json!(title);
    }
    row
}

const A: &str = "0199a3c2-0000-7000-8000-0000000000c2";
const B: &str = "0199a3c2-0000-7000-8000-000000000171";

#[test]
fn status_shows_each_surface_and_what_to_do_about_one_that_is_down() {
    let (text, _) = Daemon::play(|_, _| Ok(status_report())).typed(&["status"]);
    assert_eq!(
        text,
        "\
holdfast 0.1.0 · pid 4711 · up 3 d 4 h · generation 7 · ROOT
surface   state     gen  restarts  queue  commit p50    size  note
config    up          7         0      0      1.1 ms  4.1 KB
sessions  up          7         0      3           –   82 MB
cost      degraded    7         0      0           –  4.1 KB  since 2 min ago: the storage is full
leases    down        7         0      –           –       –  leases.db was written by a newer version
cost → free some space
leases → upgrade holdfast
warning: config.toml line 3: unknown key `gatway`, did you mean `gateway`?
3 agents · 2 running turns · 5 adapters (1 idle) · 1 client · http://127.0.0.1:7420
--- stderr
--- exit 0
"
    );
    let (text, _) = Daemon::play(|_, _| Ok(status_report())).typed(&["status", "--format", "jsonl"]);
    let report: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(report["surfaces"][3]["state"], "down");
    assert_eq!(report["pid"], 4711);
}

#[test]
fn without_a_daemon_a_command_says_how_to_get_one() {
    let directory = tempfile::tempdir().unwrap();
    let expected = "\
--- stderr
error: no daemon answers at ROOT
hint: `holdfast run demo \"hello\"` starts one; `holdfast daemon` runs it in the foreground
--- exit 6
";
    assert_eq!(typed(&["reload"], directory.path().to_owned()), expected);
    // A socket file that a killed daemon left behind is the same case.
    std::fs::create_dir(directory.path().join("data")).unwrap();
    drop(UnixListener::bind(directory.path().join("data/holdfast.sock")).unwrap());
    assert_eq!(typed(&["reload"], directory.path().to_owned()), expected);
    let stopped = typed(&["stop"], directory.path().to_owned());
    assert_eq!(stopped, "--- stderr\nerror: no daemon runs at ROOT: there is nothing to stop\n--- exit 6\n");
}

#[test]
fn a_socket_path_over_the_kernels_limit_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("deep".repeat(30));
    std::fs::create_dir_all(root.join("data")).unwrap();
    let short = directory.path().join("s");
    let listener = UnixListener::bind(&short).unwrap();
    std::fs::rename(&short, root.join("data/holdfast.sock")).unwrap();
    assert!(root.as_os_str().len() > 107);
    let daemon = std::thread::spawn(move || drop(listener.accept().unwrap()));
    // It closes at once, which only a client that reached it can tell.
    let text = typed(&["status"], root);
    daemon.join().unwrap();
    assert!(text.contains("error: the daemon closed the connection before it answered"), "{text}");
    assert!(text.ends_with("--- exit 6\n"), "{text}");
}

#[test]
fn sessions_are_listed_with_the_word_that_matters() {
    let script = |_: &str, params: &Value| {
        // Two pages: the second is asked for with the cursor of the first.
        Ok(if params.get("cursor").is_none() {
            json!({ "sessions": [row(A, Some("hello"), "idle", "interrupted")], "next_cursor": "next" })
        } else {
            json!({ "sessions": [row(B, None, "closed", "idle")] })
        })
    };
    let (text, asked) = Daemon::play(script).typed(&["session", "list", "--agent", "demo", "--limit", "2"]);
    assert_eq!(
        text,
        "\
session    agent  kind  title  turns  updated    state
0199a3…c2  demo   acp   hello      2  2 min ago  interrupted
0199a3…71  demo   acp   –          2  2 min ago  closed
--- stderr
--- exit 0
"
    );
    assert_eq!(asked[0].1, json!({ "agent": "demo", "limit": 2 }));
    assert_eq!(asked[1].1, json!({ "agent": "demo", "limit": 1, "cursor": "next" }));
}

#[test]
fn a_session_is_found_by_its_short_id_and_by_its_key() {
    let script = |method: &str, params: &Value| {
        Ok(match method {
            "session/show" => {
                let mut detail = row(params["session_id"].as_str().unwrap(), None, "idle", "idle");
                detail["last_seq"] = json!(9);
                detail
            }
            _ if params.get("id_prefix").is_some() => {
                json!({ "sessions": [row(A, None, "idle", "idle"), row(B, None, "idle", "idle")] })
            }
            _ if params["session_key"] == "ci" => json!({ "sessions": [row(B, None, "idle", "idle")] }),
            _ => json!({ "sessions": [] }),
        })
    };
    for (typed, id) in [("0199a3…c2", A), ("0199a3..71", B), ("ci", B), (A, A)] {
        let (text, asked) = Daemon::play(script).typed(&["session", "show", typed]);
        assert!(text.starts_with(&format!("session     {id}\n")), "{typed}: {text}");
        assert_eq!(asked.last().unwrap().1, json!({ "session_id": id }), "{typed}");
    }
    let (text, _) = Daemon::play(script).typed(&["session", "show", "0199a3"]);
    assert_eq!(
        text,
        format!(
            "--- stderr\nerror: `0199a3` could be 2 sessions\n  {A}\n  {B}\nhint: give more characters of it\n--- exit 2\n"
        )
    );
    let (text, _) = Daemon::play(script).typed(&["session", "show", "nightly"]);
    assert_eq!(text, "--- stderr\nerror: no session `nightly`\nhint: holdfast session list\n--- exit 3\n");
}

#[test]
fn events_go_in_as_they_were_written_and_come_out_page_by_page() {
    let (text, asked) = Daemon::play(|_, _| Ok(json!({ "seqs": [4, 5] }))).typed(&[
        "session",
        "append",
        A,
        r#"{"kind":"message","role":"user","body":{"n":9007199254740993}} [{"kind":"thought","body":[1]}]"#,
    ]);
    assert_eq!(text, "4 5\n--- stderr\n--- exit 0\n");
    assert_eq!(asked[0].1["events"][0]["body"], json!({ "n": 9_007_199_254_740_993_u64 }));
    assert_eq!(asked[0].1["events"][1], json!({ "kind": "thought", "body": [1] }));

    let script = |_: &str, params: &Value| {
        let after = params["after_seq"].as_u64().unwrap();
        let event = |seq: u64| {
            json!({ "seq": seq, "event_id": A, "kind": "message", "role": "user", "body": { "n": seq },
                    "created_at_ms": 1_796_068_680_000_i64 })
        };
        Ok(json!({ "events": [event(after + 1)], "more": after < 2 }))
    };
    let (text, asked) = Daemon::play(script).typed(&["session", "events", A]);
    assert_eq!(
        text,
        "\
seq  created    kind     role  body
  1  2 min ago  message  user  {\"n\":1}
  2  2 min ago  message  user  {\"n\":2}
  3  2 min ago  message  user  {\"n\":3}
--- stderr
--- exit 0
"
    );
    assert_eq!(asked.len(), 3);
}

#[test]
fn events_that_are_none_are_refused_before_anything_is_sent() {
    let root = PathBuf::from("/nowhere");
    for (events, message) in [
        ("[]", "there are no events to append"),
        ("{\"kind\":\"message\"}", "event 1 can't be read: missing field `body`"),
        ("{\"kind\":\"a\",\"body\":1} nonsense", "event 2 can't be read: expected ident"),
    ] {
        let text = typed(&["session", "append", A, events], root.clone());
        assert!(text.contains(&format!("error: {message}")) && text.ends_with("--- exit 2\n"), "{text}");
    }
}

#[test]
fn rpc_prints_the_result_as_the_daemon_wrote_it() {
    let (text, asked) =
        Daemon::play(|_, params| Ok(params.clone())).typed(&["rpc", "daemon/ping", r#"{"value":9007199254740993}"#]);
    assert_eq!(text, "{\"value\":9007199254740993}\n--- stderr\n--- exit 0\n");
    assert_eq!(asked[0].0, "daemon/ping");
    let text = typed(&["rpc", "daemon/ping", "{value}"], PathBuf::from("/nowhere"));
    assert!(text.contains("error: the params are not JSON") && text.ends_with("--- exit 2\n"), "{text}");
}

#[test]
fn a_refusal_keeps_its_remedy_and_its_exit_code() {
    let refuse = |_: &str, _: &Value| {
        Err(json!({
            "code": -32000, "message": "no such thing",
            "data": { "kind": "not_found", "message": "no such thing", "remedy": "holdfast agent list", "retryable": false },
        }))
    };
    let (text, _) = Daemon::play(refuse).typed(&["session", "new", "nobody"]);
    assert_eq!(text, "--- stderr\nerror: no such thing\nhint: holdfast agent list\n--- exit 3\n");
}

#[test]
fn a_reload_that_loses_a_surface_says_so_and_fails() {
    let script = |_: &str, _: &Value| {
        Ok(json!({
            "generation": 8, "config_revision": "abc", "took_ms": 21, "turns_kept": 2, "connections_cut": 0,
            "surfaces": [
                { "name": "log", "outcome": "unchanged", "generation": 1, "took_ms": 0 },
                { "name": "config", "outcome": "restarted", "generation": 8, "took_ms": 1 },
                { "name": "leases", "outcome": "failed", "generation": 8, "took_ms": 1, "reason": "disk full",
                  "remedy": "make room" },
            ],
        }))
    };
    let (text, _) = Daemon::play(script).typed(&["reload"]);
    assert_eq!(
        text,
        "\
reloaded in 21 ms · generation 8 · 1 surfaces restarted · 2 turns kept running · 0 connections cut
leases down: disk full
  → make room
--- stderr
--- exit 1
"
    );
}

#[test]
fn agents_are_listed_with_what_starts_them() {
    let script = |_: &str, _: &Value| {
        Ok(json!({ "agents": [
            { "agent_id": "demo", "command": [], "builtin": true, "enabled": true, "adapters": 1, "turns_running": 1 },
            { "agent_id": "mine", "command": ["my-agent", "--acp"], "builtin": false, "enabled": false, "adapters": 0,
              "turns_running": 0 },
        ] }))
    };
    let (text, _) = Daemon::play(script).typed(&["agent", "list"]);
    assert_eq!(
        text,
        "\
agent  state     adapters  turns  command
demo   working          1      1  (part of this program)
mine   disabled         0      0  my-agent --acp
--- stderr
--- exit 0
"
    );
}

fn lease(id: &str, state: &str, extra: Value) -> Value {
    let mut lease = json!({
        "lease_id": id, "agent": "demo", "state": state, "root_pid": 4242,
        "started_at": "2026-11-30T19:58:00Z", "started_at_ms": 1_796_068_680_000_i64,
        "state_changed_at": "2026-11-30T19:58:00Z", "state_changed_at_ms": 1_796_068_680_000_i64,
    });
    lease.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    lease
}

#[test]
fn leases_are_listed_with_what_went_wrong() {
    let script = |_: &str, params: &Value| {
        Ok(if params.get("cursor").is_none() {
            json!({ "leases": [lease(A, "open", json!({ "session_id": B }))], "next_cursor": "next" })
        } else {
            json!({ "leases": [lease(B, "lost", json!({ "last_error": "the process was gone already" }))] })
        })
    };
    let (text, asked) = Daemon::play(script).typed(&["lease", "list", "--open", "--limit", "2"]);
    assert_eq!(
        text,
        "\
lease      agent  session     pid  started    state  note
0199a3…c2  demo   0199a3…71  4242  2 min ago  open
0199a3…71  demo   –          4242  2 min ago  lost   the process was gone already
--- stderr
--- exit 0
"
    );
    assert_eq!(asked[0].1, json!({ "unfinished": true, "limit": 2 }));
    assert_eq!(asked[1].1, json!({ "unfinished": true, "limit": 1, "cursor": "next" }));
    let (text, _) = Daemon::play(|_, _| Ok(json!({ "leases": [] }))).typed(&["lease", "show", "0199a3…c2"]);
    assert_eq!(text, "--- stderr\nerror: no lease `0199a3…c2`\nhint: holdfast lease list\n--- exit 3\n");
}

#[test]
fn the_evidence_for_a_lease_is_shown_check_by_check() {
    let verified = |verdict: &str, checks: Value| {
        json!({ "lease_id": A, "state": "open", "verdict": verdict, "reason": "it differs", "checks": checks,
                "processes": [{ "pid": 4242, "parent_pid": 1, "process_group_id": 4242, "session_id": 4242 }] })
    };
    let foreign = verified(
        "foreign",
        json!([
            { "check": "root_pid", "outcome": "passed", "found": "4242" },
            { "check": "pidfd_inode", "outcome": "failed", "recorded": "17", "found": "18" },
            { "check": "cgroup", "outcome": "not_recorded" },
            { "check": "descendants", "outcome": "not_made" },
        ]),
    );
    let answer = foreign.clone();
    let (text, _) = Daemon::play(move |_, _| Ok(answer.clone())).typed(&["lease", "verify", A]);
    assert_eq!(
        text,
        "\
check        outcome       found
root pid     passed        4242
pidfd inode  failed        18, recorded was 17
cgroup       not recorded  –
descendants  not made      –
foreign · what lives there is not this lease's and is never signalled
it differs
processes: 4242
--- stderr
--- exit 0
"
    );
    let answer = foreign.clone();
    let (text, _) = Daemon::play(move |_, _| Ok(answer.clone())).typed(&["lease", "verify", A, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(text.split("--- stderr").next().unwrap()).unwrap(), foreign);
    let unclear = verified("unclear", json!([{ "check": "boot", "outcome": "unknown", "why": "no /proc" }]));
    let (text, _) = Daemon::play(move |_, _| Ok(unclear.clone())).typed(&["lease", "verify", A]);
    assert!(text.contains("boot   unknown  no /proc\n") && text.ends_with("--- exit 4\n"), "{text}");
}

#[test]
fn a_reaping_tells_what_it_did_and_a_dry_run_what_it_would() {
    let result = |dry_run: bool| {
        json!({ "dry_run": dry_run, "closed": [A], "lost": [], "expired": 3,
                "kept": [{ "lease_id": B, "why": "could not be verified: no /proc" }] })
    };
    let (text, asked) = Daemon::play(move |_, _| Ok(result(true))).typed(&["lease", "reap", "--dry-run"]);
    assert_eq!(
        text,
        "\
lease      outcome      note
0199a3…c2  to be ended
0199a3…71  to be kept   could not be verified: no /proc
--- stderr
3 old leases would be removed
--- exit 0
"
    );
    assert_eq!(asked[0], ("lease/reap".to_owned(), json!({ "dry_run": true })));
    let (text, _) = Daemon::play(move |_, _| Ok(result(false))).typed(&["lease", "reap"]);
    assert!(text.contains("0199a3…c2  ended\n") && text.contains("3 old leases removed\n"), "{text}");
    let nothing = json!({ "dry_run": false, "closed": [], "lost": [], "kept": [], "expired": 0 });
    let (text, _) = Daemon::play(move |_, _| Ok(nothing.clone())).typed(&["lease", "reap"]);
    assert_eq!(text, "--- stderr\nno lease of an earlier run is open\n--- exit 0\n");
}

#[test]
fn completions_need_no_daemon_and_no_root() {
    let text = typed(&["completions", "bash"], PathBuf::from("/nowhere"));
    assert!(text.contains("_clap_complete_holdfast"), "{text}");
    assert_eq!(Cli::try_parse_from(["holdfast", "completions", "fish"]).unwrap().global.format(), Format::Table);
}

#[test]
fn a_root_is_made_once_and_agents_are_added_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let said = typed(&["init"], root.clone());
    assert!(said.contains("✓ made ROOT (config.toml, key)\n") && said.ends_with("--- exit 0\n"), "{said}");
    let again = typed(&["init"], root.clone());
    assert!(again.contains("error: `ROOT/config.toml` exists") && again.ends_with("--- exit 5\n"), "{again}");

    let added = typed(&["agent", "add", "mine", "--json", "--", "my-agent", "--acp"], root.clone());
    assert!(added.ends_with("--- exit 0\n"), "{added}");
    assert!(std::fs::read_to_string(root.join("config.toml")).unwrap().contains("[agents.mine]"));
    let twice = typed(&["agent", "add", "mine", "--", "other"], root);
    assert!(twice.contains("error: agent `mine` exists already (line ") && twice.ends_with("--- exit 5\n"), "{twice}");
}

#[test]
fn an_agent_needs_a_root_to_be_added_to() {
    let text = typed(&["agent", "add", "mine", "--", "my-agent"], PathBuf::from("/nowhere"));
    assert!(text.contains("hint: `holdfast init` makes a first one\n--- exit 3\n"), "{text}");
}

#[test]
fn the_python_example_of_the_book_talks_to_the_socket() {
    let daemon = Daemon::play(|_, _| Ok(status_report()));
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/guides/status.py");
    let output = std::process::Command::new("python3")
        .arg(script)
        .env("HOLDFAST_ROOT", daemon.directory.path())
        .output()
        .expect("python3 runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "config           up         generation 7\nsessions         up         generation 7\n\
         cost             degraded   generation 7\nleases           down       generation 7\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(daemon.asked.join().unwrap()[0].0, "daemon/status");
}
