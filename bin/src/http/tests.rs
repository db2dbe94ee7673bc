//! The admin HTTP over real loopback connections, in raw bytes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_actors::health::{HealthProbe, Observations, ServingPhase};
use holdfast_actors::ports::SystemClock;
use holdfast_actors::root::{Listener, ListenerStatus};
use holdfast_protocol::error::ErrorKind;
use holdfast_stores::config::{ConfigSnapshot, Overrides, SectionDescriptor, SectionRegistry};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::access::Grant;
use super::*;

/// Answers with what it was asked, and with an error when asked for `fail`.
struct Echo;

impl Dispatch for Echo {
    fn dispatch(&self, frame: Vec<u8>, caller: HttpCaller) -> BoxFuture<'static, Vec<u8>> {
        Box::pin(async move {
            let Ok(request) = serde_json::from_slice::<Value>(&frame) else { return b"{}".to_vec() };
            if request.get("id").is_none() {
                return Vec::new();
            }
            if request["method"] == "daemon/reload" {
                let error = holdfast_protocol::error::WireError::new(ErrorKind::ConfigInvalid, "line 3 is wrong");
                return json!({"jsonrpc": "2.0", "id": 0, "error": error.to_object()}).to_string().into_bytes();
            }
            let grant = if caller.grant == Grant::Token { "token" } else { "same_user" };
            let result = json!({"asked": request, "grant": grant});
            json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string().into_bytes()
        })
    }
}

struct Rig {
    http: HttpListener,
    home: tempfile::TempDir,
}

impl Rig {
    fn new(limits: HttpLimits) -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock::new());
        let health = HealthProbe::new("1.2.3", clock, Vec::new(), || Observations {
            phase: ServingPhase::Serving,
            generation: 1,
            surfaces: Vec::new().into(),
            listeners: Vec::new(),
        });
        let http = HttpListener::new(Arc::new(Echo), health, &home.path().join("http-token"), [7; 32], limits);
        Self { http, home }
    }

    /// Listens on a port that the system chose just now; other tests may run beside this one.
    async fn start(limits: HttpLimits) -> Self {
        let mut rig = Self::new(limits);
        loop {
            rig.apply(&config(free_port())).await.unwrap();
            if matches!(rig.http.state(), HttpState::Listening(_)) {
                return rig;
            }
        }
    }

    async fn apply(&mut self, config: &GatewayConfig) -> Result<(), holdfast_protocol::error::WireError> {
        self.http.prepare(config).await?;
        self.http.commit().await;
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        match self.http.state() {
            HttpState::Listening(address) => *address,
            other => panic!("not listening: {other:?}"),
        }
    }

    fn token(&self) -> String {
        let path: PathBuf = self.home.path().join("http-token");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Sends a request with the headers given and nothing else but its length; returns status and body.
    async fn send(&self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        request(self.address(), line, headers, body).await
    }

    fn host(&self) -> String {
        self.address().to_string()
    }
}

fn config(port: u16) -> GatewayConfig {
    GatewayConfig { port: Some(port), ..GatewayConfig::default() }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn request(address: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    stream.write_all(text.as_bytes()).await.unwrap();
    answer(&mut stream).await
}

async fn answer(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    (status, body.to_owned())
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"daemon/ping","params":{}}"#;

#[tokio::test]
async fn the_paths_answer_our_own_user() {
    let rig = Rig::start(HttpLimits::default()).await;
    let host = rig.host();
    let host = ("Host", host.as_str());
    assert_eq!(rig.send("GET /health", &[], "").await, (200, "ok\n".to_owned()));
    assert_eq!(rig.send("GET /ready", &[], "").await, (200, "ready\n".to_owned()));
    let (status, body) = rig.send("GET /metrics", &[host], "").await;
    assert_eq!(status, 200);
    assert!(body.contains("holdfast_build_info{version=\"1.2.3\"} 1\n"));
    let (status, body) = rig.send("GET /api/health", &[host], "").await;
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()["status"].clone()), (200, "ok".into()));
    let (status, body) = rig.send("POST /api/rpc", &[host, JSON], CALL).await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&answer["id"], &answer["result"]["grant"]), (&json!(7), &json!("same_user")));
    assert_eq!(rig.send("POST /api/rpc", &[host, JSON], r#"{"jsonrpc":"2.0","method":"x"}"#).await.0, 204);
    let (status, body) = rig.send("GET /api/sessions?limit=5&agent=demo", &[host], "").await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["asked"]["method"], "session/list");
    assert_eq!(answer["asked"]["params"], json!({"limit": 5, "agent": "demo"}));
    assert_eq!(rig.send("GET /api/sessions?limit=x", &[host], "").await.0, 400);
    let (status, body) = rig.send("GET /api/status", &[host], "").await;
    assert_eq!(status, 200);
    assert!(body.contains("daemon/status"));
    assert_eq!(rig.send("POST /admin/shutdown", &[host], "").await.0, 200);
    let (status, body) = rig.send("POST /admin/reload", &[host], "").await;
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &error["error"]["data"]["kind"]), (400, &json!("config_invalid")));
    assert_eq!(rig.send("GET /admin/reload", &[host], "").await.0, 405);
    let (status, body) = rig.send("GET /nothing", &[host], "").await;
    assert_eq!((status, body.contains("\"not_found\"")), (404, true));
}

