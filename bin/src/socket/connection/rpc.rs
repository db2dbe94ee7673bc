//! A connection that speaks JSON-RPC: one task reads, dispatches and writes.

use std::io;
use std::sync::Arc;

use holdfast_actors::channel::{Frame, FrameReceiver, channel};
use holdfast_actors::router::{Call, Caller, Origin, Responder};
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::jsonrpc::{
    Frame as Parsed, Id, IdText, Message, OwnedId, parse_frame, parse_params, write_error, write_result,
};
use holdfast_protocol::method::Method;
use holdfast_protocol::methods::acp::{Attach, AttachParams, AttachResult};
use holdfast_protocol::methods::rpc::{
    CANCEL, CancelParams, Capabilities, Initialize, InitializeParams, InitializeResult, PROTOCOL_VERSION, PeerInfo,
};
use serde_json::value::RawValue;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Duration, Instant};

use super::requests::{BatchPlace, Requests};
use super::writer::Writer;
use super::{Connected, Stop, hung_up, raw, read_now};
use crate::socket::{RawChannel, SocketService};

/// How long the rest of an oversized frame is read and dropped, so that the client gets to read why.
const LINGER: Duration = Duration::from_secs(5);

/// How long a client that was told why may be silent before its connection closes.
const LINGER_SILENCE: Duration = Duration::from_millis(250);

/// Serves a connection to its end.
///
/// # Errors
/// What reading from or writing to it failed with.
pub(super) async fn serve(
    stream: Arc<UnixStream>,
    peer: Connected,
    service: SocketService,
    mut stop: Stop,
) -> io::Result<()> {
    let mut session = Session::new(&stream, peer, service);
    match session.run(&mut stop).await? {
        End::Closed => Ok(()),
        End::Linger => linger(&stream).await,
        End::Attached(start) => {
            let Session { service, mut lines, outgoing, call, writer, .. } = session;
            lines.set_limit_bytes(service.limits.acp_frame_bytes);
            let (incoming_sender, incoming) = channel(service.limits.queue_bytes);
            start(RawChannel { incoming, outgoing: call.outgoing });
            raw::serve(&stream, lines, incoming_sender, outgoing, writer, stop, service.limits.finish).await
        }
    }
}

/// How the RPC mode ended.
enum End {
    Closed,
    /// The client sent more than it may and was told so.
    Linger,
    Attached(crate::socket::AcpStart),
}

/// Whether more requests are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The client sends no more; what is in flight is still answered.
    Done,
    /// The client is gone, and nothing can reach it.
    Gone,
    /// A frame was too long.
    TooLong,
}

/// A request to attach: ends the parsing of lines, since what follows may be ACP.
struct AttachRequest {
    id: OwnedId,
    params: AttachParams,
}

struct Session<'a> {
    stream: &'a UnixStream,
    service: SocketService,
    lines: LineBuffer,
    writer: Writer,
    outgoing: FrameReceiver,
    call: Call,
    requests: Requests,
    initialized: bool,
    reading: Reading,
    last_traffic: Instant,
}

impl<'a> Session<'a> {
    fn new(stream: &'a UnixStream, peer: Connected, service: SocketService) -> Self {
        let limits = service.limits;
        let (sender, outgoing) = channel(limits.queue_bytes);
        let origin = Origin::Socket { uid: peer.uid, pid: peer.pid };
        let caller = Caller { origin, lineage: peer.lineage, client: None };
        let subscriptions = Arc::new(Semaphore::new(limits.subscriptions));
        Self {
            stream,
            lines: LineBuffer::new(limits.frame_bytes),
            writer: Writer::default(),
            outgoing,
            call: Call { caller: Arc::new(caller), outgoing: sender, subscriptions },
            requests: Requests::new(limits.in_flight_requests),
            initialized: false,
            reading: Reading::Open,
            last_traffic: Instant::now(),
            service,
        }
    }

