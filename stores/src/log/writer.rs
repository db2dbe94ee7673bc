//! The one writer of the log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::LogError;
use super::line::LogLine;
use super::query::{LogReader, ReverseLines, seq_of};
use super::segments::{self, CURRENT};

/// How much the log may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// A segment is full at this size; it passes it by one line at most.
    pub segment_bytes_max: u64,
    /// Older segments kept.
    pub segments_kept: usize,
}

impl Default for LogLimits {
    /// 10 MiB a segment, three old ones: 40 MiB in all.
    fn default() -> Self {
        Self { segment_bytes_max: 10 * 1024 * 1024, segments_kept: 3 }
    }
}

/// The log, opened for writing. One a directory: the daemon's instance lock sees to that.
///
/// All methods block on the file system.
pub struct LogStore {
    directory: PathBuf,
    limits: LogLimits,
    file: File,
    /// The number the current segment will have once it is old.
    segment: u64,
    size_bytes: u64,
    next_seq: u64,
    /// The file ends in the middle of a line: the next write begins with a newline.
    torn: bool,
    buffer: Vec<u8>,
}

impl LogStore {
    /// Opens the log in `directory`, made with mode 0700 when it is not there, and brings what it holds under `limits`.
    ///
    /// A last line torn by a crash stays; the next one starts on a fresh line.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn open(directory: &Path, limits: LogLimits) -> Result<Self, LogError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(LogError::io("make the directory", directory))?;
        segments::remove_leftovers(directory)?;
        for old in segments::list_old(directory)? {
            segments::trim_to(directory, &old.path, limits.segment_bytes_max)?;
        }
        segments::trim_to(directory, &directory.join(CURRENT), limits.segment_bytes_max)?;
        let next_seq = last_seq(directory)? + 1;
        let file = segments::open_current(directory)?;
        let mut store = Self {
            directory: directory.to_owned(),
            limits,
            file,
            segment: 0,
            size_bytes: 0,
            next_seq,
            torn: false,
            buffer: Vec::new(),
        };
        store.examine_current()?;
        store.prune()?;
        Ok(store)
    }

    /// Changes the limits; what is too much under the new ones is removed at once.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn set_limits(&mut self, limits: LogLimits) -> Result<(), LogError> {
        self.limits = limits;
        self.prune()
    }

    /// Appends `lines`, giving each its `seq`. Whole lines go out in one write each batch and segment.
    ///
    /// # Errors
    /// [`LogError::Io`]: the lines not yet written have no `seq` (0) and are not stored; a line written in part is
    /// closed by the next write. The store stays usable: the next call tries again, rotation included.
    pub fn append(&mut self, lines: &mut [LogLine]) -> Result<(), LogError> {
        self.reopen_if_removed()?;
        let mut next = 0;
        while next < lines.len() {
            if self.size_bytes >= self.limits.segment_bytes_max {
                self.rotate()?;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            if self.torn {
                buffer.push(b'\n');
            }
            let first = next;
            while next < lines.len() && self.size_bytes + (buffer.len() as u64) < self.limits.segment_bytes_max {
                lines[next].seq = self.next_seq + (next - first) as u64;
                if let Err(error) = lines[next].encode_into(&mut buffer) {
                    lines[next..].iter_mut().for_each(|line| line.seq = 0);
                    return Err(LogError::io("encode a line for", self.directory.join(CURRENT))(error.into()));
                }
                next += 1;
            }
            let written = self.file.write_all(&buffer);
            let length = buffer.len() as u64;
            self.buffer = buffer;
            if let Err(error) = written {
                lines[first..].iter_mut().for_each(|line| line.seq = 0);
                // How much arrived is unknown. Numbers are not used twice, and the size is asked for.
                self.next_seq += (next - first) as u64;
                self.torn = true;
                self.size_bytes = self.file.metadata().map(|metadata| metadata.len()).unwrap_or(self.size_bytes);
                return Err(LogError::io("append to", self.directory.join(CURRENT))(error));
            }
            self.size_bytes += length;
            self.next_seq += (next - first) as u64;
            self.torn = false;
        }
        Ok(())
    }

    /// Returns a reader of this log. It needs no open store.
    pub fn reader(&self) -> LogReader {
        LogReader::new(&self.directory)
    }

    /// Returns the number the next line gets.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Returns the size of all segments, in bytes.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn total_bytes(&self) -> Result<u64, LogError> {
        let old: u64 = segments::list_old(&self.directory)?.iter().map(|segment| segment.size_bytes).sum();
        Ok(old + self.size_bytes)
    }

    fn rotate(&mut self) -> Result<(), LogError> {
        segments::retire_current(&self.directory, self.segment)?;
        self.file = segments::open_current(&self.directory)?;
        self.examine_current()?;
        self.prune()
    }

    /// A log that an operator deleted is made again instead of growing unseen behind its last name.
    fn reopen_if_removed(&mut self) -> Result<(), LogError> {
        let path = self.directory.join(CURRENT);
        let links = self.file.metadata().map_err(LogError::io("examine", &path))?.nlink();
        if links == 0 {
            self.file = segments::open_current(&self.directory)?;
            self.examine_current()?;
        }
        Ok(())
    }

    fn examine_current(&mut self) -> Result<(), LogError> {
        let path = self.directory.join(CURRENT);
        self.size_bytes = self.file.metadata().map_err(LogError::io("examine", &path))?.len();
        self.segment = segments::list_old(&self.directory)?.last().map_or(1, |segment| segment.number + 1);
        self.torn = false;
        if self.size_bytes > 0 {
            let mut last = [0];
            let mut file = File::open(&path).map_err(LogError::io("open", &path))?;
            file.seek(SeekFrom::End(-1))
                .and_then(|_| file.read_exact(&mut last))
                .map_err(LogError::io("read", &path))?;
            self.torn = last != *b"\n";
        }
        Ok(())
    }

    fn prune(&self) -> Result<(), LogError> {
        let kept = self.limits.segments_kept;
        // A line over the edge of each segment is allowed for.
        let line = super::line::LINE_BYTES_MAX as u64;
        let total = self.limits.segment_bytes_max.saturating_add(line).saturating_mul(kept as u64);
        segments::prune(&self.directory, kept, total).map(|_removed| ())
    }
}

