//! The status pipe.

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, RawFd};

use holdfast_actors::leases::wrapper::StatusLine;

/// Where status lines go. Without a pipe failures go to stderr and the rest is not said.
pub(super) struct StatusPipe {
    pipe: Option<File>,
}

impl StatusPipe {
    /// Takes over the inherited descriptor.
    pub(super) fn new(status_fd: Option<RawFd>) -> Self {
        // SAFETY: the caller of this program handed the descriptor over for this; nothing else here uses its number. If
        // it is not open, the writes fail and are reported below.
        let pipe = status_fd.map(|fd| unsafe { File::from_raw_fd(fd) });
        Self { pipe }
    }

    /// Writes one line in one write. A reader that has gone is its own loss: the tree is looked after all the same.
    pub(super) fn report(&mut self, line: &StatusLine) {
        let Some(pipe) = &mut self.pipe else {
            if let StatusLine::ExecFailed { message, .. } = line {
                eprintln!("lease-exec: {message}");
            }
            return;
        };
        let written = serde_json::to_vec(line).map_err(std::io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            pipe.write_all(&text)
        });
        if written.is_err() {
            self.pipe = None;
        }
    }
}
