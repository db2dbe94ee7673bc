//! Newline-delimited frames out of a byte stream: a buffer that does no I/O itself and never outgrows its limit.

/// What a buffer that holds no large frame keeps allocated.
const IDLE_CAPACITY_BYTES: usize = 16 * 1024;

/// The least room [`LineBuffer::spare_mut`] offers, so that a large frame is not read in crumbs.
const SPARE_MIN_BYTES: usize = 4 * 1024;

/// A buffer larger than this is given back once it is empty: one huge frame must not cost memory for ever.
const SHRINK_ABOVE_BYTES: usize = 256 * 1024;

/// A line that is longer than the limit. Its bytes are dropped; what follows its newline is read as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line of {seen_bytes} bytes or more is over the limit of {limit_bytes} bytes")]
pub struct LineTooLong {
    /// The limit, without the line ending.
    pub limit_bytes: usize,
    /// How many bytes of the line had arrived when the limit was found passed.
    pub seen_bytes: usize,
}

/// Splits a byte stream into lines, in bounded memory.
///
/// Use: read into [`spare_mut`](Self::spare_mut), say how much came with [`advance`](Self::advance), take lines with
/// [`next_line`](Self::next_line) until it returns `None`, repeat; at the end of the stream take what is left with
/// [`finish`](Self::finish).
///
/// `\n` and `\r\n` end a line, empty lines are skipped. As long as lines are taken between reads, the buffer holds at
/// most the limit plus a few KiB. A line over the limit is reported once, as soon as that is known; the caller closes
/// the stream or simply goes on, and the rest of that line is skipped without being kept.
#[derive(Debug)]
pub struct LineBuffer {
    /// Initialised memory; `start..end` holds what is not taken yet.
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// No newline lies in `start..scanned`, so that a frame that comes in pieces is searched only once.
    scanned: usize,
    limit_bytes: usize,
    /// The line now arriving was reported as too long; drop it up to its newline.
    skipping: bool,
}

impl LineBuffer {
    /// Makes an empty buffer for lines of at most `limit_bytes`, not counting the line ending. Allocates nothing yet.
    pub fn new(limit_bytes: usize) -> Self {
        Self { memory: Vec::new(), start: 0, end: 0, scanned: 0, limit_bytes, skipping: false }
    }

    /// Returns the limit given to [`new`](Self::new).
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Changes the limit, for a connection that turns into another channel. Holds from the next line taken.
    pub fn set_limit_bytes(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Returns how many bytes wait, whole lines and the beginning of the next one together.
    pub fn pending_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Returns how much memory the buffer holds now.
    pub fn capacity_bytes(&self) -> usize {
        self.memory.capacity()
    }

    /// Returns room to read into, never empty. Follow with [`advance`](Self::advance).
    pub fn spare_mut(&mut self) -> &mut [u8] {
        self.make_room(SPARE_MIN_BYTES);
        &mut self.memory[self.end..]
    }

    /// Says that `count` bytes were read into what [`spare_mut`](Self::spare_mut) returned.
    ///
    /// # Panics
    /// If `count` is larger than that room, which no reader may claim.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.memory.len() - self.end, "a reader claims more bytes than it was given room for");
        self.end += count;
        self.drop_skipped();
    }

