//! The socket over a real unix socket in a temporary directory, with a small router behind it.

mod channel;
mod flow;
mod frames;
mod place;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use holdfast_actors::ports::Ports;
use holdfast_actors::reply::Reply;
use holdfast_actors::router::{Caller, RouterBuilder};
use holdfast_actors::supervisor::DynamicSupervisor;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::ids::InstanceId;
use holdfast_protocol::methods::acp::AttachParams;
use holdfast_protocol::methods::daemon::{Ping, Reload, ReloadReport, Shutdown, Status};
use holdfast_protocol::methods::log::{LogLine, Query, QueryResult};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{AcpAttach, AcpStart, Identity, RawChannel, SocketLimits, SocketServer, SocketService, bind, connect};

/// How long a test waits for what has to happen.
const LIMIT: Duration = Duration::from_secs(20);

type HeldReply = Reply<Result<ReloadReport, WireError>>;

struct Harness {
    directory: TempDir,
    server: SocketServer,
    supervisor: DynamicSupervisor,
    /// Replies of `daemon/reload`, which nobody answers but the test.
    held: mpsc::UnboundedReceiver<HeldReply>,
    /// Channels of connections that attached.
    attached: mpsc::UnboundedReceiver<RawChannel>,
}

struct Attaching(mpsc::UnboundedSender<RawChannel>);

impl AcpAttach for Attaching {
    fn attach(&self, _caller: &Caller, params: AttachParams) -> BoxFuture<'static, Result<AcpStart, WireError>> {
        let sender = self.0.clone();
        Box::pin(async move {
            if params.agent.as_str() != "demo" {
                return Err(WireError::new(ErrorKind::NotFound, format!("no agent `{}`", params.agent)));
            }
            let start: AcpStart = Box::new(move |channel| drop(sender.send(channel)));
            Ok(start)
        })
    }
}

impl Harness {
    async fn start(limits: SocketLimits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (held_sender, held) = mpsc::unbounded_channel();
        let (attached_sender, attached) = mpsc::unbounded_channel();
        let mut router = RouterBuilder::new();
        router.on::<Ping>(|_call, value, reply| reply.send(Ok(value)));
        router.on::<Reload>(move |_call, _params, reply| drop(held_sender.send(reply)));
        router.on_async::<Status, _, _>(|_call, _params| std::future::pending());
        router.on::<Shutdown>(|_call, _params, _reply| panic!("on purpose"));
        router.on::<Query>(|_call, params, reply| {
            let message = "x".repeat(params.limit.unwrap_or(0).try_into().unwrap());
            let line = LogLine {
                seq: 1,
                time_ms: 0,
                level: "info".to_owned(),
                target: String::new(),
                message,
                repeated: None,
                fields: Map::new(),
                facts: Map::new(),
            };
            reply.send(Ok(QueryResult { lines: vec![line], next: None, missed: false, unreadable: 0 }));
        });
        let service = SocketService {
            router: Arc::new(router.build("1.2.3")),
            acp: Arc::new(Attaching(attached_sender)),
            identity: Arc::new(|| Identity {
                version: "1.2.3".to_owned(),
                instance_id: InstanceId("0199a3c2-0000-7000-8000-000000000001".parse().unwrap()),
                generation: 7,
            }),
            limits,
        };
        let supervisor = DynamicSupervisor::start(&Ports::system(), 1, None).await.unwrap();
        let bound = bind(&directory.path().join("holdfast.sock")).unwrap();
        let server = SocketServer::start(bound, service, &supervisor).await.unwrap();
        Self { directory, server, supervisor, held, attached }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("holdfast.sock")
    }

    fn raw(&self) -> Wire {
        Wire::new(connect(&self.path()).unwrap())
    }

    /// Connects and initializes.
    fn client(&self) -> Wire {
        let mut wire = self.raw();
        wire.send(INITIALIZE);
        assert_eq!(wire.line()["result"]["generation"], 7);
        wire
    }

    async fn held_reply(&mut self) -> HeldReply {
        tokio::time::timeout(LIMIT, self.held.recv()).await.unwrap().unwrap()
    }

    async fn attached_channel(&mut self) -> RawChannel {
        tokio::time::timeout(LIMIT, self.attached.recv()).await.unwrap().unwrap()
    }

    async fn end(self) {
        self.server.stop().await;
        assert_eq!(self.server.connections(), 0);
        assert!(!self.path().exists(), "the socket's file was left behind");
        self.supervisor.stop().await;
    }
}

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","#,
    r#""params":{"protocol_version":1,"client":{"name":"test","version":"1"}}}"#,
    "\n",
);

fn request(id: impl std::fmt::Display, method: &str, params: &Value) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

fn ping(id: impl std::fmt::Display) -> String {
    request(id, "daemon/ping", &json!({"value": 5}))
}

/// A client that shows every byte.
struct Wire {
    stream: UnixStream,
    lines: LineBuffer,
}

impl Wire {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { stream, lines: LineBuffer::new(64 * 1024 * 1024) }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads one line as text; `None` at the end of the stream.
    fn text(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.next_line() {
                return Some(String::from_utf8(line.unwrap().to_vec()).unwrap());
            }
            match self.stream.read(self.lines.spare_mut()) {
                Ok(0) => return None,
                Ok(count) => self.lines.advance(count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("failed to read: {error}"),
            }
        }
    }

    fn line(&mut self) -> Value {
        serde_json::from_str(&self.text().expect("the connection was closed")).unwrap()
    }

    fn expect_closed(&mut self) {
        assert_eq!(self.text(), None);
    }

    /// Says that the connection works: a good request is the next to be answered.
    fn expect_alive(&mut self) {
        self.send(ping(424_242));
        assert_eq!(self.line(), json!({"jsonrpc": "2.0", "id": 424_242, "result": {"value": 5}}));
    }
}

/// Waits for a state, not for a time.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not become true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
