//! The Log with real files and events from real spans: routing, bounds, redaction, subscriptions, ends.

use std::path::Path;
use std::time::Duration;

use holdfast_stores::log::{LogFilter, LogLevel, LogLine, LogOrder, LogPage, LogQuery};
use tracing::Instrument;

use super::*;
use crate::address::Address;
use crate::ports::Ports;
use crate::supervisor::{Intensity, Limits, Stage, Strategy, Supervisor, SupervisorSpec, child};

const LIMIT: Duration = Duration::from_secs(20);

struct Rig {
    supervisor: Supervisor,
    log: Address<LogMessage>,
    router: LogRouter,
    tree: TreeId,
    // Last, so that the files go after the actor.
    home: tempfile::TempDir,
}

impl Rig {
    async fn start(config: LogsConfig) -> Self {
        let home = tempfile::tempdir().unwrap();
        Self::start_in(home, config).await
    }

    async fn start_in(home: tempfile::TempDir, config: LogsConfig) -> Self {
        // The subscriber is one a process, as in the daemon: tests that run beside this one have trees of their own.
        let router = LogRouter::install(None);
        let tree = router.new_tree();
        let surface = LogSurface::new(home.path().join("state"), router.clone(), tree, config);
        let (one, log) = child("log", Limits::default(), &Ports::system(), surface);
        let stages: Vec<Stage> = vec![vec![Box::new(one)]];
        let spec =
            SupervisorSpec { name: "test", strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, _) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, log, router, tree, home }
    }

    async fn flush(&self) {
        self.log.call(LIMIT, |reply| LogMessage::Flush { reply }).await.unwrap();
    }

    async fn page(&self, filter: LogFilter) -> LogPage {
        let query = LogQuery { filter, order: LogOrder::OldestFirst, limit: 100_000, after: None };
        self.log.call(LIMIT, |reply| LogMessage::Query { query, reply }).await.unwrap().unwrap()
    }

    async fn lines(&self) -> Vec<LogLine> {
        self.flush().await;
        self.page(LogFilter::default()).await.lines
    }

    async fn status(&self) -> LogStatus {
        self.log.call(LIMIT, |reply| LogMessage::Status { reply }).await.unwrap()
    }

    fn files(&self) -> String {
        files(&self.home.path().join("state"))
    }
}

fn files(directory: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        all.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    all
}

#[tokio::test]
async fn two_trees_in_one_process_share_no_line() {
    let (first, second) = (Rig::start(LogsConfig::default()).await, Rig::start(LogsConfig::default()).await);
    first.tree.span().in_scope(|| tracing::info!(attempt = 1, "only in the first"));
    let work = async {
        tracing::info_span!("surface", surface = "cron", generation = 4_u64)
            .in_scope(|| tracing::warn!(session_id = "s1", "only in the second"));
    };
    tokio::spawn(work.instrument(second.tree.span())).await.unwrap();
    tracing::error!("in none");
    let (first_lines, second_lines) = (first.lines().await, second.lines().await);
    assert_eq!(first_lines.len(), 1);
    assert_eq!(first_lines[0].message, "only in the first");
    assert_eq!(first_lines[0].fields["attempt"], 1);
    assert_eq!(second_lines.len(), 1);
    assert_eq!(second_lines[0].level, LogLevel::Warn);
    let facts = &second_lines[0].facts;
    assert_eq!(facts.surface.as_deref(), Some("cron"));
    assert_eq!(facts.session.as_deref(), Some("s1"));
    assert_eq!(facts.generation, Some(4));
}