    /// Appends a copy of `bytes`, for callers that own their read buffer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.memory[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.advance(bytes.len());
    }

    /// Takes the next line without its ending; `None` means that more bytes are needed.
    ///
    /// # Errors
    /// [`LineTooLong`] once for each line over the limit. Lines after it are unharmed.
    pub fn next_line(&mut self) -> Option<Result<&[u8], LineTooLong>> {
        loop {
            let Some(offset) = memchr::memchr(b'\n', &self.memory[self.scanned..self.end]) else {
                self.scanned = self.end;
                return self.report_unfinished().map(Err);
            };
            let line_start = self.start;
            let newline = self.scanned + offset;
            self.start = newline + 1;
            self.scanned = self.start;
            let line_end = without_carriage_return(&self.memory, line_start, newline);
            if line_end == line_start {
                continue;
            }
            return Some(self.checked(line_start, line_end));
        }
    }

    /// Takes what is left at the end of the stream: a last line that lacks its newline, if there is one.
    ///
    /// # Errors
    /// [`LineTooLong`] if that line is over the limit.
    pub fn finish(&mut self) -> Option<Result<&[u8], LineTooLong>> {
        let line_start = self.start;
        let line_end = without_carriage_return(&self.memory, line_start, self.end);
        self.start = self.end;
        self.scanned = self.end;
        self.skipping = false;
        if line_end == line_start { None } else { Some(self.checked(line_start, line_end)) }
    }

    fn checked(&self, line_start: usize, line_end: usize) -> Result<&[u8], LineTooLong> {
        let seen_bytes = line_end - line_start;
        if seen_bytes > self.limit_bytes {
            return Err(LineTooLong { limit_bytes: self.limit_bytes, seen_bytes });
        }
        Ok(&self.memory[line_start..line_end])
    }

    fn report_unfinished(&mut self) -> Option<LineTooLong> {
        let seen_bytes = without_carriage_return(&self.memory, self.start, self.end) - self.start;
        if seen_bytes <= self.limit_bytes {
            return None;
        }
        self.start = self.end;
        self.scanned = self.end;
        self.skipping = true;
        Some(LineTooLong { limit_bytes: self.limit_bytes, seen_bytes })
    }

    /// Drops the rest of a reported line as it arrives, newline included.
    fn drop_skipped(&mut self) {
        if !self.skipping {
            return;
        }
        match memchr::memchr(b'\n', &self.memory[self.start..self.end]) {
            Some(offset) => {
                self.start += offset + 1;
                self.skipping = false;
            }
            None => self.start = self.end,
        }
        self.scanned = self.start;
    }

    fn make_room(&mut self, wanted_bytes: usize) {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            self.scanned = 0;
            if self.memory.len() > SHRINK_ABOVE_BYTES {
                self.memory = Vec::new();
            }
        }
        if self.memory.len() - self.end >= wanted_bytes {
            return;
        }
        if self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.scanned -= self.start;
            self.start = 0;
        }
        let needed = self.end + wanted_bytes;
        if self.memory.len() < needed {
            // Doubling keeps the copying linear; past the limit no line needs more than one more read.
            let most = self.limit_bytes.saturating_add(2 * SPARE_MIN_BYTES);
            let grown = (self.memory.len() * 2).clamp(IDLE_CAPACITY_BYTES, most.max(IDLE_CAPACITY_BYTES)).max(needed);
            self.memory.reserve_exact(grown - self.memory.len());
            self.memory.resize(grown, 0);
        }
    }
}

