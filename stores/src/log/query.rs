//! Reads the log: all segments as one, in either direction, with a cursor that outlives rotation.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::LogError;
use super::line::{LINE_BYTES_MAX, LogLevel, LogLine};
use super::segments::{self, CURRENT};

/// The most lines of one page.
pub const PAGE_LINES_MAX: usize = 100_000;

/// A place in the log: a segment and a line in it.
///
/// Segments keep their number when they are rotated and lines their `seq`, so a cursor stays good until its segment is
/// removed; after that it stands for the edge of what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCursor {
    /// The segment's number.
    pub segment: u64,
    /// The line's number.
    pub seq: u64,
}

impl fmt::Display for LogCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.segment, self.seq)
    }
}

impl FromStr for LogCursor {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        let parse = || {
            let (segment, seq) = text.split_once('-')?;
            Some(Self { segment: segment.parse().ok()?, seq: seq.parse().ok()? })
        };
        parse().ok_or_else(|| LogError::InvalidCursor { text: text.chars().take(64).collect() })
    }
}

/// Which end a page starts at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogOrder {
    /// The latest line first.
    #[default]
    NewestFirst,
    /// The earliest line first; continuing from the last cursor follows the log.
    OldestFirst,
}

/// Which lines to return. All conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Not earlier than this, UTC milliseconds.
    pub from_ms: Option<i64>,
    /// Earlier than this, UTC milliseconds.
    pub until_ms: Option<i64>,
    /// At least this grave.
    pub level: Option<LogLevel>,
    /// Of this surface.
    pub surface: Option<String>,
    /// Of this agent.
    pub agent: Option<String>,
    /// Of this session.
    pub session: Option<String>,
    /// Target starts with this.
    pub target: Option<String>,
    /// Message or fields contain this, upper and lower case alike once [`Self::lowercased`].
    pub text: Option<String>,
}

impl LogFilter {
    /// Prepares the filter for many lines.
    #[must_use]
    pub fn lowercased(mut self) -> Self {
        self.text = self.text.map(|text| text.to_lowercase());
        self
    }

    /// Says whether `line` is wanted.
    pub fn matches(&self, line: &LogLine) -> bool {
        let is = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        self.from_ms.is_none_or(|from_ms| line.time_ms >= from_ms)
            && self.until_ms.is_none_or(|until_ms| line.time_ms < until_ms)
            && self.level.is_none_or(|level| line.level <= level)
            && is(&self.surface, &line.facts.surface)
            && is(&self.agent, &line.facts.agent)
            && is(&self.session, &line.facts.session)
            && self.target.as_ref().is_none_or(|target| line.target.starts_with(target.as_str()))
            && self.text.as_ref().is_none_or(|text| contains(line, text))
    }
}

fn contains(line: &LogLine, text: &str) -> bool {
    line.message.to_lowercase().contains(text)
        || line.fields.iter().any(|(name, value)| {
            name.contains(text)
                || match value {
                    serde_json::Value::String(value) => value.to_lowercase().contains(text),
                    other => other.to_string().to_lowercase().contains(text),
                }
        })
}

/// Which page of the log to return.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// Which lines.
    pub filter: LogFilter,
    /// Which end to start at.
    pub order: LogOrder,
    /// Continue after this place.
    pub after: Option<LogCursor>,
    /// The most lines to return, at most [`PAGE_LINES_MAX`].
    pub limit: usize,
}

/// One page of lines.
#[derive(Debug, Clone, Default)]
pub struct LogPage {
    /// The lines, in the order asked for.
    pub lines: Vec<LogLine>,
    /// Where to go on. Oldest first: always there once a line was seen, so that a follower can wait. Newest first: `None`
    /// at the end.
    pub next: Option<LogCursor>,
    /// Lines between the cursor and the first line left have been removed.
    pub missed: bool,
    /// Lines that could not be read: torn by a crash or not ours.
    pub unreadable: u64,
}

/// A reader of a log directory. Reads beside the writer without troubling it; blocks on the file system.
#[derive(Debug, Clone)]
pub struct LogReader {
    directory: PathBuf,
}

struct Segment {
    number: u64,
    path: PathBuf,
    file: File,
}

