//! What waits to be written to one client.

use std::io;

use holdfast_actors::channel::{Carried, Frame};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

/// Answers are gathered up to this size before they are written: one write for many small ones.
const BATCH_BYTES: usize = 256 * 1024;

/// A buffer that grew past this is given back once it is written.
const KEEP_BYTES: usize = 256 * 1024;

/// Bytes on their way to the client, with their shares of the queue's budget.
#[derive(Debug, Default)]
pub(super) struct Writer {
    buffer: Vec<u8>,
    written: usize,
    held: Vec<OwnedSemaphorePermit>,
}

impl Writer {
    /// Returns how many bytes wait.
    pub(super) fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending_bytes() == 0
    }

    /// Says whether the batch is large enough to be written before more is gathered.
    pub(super) fn is_full(&self) -> bool {
        self.pending_bytes() >= BATCH_BYTES
    }

    /// Appends a line.
    pub(super) fn append(&mut self, data: Vec<u8>, budget: Option<OwnedSemaphorePermit>) {
        if self.buffer.is_empty() && data.len() > KEEP_BYTES {
            self.buffer = data;
        } else {
            self.buffer.extend_from_slice(&data);
        }
        self.held.extend(budget);
    }

    /// Appends a frame as it is.
    pub(super) fn append_frame(&mut self, frame: Carried<Frame>) {
        let (frame, budget) = frame.into_parts();
        self.append(frame.data, budget);
    }

    /// Writes what the socket takes now, and returns how much that was.
    pub(super) fn write_now(&mut self, stream: &UnixStream) -> io::Result<usize> {
        let mut total = 0;
        while !self.is_empty() {
            match stream.try_write(&self.buffer[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    total += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(error) => return Err(error),
            }
        }
        self.buffer.clear();
        self.written = 0;
        self.held.clear();
        if self.buffer.capacity() > KEEP_BYTES {
            self.buffer = Vec::new();
        }
        Ok(total)
    }
}