#[tokio::test]
async fn secrets_and_whole_bodies_stay_out_of_the_files() {
    let rig = Rig::start(LogsConfig::default()).await;
    let body = "Once upon a midnight dreary. ".repeat(360);
    rig.tree.span().in_scope(|| {
        tracing::warn!(command = r#"export DEMO_API_KEY="sk-live-AAAA1111BBBB2222"; ls"#, "tool call denied");
        tracing::warn!("rpc failed: {}", r#"{"params":{"authorization":"Bearer zc_9f8e7d6c5b4a3210"}}"#);
        tracing::info!(code = "K7QX2M5P", header = "Bearer zc_9f8e7d6c5b4a3210", "pairing");
        tracing::info!(text = body, "chat message");
        tracing::info!("chat message {body}");
    });
    assert_eq!(rig.lines().await.len(), 5);
    let files = rig.files();
    for secret in ["sk-live-AAAA", "zc_9f8e", "K7QX2M5P"] {
        assert!(!files.contains(secret), "{secret} in {files}");
    }
    assert!(!files.contains(&body) && files.len() < 5_000, "{} bytes", files.len());
}

#[tokio::test]
async fn a_hundred_thousand_failures_are_few_lines_with_their_count() {
    let rig = Rig::start(LogsConfig::default()).await;
    for chunk in 0..100 {
        rig.tree.span().in_scope(|| {
            for attempt in 0..1000 {
                tracing::warn!(attempt, "reconnect {} failed: connection refused", chunk * 1000 + attempt);
            }
        });
        rig.flush().await;
    }
    let status = rig.status().await;
    assert_eq!(status.dropped, 0);
    rig.supervisor.stop().await;
    let files = rig.files();
    let lines: Vec<LogLine> = files.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() <= 1000, "{}", lines.len());
    let repeated: u64 = lines.iter().filter_map(|line| line.repeated).sum();
    let written = lines.iter().filter(|line| line.repeated.is_none()).count() as u64;
    assert_eq!(written + repeated, 100_000);
}

#[tokio::test]
async fn what_does_not_fit_is_counted_and_the_count_is_logged() {
    let rig = Rig::start(LogsConfig::default()).await;
    // The test's runtime has one thread: the Log cannot read while this loop runs.
    rig.tree.span().in_scope(|| (0..5_000).for_each(|index| tracing::info!(index, "flood")));
    let lines = rig.lines().await;
    let told: Vec<_> = lines.iter().filter(|line| line.fields.contains_key("dropped")).collect();
    assert_eq!(told.len(), 1);
    let dropped = told[0].fields["dropped"].as_u64().unwrap();
    let status = rig.status().await;
    assert_eq!(status.dropped, dropped);
    assert!(dropped >= 5_000 - 4_096);
    rig.supervisor.stop().await;
    let all: Vec<LogLine> = rig.files().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let floods = all.iter().filter(|line| line.message == "flood").map(|line| line.repeated.unwrap_or(1)).sum::<u64>();
    assert_eq!(floods + dropped, 5_000);
}

#[tokio::test]
async fn levels_change_while_it_runs() {
    let rig = Rig::start(LogsConfig { level: "warn".to_owned(), ..LogsConfig::default() }).await;
    let emit = |text: &str| {
        rig.tree.span().in_scope(|| {
            tracing::debug!("debug {text}");
            tracing::info!("info {text}");
            tracing::error!("error {text}");
        });
    };
    emit("one");
    let levels: Levels = "warn,holdfast_actors::log=debug".parse().unwrap();
    rig.log.call(LIMIT, |reply| LogMessage::SetLevels { levels, reply }).await.unwrap();
    emit("two");
    rig.router.set_levels(rig.tree, "off".parse().unwrap());
    emit("three");
    let messages: Vec<_> = rig.lines().await.into_iter().map(|line| line.message).collect();
    assert_eq!(messages, ["error one", "debug two", "info two", "error two"]);
}

#[tokio::test]
async fn subscribers_get_lines_also_without_files_and_a_slow_one_is_told() {
    let rig = Rig::start(LogsConfig { mode: LogsMode::None, ..LogsConfig::default() }).await;
    let subscribe = |capacity| {
        let filter = LogFilter { text: Some("NUMBER".to_owned()), ..LogFilter::default() };
        rig.log.call(LIMIT, move |reply| LogMessage::Subscribe { filter, capacity, reply })
    };
    let (mut quick, mut slow) = (subscribe(100).await.unwrap(), subscribe(2).await.unwrap());
    let emit = |index: u64| rig.tree.span().in_scope(|| tracing::info!("number {index}"));
    (0..5).for_each(emit);
    rig.tree.span().in_scope(|| tracing::info!("something else"));
    rig.flush().await;
    let seqs = |items: &mut tokio::sync::mpsc::Receiver<LogItem>| {
        let mut seen = Vec::new();
        while let Ok(item) = items.try_recv() {
            seen.push(match item {
                LogItem::Line(line) => (true, line.seq),
                LogItem::Lagged { from_seq } => (false, from_seq),
            });
        }
        seen
    };
    assert_eq!(seqs(&mut quick), (1..=5).map(|seq| (true, seq)).collect::<Vec<_>>());
    assert_eq!(seqs(&mut slow), [(true, 1), (true, 2)]);
    emit(5);
    rig.flush().await;
    assert_eq!(seqs(&mut slow), [(false, 3), (true, 7)]);
    drop(slow);
    emit(6);
    rig.flush().await;
    assert_eq!(rig.status().await.subscribers, 1);
    assert!(!rig.home.path().join("state").exists());
}

#[tokio::test]
async fn an_ending_log_writes_what_waits_and_a_new_one_goes_on() {
    let rig = Rig::start(LogsConfig::default()).await;
    rig.tree.span().in_scope(|| tracing::info!("last words"));
    rig.supervisor.reload(2).await.unwrap();
    rig.tree.span().in_scope(|| tracing::info!("first words"));
    let lines = rig.lines().await;
    let texts: Vec<_> = lines.iter().map(|line| (line.seq, line.message.as_str())).collect();
    assert_eq!(texts, [(1, "last words"), (2, "first words")]);
}

#[tokio::test]
async fn a_changed_section_applies_and_a_wrong_one_leaves_the_old() {
    let rig = Rig::start(LogsConfig::default()).await;
    let configure = |config| rig.log.call(LIMIT, move |reply| LogMessage::Configure { config, reply });
    let wrong = configure(LogsConfig { level: "loud".to_owned(), ..LogsConfig::default() }).await.unwrap();
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::ConfigInvalid);
    assert_eq!(rig.status().await.levels, "info");
    let off = LogsConfig { mode: LogsMode::None, level: "debug".to_owned(), ..LogsConfig::default() };
    configure(off).await.unwrap().unwrap();
    rig.tree.span().in_scope(|| tracing::info!("not stored"));
    rig.flush().await;
    configure(LogsConfig::default()).await.unwrap().unwrap();
    rig.tree.span().in_scope(|| tracing::info!("stored"));
    let texts: Vec<_> = rig.lines().await.into_iter().map(|line| line.message).collect();
    assert_eq!(texts, ["stored"]);
}

