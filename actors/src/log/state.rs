//! What one incarnation of the Log holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_stores::log::{
    Folded, LogError, LogEvent, LogFilter, LogLevel, LogLine, LogPage, LogQuery, LogReader, LogStore, RepeatLimits,
    Repeats, SpanFacts,
};
use tokio::sync::mpsc;

use super::config::{LogsConfig, LogsMode};
use super::error::LogsError;
use super::levels::Levels;
use super::message::{LogItem, LogMessage, LogStatus};
use super::route::EventQueue;
use crate::reply::Reply;
use crate::surface::{Context, Fault};

/// Events turned into lines and written together.
const BATCH_EVENTS_MAX: usize = 512;
/// Items that may wait for a subscriber, whatever it asks for.
const SUBSCRIBER_ITEMS_MAX: usize = 4_096;

/// What one incarnation of the Log holds.
pub struct LogState {
    pub(super) levels: Levels,
    config: LogsConfig,
    reader: LogReader,
    queue: EventQueue,
    /// `None` only while a batch is away being written.
    writer: Option<Writer>,
    subscribers: Vec<Subscriber>,
    lines: u64,
    folded: u64,
    lost: u64,
    /// How many dropped events the log tells of already.
    dropped_told: u64,
    /// How many lost lines the log tells of already.
    lost_told: u64,
    failing: Option<String>,
}

/// What goes to a blocking thread and comes back.
struct Writer {
    /// `None` in mode `none`.
    store: Option<LogStore>,
    repeats: Repeats,
    next_seq: u64,
}

struct Subscriber {
    filter: LogFilter,
    items: mpsc::Sender<LogItem>,
    /// The first line it misses.
    lagging_from: Option<u64>,
}

/// What became of a batch.
struct Written {
    lines: Vec<LogLine>,
    folded: u64,
    outcome: Result<u64, LogError>,
}

impl LogState {
    /// Opens the log in `directory`, which is made when it is not there.
    pub(super) async fn open(
        directory: PathBuf,
        config: LogsConfig,
        levels: Levels,
        queue: EventQueue,
    ) -> Result<Self, LogError> {
        let reader = LogReader::new(&directory);
        let store = open_store(&directory, &config).await?;
        let next_seq = store.as_ref().map_or(1, LogStore::next_seq);
        let dropped_told = queue.dropped.load(Ordering::Relaxed);
        Ok(Self {
            levels,
            config,
            reader,
            queue,
            writer: Some(Writer { store, repeats: Repeats::new(RepeatLimits::default()), next_seq }),
            subscribers: Vec::new(),
            lines: 0,
            folded: 0,
            lost: 0,
            dropped_told,
            lost_told: 0,
            failing: None,
        })
    }