impl LogReader {
    /// Makes a reader of the log in `directory`. An absent log is an empty one.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns the lines that `query` asks for.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn query(&self, query: &LogQuery) -> Result<LogPage, LogError> {
        let mut segments = self.open_segments()?;
        let mut page = LogPage::default();
        let limit = query.limit.min(PAGE_LINES_MAX);
        let filter = query.filter.clone().lowercased();
        let newest_first = query.order == LogOrder::NewestFirst;
        if newest_first {
            segments.reverse();
        }
        if !newest_first {
            page.next = query.after;
        }
        let mut first_seen = true;
        for segment in segments {
            if query.after.is_some_and(|after| {
                if newest_first { segment.number > after.segment } else { segment.number < after.segment }
            }) {
                continue;
            }
            let failed = LogError::io("read", &segment.path);
            let read: Box<dyn Iterator<Item = io::Result<Vec<u8>>>> = if newest_first {
                match ReverseLines::new(segment.file) {
                    Ok(lines) => Box::new(lines),
                    Err(error) => return Err(failed(error)),
                }
            } else {
                Box::new(forward_lines(segment.file))
            };
            for bytes in read {
                let bytes = bytes.map_err(LogError::io("read", &segment.path))?;
                if bytes.is_empty() {
                    continue;
                }
                let Ok(line) = serde_json::from_slice::<LogLine>(&bytes) else {
                    page.unreadable += 1;
                    continue;
                };
                if let Some(after) = query.after {
                    if if newest_first { line.seq >= after.seq } else { line.seq <= after.seq } {
                        first_seen = first_seen && newest_first;
                        continue;
                    }
                    if first_seen && !newest_first {
                        page.missed = line.seq > after.seq + 1;
                    }
                }
                first_seen = false;
                if page.lines.len() >= limit {
                    return Ok(page);
                }
                page.next = Some(LogCursor { segment: segment.number, seq: line.seq });
                if filter.matches(&line) {
                    page.lines.push(line);
                }
            }
        }
        if newest_first {
            page.next = None;
        }
        Ok(page)
    }

    /// Opens all segments, oldest first, as they are at one moment.
    ///
    /// The current one is opened before the old ones are listed: if it is rotated in between, it is met twice and known
    /// by its inode, and nothing is skipped.
    fn open_segments(&self) -> Result<Vec<Segment>, LogError> {
        let open = |path: &Path| match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("open", path)(error)),
        };
        let current = open(&self.directory.join(CURRENT))?;
        let old = match segments::list_old(&self.directory) {
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed?,
        };
        let mut seen = HashSet::new();
        let mut number = 1;
        let mut opened = Vec::new();
        for segment in old {
            number = segment.number + 1;
            let Some(file) = open(&segment.path)? else { continue };
            seen.insert(inode(&file, &segment.path)?);
            opened.push(Segment { number: segment.number, path: segment.path, file });
        }
        if let Some(file) = current {
            let path = self.directory.join(CURRENT);
            if !seen.contains(&inode(&file, &path)?) {
                opened.push(Segment { number, path, file });
            }
        }
        Ok(opened)
    }
}

fn inode(file: &File, path: &Path) -> Result<(u64, u64), LogError> {
    let metadata = file.metadata().map_err(LogError::io("examine", path))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns the `seq` of an encoded line, `None` when it is no line of ours.
pub(crate) fn seq_of(line: &[u8]) -> Option<u64> {
    serde_json::from_slice::<LogLine>(line).ok().map(|line| line.seq)
}

/// Lines from the start, without their newline. A line over the limit comes in pieces, which then don't parse.
fn forward_lines(file: File) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    let mut reader = BufReader::with_capacity(256 * 1024, file);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match (&mut reader).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                Some(Ok(line))
            }
            Err(error) => Some(Err(error)),
        }
    })
}

/// Lines from the end, without their newline, a chunk in memory at a time.
pub(crate) struct ReverseLines {
    file: File,
    /// Where `held` starts in the file.
    offset: u64,
    /// What was read and not yet given out.
    held: Vec<u8>,
    done: bool,
}

