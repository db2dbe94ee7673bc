//! The conversation with the daemon as an ACP agent: what arrives from everywhere, in one queue.

use std::io::{self, BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use holdfast_protocol::error::ErrorObject;
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::jsonrpc::{self, OwnedId};
use serde_json::value::RawValue;

use crate::commands::AcpStream;

/// Frames that may wait between the socket and the terminal; past it the daemon is not read, and its store waits for us.
const QUEUE_LEN: usize = 256;

/// Which connection a frame came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The one that prompts.
    Ours,
    /// The one that watches until the prompt is on disk.
    Watcher,
}

/// What can happen while a turn runs.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame arrived.
    Frame(Origin, Vec<u8>),
    /// A connection ended; why, if it was no orderly end.
    Ended(Option<String>),
    /// Ctrl-C.
    Interrupt,
    /// The person typed a line; nothing at the end of input.
    Typed(Option<String>),
}

/// Where events come from, and where more sources are added.
pub(super) struct Events {
    sender: SyncSender<Event>,
    receiver: Receiver<Event>,
    asked_keyboard: bool,
}

impl Events {
    pub(super) fn new() -> Self {
        let (sender, receiver) = sync_channel(QUEUE_LEN);
        Self { sender, receiver, asked_keyboard: false }
    }

    /// Waits for the next event. We hold a sender ourselves, so there is always one to come.
    pub(super) fn next(&self) -> Event {
        self.receiver.recv().unwrap_or(Event::Interrupt)
    }

    pub(super) fn sender(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Listens to a connection from now on; returns the way to write to it.
    ///
    /// # Errors
    /// When the stream can't be read from a second place.
    pub(super) fn listen(&self, origin: Origin, acp: AcpStream) -> io::Result<Peer> {
        let AcpStream { stream, incoming } = acp;
        let reading = stream.try_clone()?;
        let sender = self.sender();
        thread::spawn(move || read_frames(origin, reading, incoming, &sender));
        Ok(Peer { stream, next_id: 0, buffer: Vec::new() })
    }

    /// Listens to the keyboard from now on.
    pub(super) fn listen_to_keyboard(&mut self) {
        if std::mem::replace(&mut self.asked_keyboard, true) {
            return;
        }
        let sender = self.sender();
        thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.send(Event::Typed(Some(line))).is_err() {
                    return;
                }
            }
            // The program is on its way out if nobody listens.
            let _gone = sender.send(Event::Typed(None));
        });
    }
}

fn read_frames(origin: Origin, mut stream: UnixStream, mut incoming: LineBuffer, sender: &SyncSender<Event>) {
    let end = loop {
        match incoming.next_line() {
            Some(Ok(line)) => {
                let line = line.to_vec();
                if sender.send(Event::Frame(origin, line)).is_err() {
                    return;
                }
                continue;
            }
            Some(Err(too_long)) => break Some(too_long.to_string()),
            None => {}
        }
        match stream.read(incoming.spare_mut()) {
            Ok(0) => break None,
            Ok(count) => incoming.advance(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error.to_string()),
        }
    };
    // The program is on its way out if nobody listens.
    let _gone = sender.send(Event::Ended(end));
}

/// The writing half of a connection.
pub(super) struct Peer {
    stream: UnixStream,
    next_id: u64,
    buffer: Vec<u8>,
}

impl Peer {
    /// Sends a request and returns its id.
    pub(super) fn request(&mut self, method: &str, params: &RawValue) -> io::Result<u64> {
        self.next_id += 1;
        let id = self.next_id;
        self.write(|buffer| jsonrpc::write_raw_request(buffer, id, method, Some(params)))?;
        Ok(id)
    }

    pub(super) fn notify(&mut self, method: &str, params: &RawValue) -> io::Result<()> {
        self.write(|buffer| jsonrpc::write_raw_notification(buffer, method, Some(params)))
    }

    pub(super) fn answer(&mut self, id: &OwnedId, outcome: Result<&RawValue, &ErrorObject>) -> io::Result<()> {
        self.write(|buffer| match outcome {
            Ok(result) => jsonrpc::write_raw_result(buffer, id, result),
            Err(error) => jsonrpc::write_error_object(buffer, id, error),
        })
    }

    fn write(&mut self, frame: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.buffer.clear();
        frame(&mut self.buffer);
        self.stream.write_all(&self.buffer)
    }
}