#[tokio::test]
async fn a_full_or_forbidden_disk_is_told_and_logging_goes_on() {
    let rig = Rig::start(LogsConfig::default()).await;
    rig.tree.span().in_scope(|| tracing::info!("before"));
    rig.flush().await;
    // The current segment replaced by a directory: neither written to nor opened again.
    let current = rig.home.path().join("state/runtime-trace.jsonl");
    std::fs::remove_file(&current).unwrap();
    std::fs::create_dir(&current).unwrap();
    rig.tree.span().in_scope(|| tracing::info!("lost"));
    rig.flush().await;
    let status = rig.status().await;
    assert_eq!(status.lost, 1);
    assert!(status.failing.unwrap().contains("runtime-trace.jsonl"));
    std::fs::remove_dir(&current).unwrap();
    rig.tree.span().in_scope(|| tracing::info!("after"));
    rig.flush().await;
    assert_eq!(rig.status().await.failing, None);
    let lines = rig.lines().await;
    assert!(lines.iter().any(|line| line.message == "after"));
    assert!(lines.iter().any(|line| line.fields.get("lost") == Some(&1.into())));
}

#[tokio::test]
async fn log_query_answers_over_the_router() {
    let rig = Rig::start(LogsConfig::default()).await;
    rig.tree.span().in_scope(|| (0..3).for_each(|index| tracing::info!(index, "asked for")));
    rig.flush().await;
    let mut builder = crate::router::RouterBuilder::new();
    register(&mut builder, rig.log.clone());
    let router = builder.build("1");
    let origin = crate::router::Origin::Socket { uid: 0, pid: None };
    let caller = crate::router::Caller { origin, lineage: None, client: None };
    let frame = r#"{"jsonrpc":"2.0","id":1,"method":"log/query","params":{"limit":2,"text":"ASKED"}}"#;
    let answer = router.answer_frame(&std::sync::Arc::new(caller), frame.as_bytes()).await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    let lines = answer["result"]["lines"].as_array().unwrap();
    assert_eq!(lines.iter().map(|line| line["fields"]["index"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(answer["result"]["next"], "1-2");
}