    async fn run(&mut self, stop: &mut Stop) -> io::Result<End> {
        // The shorter one: which of the two holds is known when it fires.
        let first_look = self.service.limits.idle.min(self.service.limits.handshake);
        let silence = tokio::time::sleep_until(self.last_traffic + first_look);
        tokio::pin!(silence);
        // Set once the connection is to finish what is in flight and end.
        let mut finish_by: Option<Instant> = None;
        loop {
            if self.reading == Reading::Gone {
                return Ok(End::Closed);
            }
            self.gather();
            if self.writer.write_now(self.stream)? > 0 {
                self.last_traffic = Instant::now();
                // More may have come while that was written.
                if self.writer.is_empty() && self.call.outgoing.queued_bytes() > 0 {
                    continue;
                }
            }
            let finishing = finish_by.is_some() || self.reading != Reading::Open;
            if finishing && self.requests.is_empty() && self.writer.is_empty() {
                return Ok(if self.reading == Reading::TooLong { End::Linger } else { End::Closed });
            }
            if finishing && finish_by.is_none() && self.reading == Reading::TooLong {
                finish_by = Some(Instant::now() + self.service.limits.finish);
            }
            let read = !finishing && self.unread_bytes() < self.service.limits.unread_bytes;
            let write = !self.writer.is_empty();
            let interest = match (read, write) {
                (true, true) => Interest::READABLE | Interest::WRITABLE,
                (false, true) => Interest::WRITABLE,
                // Not awaited when neither is wanted.
                (true | false, false) => Interest::READABLE,
            };
            let mut taken = Vec::new();
            tokio::select! {
                ready = self.stream.ready(interest), if read || write => {
                    if ready?.is_readable() && read && let Some(attach) = self.read()? {
                        let mut attach = Some(attach);
                        while let Some(request) = attach.take() {
                            match self.attach(request).await {
                                Some(start) => return Ok(End::Attached(start)),
                                None => attach = self.take_lines(),
                            }
                        }
                    }
                }
                _count = self.outgoing.recv_many(&mut taken, 256), if !write => {
                    for frame in taken {
                        self.take_answer(frame.into_parts());
                    }
                }
                () = stop.asked(), if finish_by.is_none() => {
                    finish_by = Some(Instant::now() + self.service.limits.finish);
                }
                () = at(finish_by), if finish_by.is_some() => return Ok(End::Closed),
                () = &mut silence => {
                    let (now, ends) = (Instant::now(), self.silence_ends());
                    if ends <= now && self.is_idle() {
                        return Ok(End::Closed);
                    }
                    // One that waits for the daemon is looked at again later.
                    silence.as_mut().reset(if ends > now { ends } else { now + first_look });
                }
            }
        }
    }

    /// Bytes that the client has not read yet.
    fn unread_bytes(&self) -> usize {
        self.writer.pending_bytes() + self.call.outgoing.queued_bytes()
    }

    fn silence_ends(&self) -> Instant {
        let limits = &self.service.limits;
        self.last_traffic + if self.initialized { limits.idle } else { limits.handshake }
    }

    /// Says whether nothing can come but from the client, or the client takes nothing.
    fn is_idle(&self) -> bool {
        let waits_for_us = !self.requests.is_empty() || self.call.outgoing.senders() > 1;
        !waits_for_us || !self.writer.is_empty()
    }

    /// Takes the answers that are there into the next write.
    fn gather(&mut self) {
        while !self.writer.is_full() {
            let Some(frame) = self.outgoing.try_recv() else { return };
            self.take_answer(frame.into_parts());
        }
    }

    fn take_answer(&mut self, (frame, budget): (Frame, Option<tokio::sync::OwnedSemaphorePermit>)) {
        match frame.ticket {
            None => self.writer.append(frame.data, budget),
            Some(ticket) => {
                if let Some(line) = self.requests.settle(ticket, frame.data) {
                    self.writer.append(line, budget);
                }
            }
        }
    }

    /// Reads once and handles the lines that are whole.
    fn read(&mut self) -> io::Result<Option<AttachRequest>> {
        match read_now(self.stream, self.lines.spare_mut())? {
            None => Ok(None),
            Some(0) => {
                self.reading = Reading::Done;
                if let Some(Ok(line)) = self.lines.finish() {
                    let line = line.to_vec();
                    // A client that has closed its half cannot go on as an ACP channel.
                    let _closed = self.take_line(&line);
                }
                if hung_up(self.stream) {
                    self.reading = Reading::Gone;
                }
                Ok(None)
            }
            Some(count) => {
                self.last_traffic = Instant::now();
                self.lines.advance(count);
                Ok(self.take_lines())
            }
        }
    }