#[tokio::test]
async fn rebinding_and_hostile_pages_are_refused_typed() {
    let rig = Rig::start(HttpLimits::default()).await;
    let (host, port) = (rig.host(), rig.address().port());
    let host = ("Host", host.as_str());
    let rebound = format!("evil.example:{port}");
    let own_origin = format!("http://127.0.0.1:{port}");
    for (headers, expected) in [
        (vec![("Host", rebound.as_str())], 403),
        (vec![], 400),
        (vec![host, ("Origin", "http://evil.example")], 403),
        (vec![host, ("Origin", "null")], 403),
        (vec![host, ("Sec-Fetch-Site", "cross-site")], 403),
        (vec![host, ("Origin", own_origin.as_str()), ("Sec-Fetch-Site", "same-origin")], 200),
    ] {
        let mut headers = headers;
        headers.push(JSON);
        let (status, body) = rig.send("POST /api/rpc", &headers, CALL).await;
        // Whether a missing Host is refused by the protocol or by us, it is refused.
        let expected = if expected == 400 && status == 403 { 403 } else { expected };
        assert_eq!(status, expected, "{headers:?} {body}");
        if status == 403 {
            let error: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(error["error"]["data"]["kind"], "denied");
            assert!(error["error"]["data"]["remedy"].is_string());
        }
        if expected != 200 {
            for path in ["POST /admin/shutdown", "GET /metrics", "GET /api/status", "GET /nothing"] {
                assert_ne!(rig.send(path, &headers, "").await.0, 200, "{path} {headers:?}");
            }
        }
    }
    let form = ("Content-Type", "text/plain");
    assert_eq!(rig.send("POST /api/rpc", &[host, form], CALL).await.0, 415);
}

#[tokio::test]
async fn tokens_open_and_wrong_ones_are_slowed_down() {
    let rig = Rig::start(HttpLimits::default()).await;
    let right = format!("Bearer {}", rig.token());
    let right = ("Authorization", right.as_str());
    let (status, body) = rig.send("POST /api/rpc", &[("Host", "anything.example"), right], CALL).await;
    assert_eq!(status, 200);
    assert!(body.contains("\"grant\":\"token\""));
    let wrong = ("Authorization", "Bearer hdf_wrong");
    let mut statuses = Vec::new();
    for _ in 0..25 {
        statuses.push(rig.send("POST /api/rpc", &[("Host", "x"), wrong], CALL).await.0);
    }
    assert_eq!(statuses[..20], [401; 20]);
    assert_eq!(statuses[20..], [429; 5]);
    // The lock-out is for tokens; our own user is known by the connection.
    let host = rig.host();
    assert_eq!(rig.send("POST /api/rpc", &[("Host", &host), JSON], CALL).await.0, 200);
}

#[tokio::test]
async fn large_bodies_and_headers_are_refused_and_nobody_else_harmed() {
    let limits = HttpLimits { body_bytes_max: 1000, header_bytes_max: 8192, ..HttpLimits::default() };
    let rig = Rig::start(limits).await;
    let host = rig.host();
    let host = ("Host", host.as_str());
    let (status, body) = rig.send("POST /api/rpc", &[host, JSON], &"x".repeat(1001)).await;
    assert_eq!((status, body.contains("too_large")), (413, true));
    // Length not declared.
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    let head = format!(
        "POST /api/rpc HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n",
        host.1
    );
    stream.write_all(format!("{head}7d0\r\n{}\r\n0\r\n\r\n", "x".repeat(2000)).as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 413);
    let long = "x".repeat(20_000);
    assert_eq!(rig.send("GET /api/status", &[host, ("X-Long", &long)], "").await.0, 431);
    let many: Vec<(&str, &str)> = std::iter::once(host).chain((0..100).map(|_| ("X-Many", "1"))).collect();
    assert_eq!(rig.send("GET /api/status", &many, "").await.0, 431);
    assert_eq!(rig.send("GET /api/status", &[host], "").await.0, 200);
}