fn without_carriage_return(memory: &[u8], start: usize, end: usize) -> usize {
    if end > start && memory[end - 1] == b'\r' { end - 1 } else { end }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(buffer: &mut LineBuffer, into: &mut Vec<Result<Vec<u8>, LineTooLong>>) {
        while let Some(line) = buffer.next_line() {
            into.push(line.map(<[u8]>::to_vec));
        }
    }

    /// Reads `input` in pieces of at most `piece` bytes, as a socket would deliver it.
    fn lines_of(input: &[u8], piece: usize, limit_bytes: usize) -> Vec<Result<Vec<u8>, LineTooLong>> {
        let mut buffer = LineBuffer::new(limit_bytes);
        let mut lines = Vec::new();
        for part in input.chunks(piece) {
            let mut part = part;
            while !part.is_empty() {
                let spare = buffer.spare_mut();
                let count = spare.len().min(part.len());
                spare[..count].copy_from_slice(&part[..count]);
                buffer.advance(count);
                part = &part[count..];
                drain(&mut buffer, &mut lines);
            }
        }
        if let Some(rest) = buffer.finish() {
            lines.push(rest.map(<[u8]>::to_vec));
        }
        lines
    }

    fn good(lines: &[&str]) -> Vec<Result<Vec<u8>, LineTooLong>> {
        lines.iter().map(|line| Ok(line.as_bytes().to_vec())).collect()
    }

    #[test]
    fn both_line_endings_and_empty_lines_and_a_missing_last_newline() {
        let input = b"one\r\n\n\r\ntwo\nthree\r\n{\"x\":\"\xc3\xa9\"}";
        for piece in [1, 2, 3, 1000] {
            assert_eq!(
                lines_of(input, piece, 100),
                good(&["one", "two", "three", "{\"x\":\"é\"}"]),
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn a_line_of_exactly_the_limit_passes_with_either_ending() {
        for piece in [1, 4, 100] {
            assert_eq!(lines_of(b"12345\n12345\r\n12345", piece, 5), good(&["12345", "12345", "12345"]));
        }
    }

    #[test]
    fn a_line_over_the_limit_is_reported_once_and_the_next_is_whole() {
        for piece in [1, 2, 7, 100] {
            let lines = lines_of(b"ok\nxxxxxxxxxxxxxxxxxxxxxxxx\nnext\n", piece, 5);
            assert_eq!(lines.len(), 3, "pieces of {piece}: {lines:?}");
            assert_eq!(lines[0], Ok(b"ok".to_vec()));
            assert_eq!(lines[1].as_ref().unwrap_err().limit_bytes, 5);
            assert_eq!(lines[2], Ok(b"next".to_vec()));
        }
    }

    #[test]
    fn an_endless_line_takes_no_more_memory_than_the_limit() {
        let limit_bytes = 1024 * 1024;
        let mut buffer = LineBuffer::new(limit_bytes);
        let mut reports = 0;
        let mut most_bytes = 0;
        for _ in 0..(16 * 1024 * 1024 / SPARE_MIN_BYTES) {
            buffer.spare_mut()[..SPARE_MIN_BYTES].fill(b'a');
            buffer.advance(SPARE_MIN_BYTES);
            while let Some(line) = buffer.next_line() {
                assert!(line.is_err());
                reports += 1;
            }
            most_bytes = most_bytes.max(buffer.capacity_bytes());
        }
        assert_eq!(reports, 1);
        assert!(most_bytes <= limit_bytes + 64 * 1024, "{most_bytes} bytes were held");
        buffer.feed(b"a\nlast\n");
        assert_eq!(buffer.next_line(), Some(Ok(&b"last"[..])));
    }

    #[test]
    fn memory_is_given_back_after_a_large_frame() {
        let mut buffer = LineBuffer::new(8 * 1024 * 1024);
        let mut frame = vec![b'x'; 4 * 1024 * 1024];
        frame.push(b'\n');
        buffer.feed(&frame);
        assert_eq!(buffer.next_line().unwrap().unwrap().len(), 4 * 1024 * 1024);
        assert!(buffer.next_line().is_none());
        assert!(!buffer.spare_mut().is_empty());
        assert!(buffer.capacity_bytes() <= SHRINK_ABOVE_BYTES);
    }

    proptest! {
        #[test]
        fn cutting_the_stream_elsewhere_changes_nothing(
            input in prop::collection::vec(prop_oneof![4 => Just(b'a'), 1 => Just(b'\n'), 1 => Just(b'\r')], 0..200),
            piece in 1usize..20,
            limit_bytes in 1usize..12,
        ) {
            // How much of a long line had come when it was reported depends on the pieces; the rest must not.
            let shape = |lines: Vec<Result<Vec<u8>, LineTooLong>>| -> Vec<Option<Vec<u8>>> {
                lines.into_iter().map(Result::ok).collect()
            };
            let expected: Vec<Option<Vec<u8>>> = input
                .split(|byte| *byte == b'\n')
                .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
                .filter(|line| !line.is_empty())
                .map(|line| (line.len() <= limit_bytes).then(|| line.to_vec()))
                .collect();
            prop_assert_eq!(shape(lines_of(&input, piece, limit_bytes)), expected);
        }
    }
}