    fn take_lines(&mut self) -> Option<AttachRequest> {
        // Taken out, so that a line can be looked at while the rest of the session changes.
        let mut lines = std::mem::replace(&mut self.lines, LineBuffer::new(0));
        let mut attach = None;
        while attach.is_none() && self.reading == Reading::Open {
            match lines.next_line() {
                None => break,
                Some(Ok(line)) => attach = self.take_line(line),
                Some(Err(error)) => {
                    self.reading = Reading::TooLong;
                    self.refuse(None::<u64>, &WireError::new(ErrorKind::TooLarge, error.to_string()), None);
                }
            }
        }
        self.lines = lines;
        attach
    }

    fn take_line(&mut self, line: &[u8]) -> Option<AttachRequest> {
        match parse_frame(line) {
            Parsed::Single(message) => return self.take_message(message, None),
            Parsed::Batch(messages) => {
                let batch = self.requests.begin_batch(messages.len());
                for (index, message) in messages.into_iter().enumerate() {
                    // Refuses to attach: the answer of a batch has no place in an ACP channel.
                    let _refused = self.take_message(message, Some(Requests::place(batch, index)));
                }
            }
            Parsed::Invalid(error) => self.refuse(None::<u64>, &error, None),
        }
        None
    }

    fn take_message(&mut self, message: Message<'_>, place: Option<BatchPlace>) -> Option<AttachRequest> {
        match message {
            Message::Request { id, method, params } => return self.take_request(id, &method, params, place),
            Message::Notification { method, params } => self.take_notification(&method, params, place),
            // The daemon asks nothing of its clients.
            Message::Response { .. } => self.answer(Vec::new(), place),
            Message::Invalid { id, error } => self.refuse(id, &error, place),
        }
        None
    }

    fn take_request(
        &mut self,
        id: Id<'_>,
        method: &str,
        params: Option<&RawValue>,
        place: Option<BatchPlace>,
    ) -> Option<AttachRequest> {
        if method == Initialize::NAME {
            self.initialize(id, params, place);
            return None;
        }
        if !self.initialized {
            let error = WireError::new(ErrorKind::NotInitialized, "the first request of a connection is `initialize`")
                .with_remedy("send `initialize` with `protocol_version` and `client`, and wait for its answer");
            self.refuse(id, &error, place);
            return None;
        }
        if method == Attach::NAME {
            if place.is_some() {
                let error = WireError::new(ErrorKind::InvalidRequest, "`acp/attach` cannot be part of a batch");
                self.refuse(id, &error, place);
                return None;
            }
            match parse_params::<AttachParams>(params) {
                Ok(params) => return Some(AttachRequest { id: id.to_owned(), params }),
                Err(error) => self.refuse(id, &error, place),
            }
            return None;
        }
        let id = id.to_owned();
        let Some(ticket) = self.requests.admit(Some(id.clone()), place) else {
            let most = self.service.limits.in_flight_requests;
            let error = WireError::new(ErrorKind::Busy, format!("{most} requests of this connection are in flight"))
                .with_remedy("wait for some of their answers");
            self.refuse(id, &error, place);
            return None;
        };
        self.dispatch(Some(id), ticket, method, params);
        None
    }

    fn take_notification(&mut self, method: &str, params: Option<&RawValue>, place: Option<BatchPlace>) {
        if method == CANCEL {
            self.cancel(params);
        } else if self.initialized
            && let Some(ticket) = self.requests.admit(None, place)
        {
            return self.dispatch(None, ticket, method, params);
        }
        self.answer(Vec::new(), place);
    }

    fn dispatch(&mut self, id: Option<OwnedId>, ticket: u64, method: &str, params: Option<&RawValue>) {
        let responder = Responder::new(id, ticket, self.call.outgoing.clone());
        if let Some(cancel) = self.service.router.dispatch(&self.call, method, params, responder) {
            self.requests.cancellable(ticket, cancel);
        }
    }