impl ReverseLines {
    const CHUNK_BYTES: u64 = 128 * 1024;

    pub(crate) fn new(mut file: File) -> io::Result<Self> {
        let offset = file.seek(SeekFrom::End(0))?;
        let mut lines = Self { file, offset, held: Vec::new(), done: false };
        lines.read_before()?;
        if lines.held.last() == Some(&b'\n') {
            lines.held.pop();
        }
        lines.done = lines.held.is_empty() && lines.offset == 0;
        Ok(lines)
    }

    fn read_before(&mut self) -> io::Result<()> {
        let length = Self::CHUNK_BYTES.min(self.offset);
        self.offset -= length;
        self.file.seek(SeekFrom::Start(self.offset))?;
        let mut chunk = vec![0; length as usize];
        self.file.read_exact(&mut chunk)?;
        chunk.append(&mut self.held);
        self.held = chunk;
        Ok(())
    }
}

impl Iterator for ReverseLines {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            if let Some(newline) = self.held.iter().rposition(|byte| *byte == b'\n') {
                let line = self.held.split_off(newline + 1);
                self.held.pop();
                return Some(Ok(line));
            }
            if self.offset == 0 {
                self.done = true;
                return Some(Ok(std::mem::take(&mut self.held)));
            }
            // No line of ours is this long: what is held is part of a foreign one and need not be kept.
            if self.held.len() > 2 * LINE_BYTES_MAX {
                self.held.truncate(LINE_BYTES_MAX + 1);
            }
            if let Err(error) = self.read_before() {
                self.done = true;
                return Some(Err(error));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::line::tests::event;
    use super::super::writer::{LogLimits, LogStore};
    use super::*;

    fn filled(home: &Path, count: usize) -> LogStore {
        let mut store = LogStore::open(home, LogLimits { segment_bytes_max: 2_000, segments_kept: 50 }).unwrap();
        write(&mut store, count);
        store
    }

    fn write(store: &mut LogStore, count: usize) {
        for index in 0..count {
            let mut event = event(&format!("message {index} Größe"));
            event.time_ms += index as i64;
            event.level = if index % 5 == 0 { LogLevel::Warn } else { LogLevel::Info };
            event.facts.surface = Some(if index % 2 == 0 { "cron" } else { "cost" }.to_owned());
            event.fields.push(("index".into(), index.into()));
            store.append(&mut [LogLine::from_event(event, None)]).unwrap();
        }
    }

    fn pages(reader: &LogReader, mut query: LogQuery) -> Vec<u64> {
        let mut seqs = Vec::new();
        loop {
            let page = reader.query(&query).unwrap();
            if page.lines.is_empty() {
                return seqs;
            }
            seqs.extend(page.lines.iter().map(|line| line.seq));
            match page.next {
                Some(next) => query.after = Some(next.to_string().parse().unwrap()),
                None => return seqs,
            }
        }
    }

    #[test]
    fn pages_meet_every_line_once_in_both_directions() {
        let home = tempfile::tempdir().unwrap();
        let store = filled(home.path(), 200);
        for limit in [1, 7, 200, 1000] {
            let query = LogQuery { limit, order: LogOrder::OldestFirst, ..LogQuery::default() };
            assert_eq!(pages(&store.reader(), query), (1..=200).collect::<Vec<_>>());
            let query = LogQuery { limit, ..LogQuery::default() };
            assert_eq!(pages(&store.reader(), query), (1..=200).rev().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_cursor_survives_rotation_and_tells_of_removed_lines() {
        let home = tempfile::tempdir().unwrap();
        let mut store = filled(home.path(), 10);
        let oldest = LogQuery { limit: 5, order: LogOrder::OldestFirst, ..LogQuery::default() };
        let first = store.reader().query(&oldest).unwrap();
        let newest = store.reader().query(&LogQuery { limit: 3, ..LogQuery::default() }).unwrap();
        write(&mut store, 100);
        let second = store.reader().query(&LogQuery { after: first.next, limit: 1000, ..oldest.clone() }).unwrap();
        assert_eq!(second.lines.iter().map(|line| line.seq).collect::<Vec<_>>(), (6..=110).collect::<Vec<_>>());
        assert!(!second.missed);
        let back = store.reader().query(&LogQuery { after: newest.next, limit: 3, ..LogQuery::default() }).unwrap();
        assert_eq!(back.lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [7, 6, 5]);
        store.set_limits(LogLimits { segment_bytes_max: 2_000, segments_kept: 1 }).unwrap();
        let third = store.reader().query(&LogQuery { after: first.next, limit: 1000, ..oldest.clone() }).unwrap();
        assert!(third.missed);
        assert_eq!(third.lines.last().unwrap().seq, 110);
        // At the end a follower keeps its place.
        let end = store.reader().query(&LogQuery { after: third.next, limit: 10, ..oldest }).unwrap();
        assert_eq!((end.lines.len(), end.next), (0, third.next));
    }

    #[test]
    fn filters_combine() {
        let home = tempfile::tempdir().unwrap();
        let store = filled(home.path(), 100);
        let count = |filter: LogFilter| {
            let query = LogQuery { filter, limit: 1000, ..LogQuery::default() };
            store.reader().query(&query).unwrap().lines.len()
        };
        let base = LogFilter::default();
        assert_eq!(count(LogFilter { level: Some(LogLevel::Warn), ..base.clone() }), 20);
        assert_eq!(count(LogFilter { surface: Some("cron".to_owned()), ..base.clone() }), 50);
        let both = LogFilter { surface: Some("cron".to_owned()), level: Some(LogLevel::Warn), ..base.clone() };
        assert_eq!(count(both), 10);
        assert_eq!(count(LogFilter { text: Some("GRÖSSE".to_owned()), ..base.clone() }), 0);
        assert_eq!(count(LogFilter { text: Some("GRÖßE".to_owned()), ..base.clone() }), 100);
        assert_eq!(count(LogFilter { text: Some("message 7".to_owned()), ..base.clone() }), 11);
        let start = 1_780_000_000_000;
        let hour = LogFilter { from_ms: Some(start + 10), until_ms: Some(start + 20), ..base.clone() };
        assert_eq!(count(hour), 10);
        assert_eq!(count(LogFilter { agent: Some("a".to_owned()), ..base.clone() }), 0);
        assert_eq!(count(LogFilter { target: Some("holdfast".to_owned()), ..base }), 100);
    }

    #[test]
    fn damaged_and_foreign_lines_are_counted_and_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let mut store = filled(home.path(), 3);
        let path = home.path().join(CURRENT);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(b"\xff\xfe torn");
        bytes.extend_from_slice(&[b'x'; 400_000]);
        bytes.push(b'\n');
        fs::write(&path, bytes).unwrap();
        drop(store);
        store = LogStore::open(home.path(), LogLimits::default()).unwrap();
        write(&mut store, 2);
        for order in [LogOrder::OldestFirst, LogOrder::NewestFirst] {
            let page = store.reader().query(&LogQuery { limit: 100, order, ..LogQuery::default() }).unwrap();
            assert_eq!(page.lines.len(), 5);
            assert!(page.unreadable >= 1);
        }
    }

    #[test]
    fn an_absent_log_is_empty_and_a_foreign_cursor_refused() {
        let home = tempfile::tempdir().unwrap();
        let reader = LogReader::new(&home.path().join("absent"));
        assert_eq!(reader.query(&LogQuery { limit: 5, ..LogQuery::default() }).unwrap().lines.len(), 0);
        for text in ["", "-", "1", "1-", "a-1", "-1-1"] {
            assert!(text.parse::<LogCursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reader_beside_a_rotating_writer_sees_each_line_once() {
        let home = tempfile::tempdir().unwrap();
        let mut store = filled(home.path(), 1);
        let reader = store.reader();
        let writer = std::thread::spawn(move || {
            write(&mut store, 600);
        });
        let query = LogQuery { limit: 1000, order: LogOrder::OldestFirst, ..LogQuery::default() };
        while !writer.is_finished() {
            let seqs: Vec<_> = reader.query(&query).unwrap().lines.iter().map(|line| line.seq).collect();
            assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        }
        writer.join().unwrap();
        assert_eq!(reader.query(&query).unwrap().lines.len(), 601);
    }
}
