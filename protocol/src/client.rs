//! A blocking client: typed calls over any stream the caller has opened. It does no I/O of its own choosing.
//!
//! ```no_run
//! use std::os::unix::net::UnixStream;
//!
//! use holdfast_protocol::client::Client;
//! use holdfast_protocol::methods::{Empty, daemon, rpc::PeerInfo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = UnixStream::connect("/home/me/.holdfast/data/holdfast.sock")?;
//! let mut client = Client::new(stream);
//! client.initialize(PeerInfo { name: "example".into(), version: "1".into() })?;
//! let status = client.call::<daemon::Status>(&Empty {})?;
//! println!("pid {}, generation {}", status.pid, status.generation);
//! # Ok(())
//! # }
//! ```
//!
//! One call is in flight at a time. Notifications that arrive meanwhile are kept for [`Client::next_notification`].

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use serde_json::value::RawValue;

use crate::error::{ErrorKind, WireError};
use crate::framing::{LineBuffer, LineTooLong};
use crate::jsonrpc::{self, Frame, Id, Message};
use crate::method::Method;
use crate::methods::rpc::{Initialize, InitializeParams, InitializeResult, PROTOCOL_VERSION, PeerInfo};

/// The longest frame a client reads, in bytes. An answer may be longer than the requests a daemon accepts.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Notifications kept for a caller that does not take them; the oldest are dropped past it.
const NOTIFICATIONS_MAX: usize = 4096;

/// Why a call brought no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The stream failed. Whether the request took effect is unknown; repeat it with its idempotency key.
    #[error("failed to {action} the daemon's socket")]
    Io {
        /// `read from` or `write to`.
        action: &'static str,
        /// What the system says. A read that timed out has the kind `WouldBlock` or `TimedOut`.
        #[source]
        source: io::Error,
    },
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the connection before it answered")]
    Closed,
    /// The daemon answered with an error.
    #[error("{0}")]
    Refused(WireError),
    /// The daemon sent something that is no answer.
    #[error("the daemon sent a frame that is not understood: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// The params cannot be JSON.
    #[error("failed to write the params of `{method}` as JSON")]
    Params {
        /// The method.
        method: String,
        /// What is wrong with them.
        #[source]
        source: serde_json::Error,
    },
    /// The result does not fit the method: the daemon is of another version.
    #[error("the result of `{method}` is not what was expected")]
    Result {
        /// The method.
        method: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Returns the kind that the daemon gave, if it was the daemon that refused.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused(error) => Some(error.kind),
            Self::Io { .. } | Self::Closed | Self::Protocol { .. } | Self::Params { .. } | Self::Result { .. } => None,
        }
    }
}

/// A message of the daemon that answers nothing.
#[derive(Debug)]
pub struct Notification {
    /// Its method.
    pub method: String,
    /// Its params.
    pub params: Option<Box<RawValue>>,
}

/// One end of a conversation over `S`.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    incoming: LineBuffer,
    outgoing: Vec<u8>,
    next_id: u64,
    notifications: VecDeque<Notification>,
}

/// What a client is made of, for going on without it; see [`Client::into_parts`].
#[derive(Debug)]
pub struct ClientParts<S> {
    /// The stream.
    pub stream: S,
    /// What was read from it and not used yet.
    pub incoming: LineBuffer,
    /// Notifications that were not taken.
    pub notifications: VecDeque<Notification>,
}

impl<S: Read + Write> Client<S> {
    /// Makes a client over a connected stream. Time limits are set on the stream by the caller.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            incoming: LineBuffer::new(FRAME_BYTES_MAX),
            outgoing: Vec::new(),
            next_id: 1,
            notifications: VecDeque::new(),
        }
    }

    /// Opens the conversation; has to be the first call.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn initialize(&mut self, client: PeerInfo) -> Result<InitializeResult, ClientError> {
        self.call::<Initialize>(&InitializeParams { protocol_version: PROTOCOL_VERSION, client })
    }

    /// Calls the method `M` and waits for its result.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with what the daemon says; the others as their docs say. After any other error than
    /// `Refused`, `Params` and `Result` the client is of no more use.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        let id = self.take_id();
        self.outgoing.clear();
        jsonrpc::write_request(&mut self.outgoing, id, M::NAME, params)
            .map_err(|source| ClientError::Params { method: M::NAME.to_owned(), source })?;
        let result = self.exchange(id)?;
        serde_json::from_str(result.get()).map_err(|source| ClientError::Result { method: M::NAME.to_owned(), source })
    }

    /// Calls any method with params that are JSON text already.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_raw(&mut self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, ClientError> {
        let id = self.take_id();
        self.outgoing.clear();
        jsonrpc::write_raw_request(&mut self.outgoing, id, method, params);
        self.exchange(id)
    }

    /// Returns the next notification, waiting for it.
    ///
    /// # Errors
    /// [`ClientError::Io`], [`ClientError::Closed`] or [`ClientError::Protocol`].
    pub fn next_notification(&mut self) -> Result<Notification, ClientError> {
        loop {
            if let Some(notification) = self.notifications.pop_front() {
                return Ok(notification);
            }
            if let Some(Answer { .. }) = self.take_message()? {
                return Err(ClientError::Protocol { reason: "an answer to no request".to_owned() });
            }
        }
    }

    /// Takes the client apart, to speak something else over the stream: raw ACP after `acp/attach`.
    pub fn into_parts(self) -> ClientParts<S> {
        ClientParts { stream: self.stream, incoming: self.incoming, notifications: self.notifications }
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn exchange(&mut self, id: u64) -> Result<Box<RawValue>, ClientError> {
        let written = self.stream.write_all(&self.outgoing).and_then(|()| self.stream.flush());
        if let Err(source) = written {
            return Err(self.turned_away(source));
        }
        loop {
            match self.take_message()? {
                None => {}
                Some(Answer { id: Some(answered), outcome }) if answered == id => {
                    return outcome.map_err(ClientError::Refused);
                }
                // An error with id null: the daemon could not read what we sent, or turns us away.
                Some(Answer { id: None, outcome: Err(error) }) => return Err(ClientError::Refused(error)),
                Some(Answer { .. }) => {
                    return Err(ClientError::Protocol { reason: "an answer to another request".to_owned() });
                }
            }
        }
    }

    /// Finds out why a write failed: a daemon that turns a client away says why before it closes.
    fn turned_away(&mut self, source: io::Error) -> ClientError {
        if source.kind() == io::ErrorKind::BrokenPipe
            && let Ok(Some(Answer { id: None, outcome: Err(error) })) = self.take_message()
        {
            return ClientError::Refused(error);
        }
        ClientError::Io { action: "write to", source }
    }

    /// Reads one frame. Keeps notifications and returns answers.
    fn take_message(&mut self) -> Result<Option<Answer>, ClientError> {
        loop {
            if let Some(line) = self.incoming.next_line() {
                return match arrived(line)? {
                    Arrival::Answer(answer) => Ok(Some(answer)),
                    Arrival::Notification(notification) => {
                        if self.notifications.len() == NOTIFICATIONS_MAX {
                            self.notifications.pop_front();
                        }
                        self.notifications.push_back(notification);
                        Ok(None)
                    }
                };
            }
            match self.stream.read(self.incoming.spare_mut()) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(count) => self.incoming.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ClientError::Io { action: "read from", source }),
            }
        }
    }
}