    fn initialize(&mut self, id: Id<'_>, params: Option<&RawValue>, place: Option<BatchPlace>) {
        if self.initialized {
            let error = WireError::new(ErrorKind::InvalidRequest, "the connection is initialized already");
            return self.refuse(id, &error, place);
        }
        let params = match parse_params::<InitializeParams>(params) {
            Ok(params) => params,
            Err(error) => return self.refuse(id, &error, place),
        };
        if params.protocol_version == 0 {
            let error = WireError::new(ErrorKind::InvalidParams, "there is no protocol version 0")
                .with_remedy(format!("this daemon speaks version {PROTOCOL_VERSION}"))
                .at_path("protocol_version");
            return self.refuse(id, &error, place);
        }
        self.initialized = true;
        let caller = Caller { client: Some(params.client), ..Caller::clone(&self.call.caller) };
        self.call.caller = Arc::new(caller);
        let identity = (self.service.identity)();
        let result = InitializeResult {
            // A newer client learns what it has to make do with.
            protocol_version: PROTOCOL_VERSION,
            server: PeerInfo { name: "holdfast".to_owned(), version: identity.version },
            instance_id: identity.instance_id,
            generation: identity.generation,
            capabilities: Capabilities { batches: true, cancel: true, acp_attach: true },
            limits: self.service.limits.on_the_wire(),
        };
        let mut line = Vec::new();
        if let Err(error) = write_result(&mut line, id, &result) {
            tracing::error!(%error, "failed to write the answer to `initialize`");
        }
        self.answer(line, place);
    }

    fn cancel(&mut self, params: Option<&RawValue>) {
        let Ok(params) = parse_params::<CancelParams>(params) else { return };
        let Some(id) = Id::from_raw(params.id.get()).map(Id::to_owned) else { return };
        let error =
            WireError::new(ErrorKind::Cancelled, "the request was cancelled; what it had begun may still take effect");
        for ticket in self.requests.cancel(&id) {
            let mut line = Vec::new();
            write_error(&mut line, &id, &error);
            if let Some(line) = self.requests.settle(ticket, line) {
                self.queue(line);
            }
        }
    }

    /// Answers `acp/attach`. Returns what takes the connection over, if it is to.
    async fn attach(&mut self, request: AttachRequest) -> Option<crate::socket::AcpStart> {
        self.gather();
        if !self.requests.is_empty() {
            let error = WireError::new(ErrorKind::Conflict, "requests of this connection are in flight")
                .with_remedy("wait for their answers before `acp/attach`");
            self.refuse(request.id, &error, None);
            return None;
        }
        let agent = request.params.agent.clone();
        match self.service.acp.attach(&self.call.caller, request.params).await {
            Ok(start) => {
                let frame_bytes = u64::try_from(self.service.limits.acp_frame_bytes).unwrap_or(u64::MAX);
                let mut line = Vec::new();
                if let Err(error) = write_result(&mut line, request.id, &AttachResult { agent, frame_bytes }) {
                    tracing::error!(%error, "failed to write the answer to `acp/attach`");
                }
                self.queue(line);
                Some(start)
            }
            Err(error) => {
                self.refuse(request.id, &error, None);
                None
            }
        }
    }

    /// Answers with an error.
    fn refuse(&mut self, id: impl IdText, error: &WireError, place: Option<BatchPlace>) {
        let mut line = Vec::new();
        write_error(&mut line, id, error);
        self.answer(line, place);
    }

    /// Answers a message that is no request in flight; empty for one that gets no answer.
    fn answer(&mut self, line: Vec<u8>, place: Option<BatchPlace>) {
        let line = match place {
            Some(place) => self.requests.settle_place(place, line),
            None => Some(line),
        };
        if let Some(line) = line {
            self.queue(line);
        }
    }

    /// Puts a line behind what is queued already.
    fn queue(&self, line: Vec<u8>) {
        if !line.is_empty() {
            // The receiver is ours and alive.
            let _open = self.call.outgoing.push_now(line);
        }
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Reads and drops what the client still sends, for a while. To close with unread bytes would reset the connection, and the
/// client might never see why.
async fn linger(stream: &UnixStream) -> io::Result<()> {
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?;
    let ends = Instant::now() + LINGER;
    let mut dropped = vec![0; 64 * 1024];
    loop {
        let quiet = (Instant::now() + LINGER_SILENCE).min(ends);
        match tokio::time::timeout_at(quiet, stream.readable()).await {
            Err(_silent) => return Ok(()),
            Ok(ready) => ready?,
        }
        if read_now(stream, &mut dropped)? == Some(0) {
            return Ok(());
        }
    }
}