#[tokio::test]
async fn slow_headers_and_bodies_end_and_idle_connections_close() {
    let limits = HttpLimits {
        header_time: Duration::from_millis(200),
        body_time: Duration::from_millis(200),
        connections_max: 2,
        ..HttpLimits::default()
    };
    let rig = Rig::start(limits).await;
    let host = rig.host();
    // Both places are taken by clients that send half a request; the third waits for the first to be thrown out.
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(rig.address()).await.unwrap();
        stream.write_all(b"GET /api/status HTTP/1.1\r\nHost: ").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(rig.send("GET /api/status", &[("Host", &host)], "").await.0, 200);
    for mut stream in slow {
        let mut bytes = Vec::new();
        // Closed, with or without a word.
        stream.read_to_end(&mut bytes).await.unwrap();
    }
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    let head = format!(
        "POST /api/rpc HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\
         Connection: close\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 408);
    // A kept connection without a next request.
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 200);
}

#[tokio::test]
async fn a_taken_port_fails_alone_and_an_unset_one_finds_another() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut rig = Rig::new(HttpLimits::default());
    rig.apply(&config(port)).await.unwrap();
    assert!(matches!(rig.http.state(), HttpState::Failed(reason) if reason.contains(&port.to_string())));
    // A reload that changes nothing about it is not refused for it.
    rig.apply(&config(port)).await.unwrap();
    assert!(matches!(rig.http.state(), HttpState::Failed(_)));
    // Unset: 7420 or any other, whatever else runs on this machine.
    let unset = GatewayConfig::default();
    let default_port_taken = std::net::TcpListener::bind("127.0.0.1:7420");
    rig.apply(&unset).await.unwrap();
    let address = rig.address();
    if default_port_taken.is_ok() {
        assert_ne!(address.port(), 7420);
    }
    drop(default_port_taken);
    assert_eq!(request(address, "GET /health", &[], "").await.0, 200);
    // A reload does not move it, though 7420 may be free by now.
    rig.apply(&unset).await.unwrap();
    assert_eq!(rig.address(), address);
}

#[tokio::test]
async fn a_move_is_bound_before_and_connections_finish() {
    let mut rig = Rig::start(HttpLimits::default()).await;
    let before = rig.address();
    // Refused: nothing changes.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = rig.apply(&config(taken.local_addr().unwrap().port())).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ConfigInvalid);
    assert_eq!(request(before, "GET /health", &[], "").await.0, 200);
    // Prepared and given up: nothing changes, and the address is free again.
    let next = free_port();
    rig.http.prepare(&config(next)).await.unwrap();
    rig.http.abort().await;
    drop(std::net::TcpListener::bind(("127.0.0.1", next)).unwrap());
    assert_eq!(rig.address(), before);
    // Moved in the middle of a request.
    let mut stream = TcpStream::connect(before).await.unwrap();
    let head = format!(
        "POST /api/rpc HTTP/1.1\r\nHost: {before}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Expect: 100-continue\r\n\r\n",
        CALL.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The interim answer shows that the request is being served.
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"));
    loop {
        // Another test may have taken the port meanwhile.
        if rig.apply(&config(free_port())).await.is_ok() {
            break;
        }
    }
    let after = rig.address();
    assert_ne!(before, after);
    assert_eq!(request(after, "GET /health", &[], "").await.0, 200);
    assert!(TcpStream::connect(before).await.is_err());
    stream.write_all(CALL.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 200);
    // Off, and stopped.
    rig.apply(&GatewayConfig { enabled: false, ..GatewayConfig::default() }).await.unwrap();
    assert_eq!(*rig.http.state(), HttpState::Off);
    assert!(TcpStream::connect(after).await.is_err());
    rig.http.stop().await;
}

/// A snapshot of a file that holds only `gateway`.
fn snapshot(gateway: &str, home: &tempfile::TempDir) -> ConfigSnapshot {
    let registry = SectionRegistry::new([SectionDescriptor::of::<GatewayConfig>()]).unwrap();
    let text = format!("[gateway]\n{gateway}\n");
    ConfigSnapshot::read(&home.path().join("config.toml"), text.as_bytes(), &registry, &Overrides::default()).unwrap()
}

#[tokio::test]
async fn the_root_sees_where_it_listens_or_why_not() {
    let mut rig = Rig::start(HttpLimits::default()).await;
    let url = format!("http://{}", rig.address());
    let listener: &mut dyn Listener<ConfigSnapshot> = &mut rig.http;
    assert_eq!(listener.status().address, Some(url));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let moved = snapshot(&format!("port = {}", taken.local_addr().unwrap().port()), &rig.home);
    assert_eq!(listener.prepare(&moved).await.unwrap_err().kind, ErrorKind::ConfigInvalid);
    listener.abort().await;
    listener.prepare(&snapshot("enabled = false", &rig.home)).await.unwrap();
    listener.commit().await;
    assert_eq!(listener.status(), ListenerStatus { name: "http", address: None, failed: None });
    // A section that cannot be used, as at a start.
    listener.prepare(&snapshot("host = 'example.org'", &rig.home)).await.unwrap();
    listener.commit().await;
    assert!(listener.status().failed.unwrap().contains("example.org"));
    listener.stop().await;
}