/// Returns the highest `seq` on disk; 0 when there is none. Torn and foreign lines are passed over.
fn last_seq(directory: &Path) -> Result<u64, LogError> {
    let mut paths = vec![directory.join(CURRENT)];
    paths.extend(segments::list_old(directory)?.into_iter().rev().map(|segment| segment.path));
    for path in paths {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(LogError::io("open", path)(error)),
        };
        for line in ReverseLines::new(file).map_err(LogError::io("read", &path))? {
            let line = line.map_err(LogError::io("read", &path))?;
            if let Some(seq) = seq_of(&line) {
                return Ok(seq);
            }
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::line::tests::event;
    use super::super::query::{LogOrder, LogQuery};
    use super::*;

    fn lines(count: usize, length: usize) -> Vec<LogLine> {
        (0..count).map(|_| LogLine::from_event(event(&"word ".repeat(length / 5)), None)).collect()
    }

    fn sizes(directory: &Path) -> Vec<(String, u64)> {
        let mut found: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        found.sort();
        found
    }

    fn all(store: &LogStore) -> Vec<LogLine> {
        let query = LogQuery { order: LogOrder::OldestFirst, limit: 100_000, ..LogQuery::default() };
        store.reader().query(&query).unwrap().lines
    }

    const SMALL: LogLimits = LogLimits { segment_bytes_max: 10_000, segments_kept: 3 };

    #[test]
    fn the_log_stays_under_its_bound_and_goes_on() {
        let home = tempfile::tempdir().unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        for _ in 0..100 {
            store.append(&mut lines(7, 500)).unwrap();
            let total: u64 = sizes(home.path()).iter().map(|(_, size)| size).sum();
            assert!(total <= 4 * 10_000 + 4 * 1_000, "{total}");
        }
        assert_eq!(sizes(home.path()).len(), 4);
        for (name, _) in sizes(home.path()) {
            let mode = fs::metadata(home.path().join(&name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let kept = all(&store);
        assert_eq!(kept.last().unwrap().seq, 700);
        assert!(kept.windows(2).all(|two| two[1].seq == two[0].seq + 1));
    }

    #[test]
    fn a_huge_old_log_is_cut_to_its_last_lines() {
        let home = tempfile::tempdir().unwrap();
        let mut text = String::new();
        while text.len() < 50_000 {
            text.push_str("{\"foreign\":\"line\"}\n");
        }
        text.push_str("{\"seq\":41,\"time_ms\":1,\"level\":\"info\",\"target\":\"t\",\"message\":\"kept\"}\n");
        fs::write(home.path().join(CURRENT), &text).unwrap();
        fs::set_permissions(home.path().join(CURRENT), fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(segments::old_path(home.path(), 8), &text).unwrap();
        fs::write(home.path().join("other.txt"), "mine").unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        store.append(&mut lines(1, 10)).unwrap();
        let total: u64 = sizes(home.path()).iter().map(|(_, size)| size).sum();
        assert!(total <= 40_000, "{total}");
        let kept: Vec<_> = all(&store).iter().map(|line| line.seq).collect();
        assert_eq!(kept, [41, 41, 42]);
        assert!(home.path().join("other.txt").exists());
        let current = fs::metadata(home.path().join(CURRENT)).unwrap();
        assert_eq!(current.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_torn_last_line_is_kept_and_the_next_starts_fresh() {
        let home = tempfile::tempdir().unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        store.append(&mut lines(3, 10)).unwrap();
        drop(store);
        let path = home.path().join(CURRENT);
        let text = fs::read(&path).unwrap();
        for cut in 1..60 {
            fs::write(&path, &text[..text.len() - cut]).unwrap();
            let mut store = LogStore::open(home.path(), SMALL).unwrap();
            let mut one = lines(1, 10);
            store.append(&mut one).unwrap();
            let seqs: Vec<_> = all(&store).iter().map(|line| line.seq).collect();
            // A line that lost only its newline is whole.
            assert_eq!(seqs, if cut == 1 { vec![1, 2, 3, 4] } else { vec![1, 2, 3] }, "cut {cut}");
        }
    }

    #[test]
    fn a_crash_at_any_step_of_a_rotation_is_harmless() {
        for step in 0..3 {
            let home = tempfile::tempdir().unwrap();
            let mut store = LogStore::open(home.path(), SMALL).unwrap();
            store.append(&mut lines(80, 500)).unwrap();
            let before = store.next_seq();
            let segment = store.segment;
            drop(store);
            if step >= 1 {
                segments::retire_current(home.path(), segment).unwrap();
            }
            if step >= 2 {
                segments::open_current(home.path()).unwrap();
            }
            let mut store = LogStore::open(home.path(), SMALL).unwrap();
            store.append(&mut lines(1, 10)).unwrap();
            assert_eq!(all(&store).last().unwrap().seq, before, "step {step}");
            assert!(sizes(home.path()).len() <= 4);
        }
    }

    #[test]
    fn a_log_that_was_deleted_is_made_again() {
        let home = tempfile::tempdir().unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        store.append(&mut lines(2, 10)).unwrap();
        fs::remove_file(home.path().join(CURRENT)).unwrap();
        store.append(&mut lines(1, 10)).unwrap();
        assert_eq!(all(&store).iter().map(|line| line.seq).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_rotation_that_fails_is_tried_again() {
        let home = tempfile::tempdir().unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        store.append(&mut lines(30, 500)).unwrap();
        // A directory in the place of the next old segment makes the rename fail, for root too.
        let obstacle = segments::old_path(home.path(), store.segment);
        fs::create_dir(&obstacle).unwrap();
        fs::write(obstacle.join("x"), "").unwrap();
        let mut batch = lines(30, 500);
        let error = store.append(&mut batch).unwrap_err();
        assert!(error.to_string().starts_with("failed to rotate"), "{error}");
        assert_eq!(batch.last().unwrap().seq, 0);
        fs::remove_dir_all(&obstacle).unwrap();
        store.append(&mut lines(30, 500)).unwrap();
    }

    #[test]
    fn smaller_limits_apply_at_once() {
        let home = tempfile::tempdir().unwrap();
        let mut store = LogStore::open(home.path(), SMALL).unwrap();
        store.append(&mut lines(80, 500)).unwrap();
        store.set_limits(LogLimits { segments_kept: 1, ..SMALL }).unwrap();
        assert_eq!(sizes(home.path()).len(), 2);
        assert_eq!(store.total_bytes().unwrap(), sizes(home.path()).iter().map(|(_, size)| size).sum::<u64>());
    }
}