    /// Applies a changed section. When it can't be, the old one stays.
    pub(super) async fn configure(&mut self, directory: &Path, config: LogsConfig) -> Result<(), LogError> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let applied = match (&mut writer.store, config.mode) {
            (Some(store), LogsMode::Rolling) => store.set_limits(config.limits()),
            (store, _) => match open_store(directory, &config).await {
                Ok(opened) => {
                    writer.next_seq = opened.as_ref().map_or(writer.next_seq, LogStore::next_seq);
                    *store = opened;
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        self.writer = Some(writer);
        applied?;
        self.config = config;
        Ok(())
    }

    /// Reads on a blocking thread: the mailbox goes on meanwhile.
    pub(super) fn query(&self, query: LogQuery, reply: Reply<Result<LogPage, LogsError>>) {
        let reader = self.reader.clone();
        tokio::spawn(async move {
            let read = tokio::task::spawn_blocking(move || reader.query(&query)).await;
            reply.send(match read {
                Ok(page) => page.map_err(LogsError::from),
                Err(died) => Err(LogsError::Reader { reason: died.to_string() }),
            });
        });
    }

    pub(super) fn subscribe(&mut self, filter: LogFilter, capacity: usize) -> mpsc::Receiver<LogItem> {
        let (items, receiver) = mpsc::channel(capacity.clamp(1, SUBSCRIBER_ITEMS_MAX));
        self.subscribers.push(Subscriber { filter: filter.lowercased(), items, lagging_from: None });
        receiver
    }

    pub(super) fn status(&self) -> LogStatus {
        let store = self.writer.as_ref().and_then(|writer| writer.store.as_ref());
        LogStatus {
            mode: self.config.mode.name(),
            levels: self.levels.to_string(),
            lines: self.lines,
            folded: self.folded,
            dropped: self.queue.dropped.load(Ordering::Relaxed),
            lost: self.lost,
            failing: self.failing.clone(),
            next_seq: self.writer.as_ref().map_or(0, |writer| writer.next_seq),
            // A directory that can't be listed shows as empty here and in `failing` at the next rotation.
            size_bytes: store.and_then(|store| store.total_bytes().ok()).unwrap_or(0),
            subscribers: self.subscribers.len(),
        }
    }

    /// Writes what waits now, in batches; what arrives meanwhile has its own wake-up.
    pub(super) async fn write_queued(&mut self, context: &Context<LogMessage>) -> Result<(), Fault> {
        let mut left = self.queue.events.len();
        loop {
            let mut batch = Vec::with_capacity(left.min(BATCH_EVENTS_MAX));
            while batch.len() < BATCH_EVENTS_MAX
                && let Ok(event) = self.queue.events.try_recv()
            {
                batch.push(event);
            }
            left = left.saturating_sub(batch.len());
            self.write(context, batch, false).await?;
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Writes all that waits, and the repeat counts.
    pub(super) async fn finish(&mut self, context: &Context<LogMessage>) {
        self.queue.events.close();
        // A fault cannot restart what ends anyway; what could not be written is lost with it.
        let _fault = self.write_queued(context).await;
        let _fault = self.write(context, Vec::new(), true).await;
    }

    async fn write(
        &mut self,
        context: &Context<LogMessage>,
        mut events: Vec<LogEvent>,
        last: bool,
    ) -> Result<(), Fault> {
        let now_ms = context.ports.clock.now_ms();
        let dropped = self.queue.dropped.load(Ordering::Relaxed);
        let lost = self.lost;
        let mut own = 0;
        if dropped > self.dropped_told {
            let text = "log events were dropped: they came faster than they could be written";
            events.push(own_event(now_ms, text, "dropped", dropped - self.dropped_told));
            own += 1;
        }
        // Told with the next event, which shows whether writing works again.
        if lost > self.lost_told && !events.is_empty() {
            let text = "log lines were lost: the file could not be written";
            events.push(own_event(now_ms, text, "lost", lost - self.lost_told));
            own += 1;
        }
        let Some(writer) = self.writer.take() else {
            return Err(Fault::Restart("the log's writer died".to_owned()));
        };
        let began = Instant::now();
        let away = tokio::task::spawn_blocking(move || writer.write(events, now_ms, last)).await;
        let (writer, written) = away.map_err(|died| Fault::Restart(format!("the log's writer died: {died}")))?;
        self.writer = Some(writer);
        self.folded += written.folded;
        match written.outcome {
            Ok(_) if written.lines.is_empty() => {}
            Ok(size_bytes) => {
                self.failing = None;
                context.stats.storage_took();
                self.dropped_told = dropped;
                self.lost_told = lost;
                context.stats.commit_took(began.elapsed());
                context.stats.set_size_bytes(size_bytes);
            }
            Err(error) => {
                let unwritten = written.lines.iter().filter(|line| line.seq == 0).count();
                self.lost += unwritten.saturating_sub(own) as u64;
                let reason = crate::store::chain(&error);
                context.stats.storage_refused(
                    now_ms,
                    reason.clone(),
                    "free some space or make the log's directory writable",
                );
                self.failing = Some(reason);
            }
        }
        self.publish(written.lines);
        Ok(())
    }

    fn publish(&mut self, lines: Vec<LogLine>) {
        self.lines += lines.len() as u64;
        self.subscribers.retain(|subscriber| !subscriber.items.is_closed());
        if self.subscribers.is_empty() {
            return;
        }
        for line in lines {
            let line = Arc::new(line);
            for subscriber in &mut self.subscribers {
                subscriber.offer(&line);
            }
        }
    }
}

impl Subscriber {
    /// Never waits: a slow subscriber misses lines and is told from where on.
    fn offer(&mut self, line: &Arc<LogLine>) {
        if !self.filter.matches(line) {
            return;
        }
        if let Some(from_seq) = self.lagging_from {
            if self.items.try_send(LogItem::Lagged { from_seq }).is_err() {
                return;
            }
            self.lagging_from = None;
        }
        if self.items.try_send(LogItem::Line(Arc::clone(line))).is_err() {
            self.lagging_from = Some(line.seq);
        }
    }
}

impl Writer {
    fn write(mut self, events: Vec<LogEvent>, now_ms: i64, last: bool) -> (Self, Written) {
        let mut lines = Vec::with_capacity(events.len());
        let mut due = Vec::new();
        let mut held = 0;
        self.repeats.due(now_ms, &mut due);
        for event in events {
            let time_ms = event.time_ms;
            let admitted = self.repeats.admit(event, time_ms, &mut due);
            lines.extend(due.drain(..).map(folded_line));
            match admitted {
                Some(event) => lines.push(LogLine::from_event(event, None)),
                None => held += 1,
            }
        }
        if last {
            self.repeats.drain(&mut due);
        }
        lines.extend(due.drain(..).map(folded_line));
        let outcome = match &mut self.store {
            Some(_) if lines.is_empty() => Ok(0),
            Some(store) => {
                let appended = store.append(&mut lines).and_then(|()| store.total_bytes());
                self.next_seq = store.next_seq();
                appended
            }
            None => {
                for line in &mut lines {
                    line.seq = self.next_seq;
                    self.next_seq += 1;
                }
                Ok(0)
            }
        };
        (self, Written { lines, folded: held, outcome })
    }
}

fn folded_line(folded: Folded) -> LogLine {
    LogLine::from_event(folded.event, Some(folded.count))
}

fn own_event(time_ms: i64, message: &str, field: &'static str, count: u64) -> LogEvent {
    LogEvent {
        time_ms,
        level: LogLevel::Warn,
        target: module_path!().into(),
        facts: SpanFacts { surface: Some("log".to_owned()), ..SpanFacts::default() },
        message: message.to_owned(),
        fields: vec![(field.into(), count.into())],
    }
}

async fn open_store(directory: &Path, config: &LogsConfig) -> Result<Option<LogStore>, LogError> {
    if config.mode == LogsMode::None {
        return Ok(None);
    }
    let limits = config.limits();
    let owned = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || LogStore::open(&owned, limits)).await;
    match opened {
        Ok(store) => store.map(Some),
        // A panic goes on in the actor, whose supervisor handles it.
        Err(died) => match died.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(LogError::Io {
                action: "open the log in",
                path: directory.to_owned(),
                source: std::io::Error::other(cancelled),
            }),
        },
    }
}
