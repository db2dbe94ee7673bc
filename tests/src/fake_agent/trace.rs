//! The record of what a fake agent received, written by the agent and read by the test.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process;

use holdfast_protocol::jsonrpc::{Frame, Message, parse_frame};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One line of a trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The agent process that wrote it.
    pub pid: u32,
    /// `started`, `received`, `noise` (a line that is no JSON), `end_of_input` or `spawned`.
    pub event: String,
    /// The frame, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<Box<RawValue>>,
    /// The process that was spawned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<u32>,
}

impl Entry {
    /// Returns the method of a received request or notification.
    pub fn method(&self) -> Option<String> {
        match parse_frame(self.frame.as_ref()?.get().as_bytes()) {
            Frame::Single(Message::Request { method, .. } | Message::Notification { method, .. }) => {
                Some(method.into_owned())
            }
            _ => None,
        }
    }

    /// Returns a value inside the frame, by JSON pointer (RFC 6901).
    pub fn at(&self, pointer: &str) -> Option<serde_json::Value> {
        let frame: serde_json::Value = serde_json::from_str(self.frame.as_ref()?.get()).ok()?;
        frame.pointer(pointer).cloned()
    }
}

/// A whole trace, as a test looks at it.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// In the order in which they were written.
    pub entries: Vec<Entry>,
}

impl Trace {
    /// Reads a trace; an absent file is an empty trace. A last line that is being written is left out.
    ///
    /// # Errors
    /// If the file can't be read or holds something else.
    pub fn read_from(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let whole_lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let entries = whole_lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// Returns the methods of all requests and notifications received, in order.
    pub fn methods(&self) -> Vec<String> {
        self.entries.iter().filter_map(Entry::method).collect()
    }

    /// Returns how many requests or notifications with this method were received.
    pub fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|name| *name == method).count()
    }

    /// Returns the entries with this method.
    pub fn with_method(&self, method: &str) -> Vec<&Entry> {
        self.entries.iter().filter(|entry| entry.method().as_deref() == Some(method)).collect()
    }

    /// Returns the agent processes, in the order in which they started.
    pub fn pids(&self) -> Vec<u32> {
        self.entries.iter().filter(|entry| entry.event == "started").map(|entry| entry.pid).collect()
    }

    /// Returns the processes that agents spawned, in order.
    pub fn children(&self) -> Vec<u32> {
        self.entries.iter().filter_map(|entry| entry.child).collect()
    }
}

/// The agent's end: appends entries, each in one write, so that several processes can share a file.
#[derive(Debug)]
pub(super) struct Recorder {
    file: Option<File>,
}

impl Recorder {
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        Ok(Self { file })
    }

    pub(super) fn record(&mut self, event: &str, frame: Option<&RawValue>, child: Option<u32>) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let entry = Entry { pid: process::id(), event: event.to_owned(), frame: frame.map(ToOwned::to_owned), child };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        file.write_all(&line)
    }
}