struct Answer {
    /// Missing when it is null or none of ours.
    id: Option<u64>,
    outcome: Result<Box<RawValue>, WireError>,
}

enum Arrival {
    Answer(Answer),
    Notification(Notification),
}

fn arrived(line: Result<&[u8], LineTooLong>) -> Result<Arrival, ClientError> {
    let line = line.map_err(|error| ClientError::Protocol { reason: error.to_string() })?;
    let message = match jsonrpc::parse_frame(line) {
        Frame::Single(message) => message,
        Frame::Batch(_) => return Err(ClientError::Protocol { reason: "a batch".to_owned() }),
        Frame::Invalid(error) => return Err(ClientError::Protocol { reason: error.message }),
    };
    match message {
        Message::Response { id, outcome } => Ok(Arrival::Answer(Answer {
            id: if id == Id::NULL { None } else { id.as_u64() },
            outcome: outcome.map(RawValue::to_owned).map_err(|object| WireError::from_object(&object)),
        })),
        Message::Notification { method, params } => Ok(Arrival::Notification(Notification {
            method: method.into_owned(),
            params: params.map(RawValue::to_owned),
        })),
        Message::Request { method, .. } => {
            Err(ClientError::Protocol { reason: format!("a request of the daemon, `{method}`") })
        }
        Message::Invalid { error, .. } => Err(ClientError::Protocol { reason: error.message }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::daemon::{Ping, PingValue};

    /// Plays the daemon: answers are given beforehand, requests are kept.
    #[derive(Debug)]
    struct Script {
        answers: io::Cursor<Vec<u8>>,
        requests: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            // In crumbs, as a slow socket would.
            let count = into.len().min(7);
            self.answers.read(&mut into[..count])
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.requests.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn client(answers: &str) -> Client<Script> {
        Client::new(Script { answers: io::Cursor::new(answers.as_bytes().to_vec()), requests: Vec::new() })
    }

    #[test]
    fn a_call_gets_its_result_and_notifications_wait_for_their_reader() {
        let mut client = client(concat!(
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"a":1}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","id":1,"result":{"value":5}}"#,
            "\nrest",
        ));
        assert_eq!(client.call::<Ping>(&PingValue { value: Some(5) }).unwrap().value, Some(5));
        let notification = client.next_notification().unwrap();
        assert_eq!(notification.method, "session/update");
        assert_eq!(notification.params.unwrap().get(), r#"{"a":1}"#);
        let parts = client.into_parts();
        assert_eq!(
            String::from_utf8(parts.stream.requests).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon/ping\",\"params\":{\"value\":5}}\n"
        );
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_remedy_and_the_client_goes_on() {
        let mut client = client(concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":{"kind":"conflict","message":"no","remedy":"wait","retryable":false}}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
            "\n",
        ));
        let error = client.call_raw("daemon/ping", None).unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::Conflict));
        assert_eq!(client.call_raw("daemon/ping", None).unwrap().get(), "{}");
    }

    #[test]
    fn an_error_without_id_ends_the_call() {
        let line = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"frame is not JSON"}}"#;
        let error = client(&format!("{line}\n")).call_raw("a", None).unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::ParseError));
    }

    #[test]
    fn a_closed_connection_and_a_strange_frame_are_told_apart() {
        assert!(matches!(client("").call_raw("a", None), Err(ClientError::Closed)));
        assert!(matches!(client("hello\n").call_raw("a", None), Err(ClientError::Protocol { .. })));
        let other = "{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":1}\n";
        assert!(matches!(client(other).call_raw("a", None), Err(ClientError::Protocol { .. })));
    }
}
