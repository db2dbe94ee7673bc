//! Limits, cancellation, slow clients, the end.

use std::os::unix::fs::MetadataExt;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_request_holds_up_nobody() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let (mut one, mut other) = (harness.client(), harness.client());
    one.send(request("\"stuck\"", "daemon/reload", &json!({})));
    one.expect_alive();
    other.expect_alive();
    let reply = harness.held_reply().await;
    reply.send(Err(WireError::new(ErrorKind::ConfigInvalid, "line 3")));
    let answer = one.line();
    assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&json!("stuck"), &json!("config_invalid")));
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_past_the_limit_are_busy_and_the_rest_are_answered() {
    let mut harness = Harness::start(SocketLimits { in_flight_requests: 2, ..SocketLimits::default() }).await;
    let mut wire = harness.client();
    for id in 1..=3 {
        wire.send(request(id, "daemon/reload", &json!({})));
    }
    let answer = wire.line();
    assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&json!(3), &json!("busy")));
    assert_eq!(answer["error"]["data"]["retryable"], true);
    drop(harness.held_reply().await);
    assert_eq!(wire.line()["id"], 1);
    wire.expect_alive();
    drop(harness.held_reply().await);
    assert_eq!(wire.line()["id"], 2);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_is_answered_once() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    for (id, method) in [(1, "daemon/status"), (2, "daemon/reload")] {
        wire.send(request(id, method, &json!({})));
        wire.send(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel\",\"params\":{{\"id\":{id}}}}}\n"));
        let answer = wire.line();
        assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&json!(id), &json!("cancelled")));
    }
    // What the actor answers later finds nobody.
    drop(harness.held_reply().await);
    wire.send("{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel\",\"params\":{\"id\":99}}\n");
    wire.expect_alive();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_is_not_read_and_others_are() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut slow = harness.client();
    let mut other = harness.client();
    slow.stream.set_nonblocking(true).unwrap();
    let ask = request(1, "log/query", &json!({"limit": 64 * 1024}));
    let (mut asked, mut written) = (0, 0);
    // Until the daemon reads no more. Far more answers than the socket's buffer and the limit hold are never made.
    let began = Instant::now();
    let mut blocked_since = None;
    while began.elapsed() < LIMIT
        && blocked_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(300))
    {
        match slow.stream.write(&ask.as_bytes()[written..]) {
            Ok(count) => {
                blocked_since = None;
                written += count;
                if written == ask.len() {
                    (asked, written) = (asked + 1, 0);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                blocked_since.get_or_insert_with(Instant::now);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("failed to write: {error}"),
        }
    }
    assert!(blocked_since.is_some(), "{asked} requests were taken without one answer being read");
    other.expect_alive();
    // Once it reads, it gets every answer.
    slow.stream.set_nonblocking(false).unwrap();
    let rest = ask.as_bytes()[written..].to_vec();
    let mut writing = slow.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&rest).unwrap());
    for _ in 0..=asked {
        assert_eq!(slow.line()["result"]["lines"][0]["message"].as_str().unwrap().len(), 64 * 1024);
    }
    writer.join().unwrap();
    slow.expect_alive();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_closed_but_not_one_that_waits_for_an_answer() {
    let limits = SocketLimits { idle: Duration::from_millis(50), ..SocketLimits::default() };
    let mut harness = Harness::start(limits).await;
    let mut waiting = harness.client();
    waiting.send(request(1, "daemon/reload", &json!({})));
    let reply = harness.held_reply().await;
    let mut silent = harness.client();
    silent.expect_closed();
    drop(reply);
    assert_eq!(waiting.line()["id"], 1);
    waiting.expect_closed();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_says_who_they_are_is_closed() {
    let limits = SocketLimits { handshake: Duration::from_millis(50), ..SocketLimits::default() };
    let harness = Harness::start(limits).await;
    harness.raw().expect_closed();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_is_told_so() {
    let harness = Harness::start(SocketLimits { connections: 1, ..SocketLimits::default() }).await;
    let mut first = harness.client();
    let mut second = harness.raw();
    assert_eq!(second.line()["error"]["data"]["kind"], "busy");
    second.expect_closed();
    first.expect_alive();
    drop(first);
    eventually("the first connection is gone", || harness.server.connections() == 0).await;
    harness.client().expect_alive();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_lets_requests_in_flight_finish() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let (mut wire, mut idle) = (harness.client(), harness.client());
    wire.send(request(1, "daemon/reload", &json!({})));
    let reply = harness.held_reply().await;
    let stopping = tokio::spawn({
        let server = harness.server.clone();
        async move { server.stop().await }
    });
    idle.expect_closed();
    let path = harness.path();
    eventually("the socket's file is gone", || !path.exists()).await;
    reply.send(Err(WireError::new(ErrorKind::Stopping, "bye")));
    assert_eq!(wire.line()["error"]["message"], "bye");
    wire.expect_closed();
    stopping.await.unwrap();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_does_not_wait_for_ever() {
    let mut harness =
        Harness::start(SocketLimits { finish: Duration::from_millis(50), ..SocketLimits::default() }).await;
    let mut wire = harness.client();
    wire.send(request(1, "daemon/reload", &json!({})));
    let _never_answered = harness.held_reply().await;
    tokio::time::timeout(LIMIT, harness.server.stop()).await.unwrap();
    wire.expect_closed();
    harness.supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_ends_closes_all_connections() {
    let harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    tokio::time::timeout(LIMIT, harness.supervisor.stop()).await.unwrap();
    wire.expect_closed();
    assert!(!harness.path().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocking_client_speaks_with_it() {
    use holdfast_protocol::client::Client;
    use holdfast_protocol::methods::daemon::PingValue;
    use holdfast_protocol::methods::rpc::{Discover, PeerInfo};

    let harness = Harness::start(SocketLimits::default()).await;
    let mut client = Client::new(connect(&harness.path()).unwrap());
    let hello = client.initialize(PeerInfo { name: "test".to_owned(), version: "1".to_owned() }).unwrap();
    assert_eq!((hello.generation, hello.capabilities.acp_attach), (7, true));
    assert_eq!(client.call::<Ping>(&PingValue { value: Some(3) }).unwrap().value, Some(3));
    let document = client.call::<Discover>(&holdfast_protocol::methods::Empty {}).unwrap();
    assert_eq!(document["info"]["version"], "1.2.3");
    assert_eq!(client.call_raw("no/such", None).unwrap_err().kind(), Some(ErrorKind::MethodNotFound));
    drop(client);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_one_connection_ends_only_that_one() {
    let directory = tempfile::tempdir().unwrap();
    let harness = Harness::start(SocketLimits::default()).await;
    let mut other = harness.client();
    let (attached, _never) = mpsc::unbounded_channel();
    let asked = std::sync::atomic::AtomicBool::new(false);
    let service = SocketService {
        router: Arc::new(RouterBuilder::new().build("1")),
        acp: Arc::new(Attaching(attached)),
        identity: Arc::new(move || {
            assert!(asked.swap(true, std::sync::atomic::Ordering::Relaxed), "on purpose, the first time");
            Identity {
                version: "1".to_owned(),
                instance_id: InstanceId("0199a3c2-0000-7000-8000-000000000001".parse().unwrap()),
                generation: 1,
            }
        }),
        limits: SocketLimits::default(),
    };
    let path = directory.path().join("second.sock");
    let server = SocketServer::start(bind(&path).unwrap(), service, &harness.supervisor).await.unwrap();
    let mut first = Wire::new(connect(&path).unwrap());
    first.send(INITIALIZE);
    first.expect_closed();
    let mut second = Wire::new(connect(&path).unwrap());
    second.send(INITIALIZE);
    assert_eq!(second.line()["result"]["generation"], 1);
    other.expect_alive();
    server.stop().await;
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_file_in_the_sockets_place_is_not_removed_at_the_end() {
    let harness = Harness::start(SocketLimits::default()).await;
    std::fs::remove_file(harness.path()).unwrap();
    let successor = bind(&harness.path()).unwrap();
    let inode = std::fs::symlink_metadata(harness.path()).unwrap().ino();
    harness.server.stop().await;
    assert_eq!(std::fs::symlink_metadata(harness.path()).unwrap().ino(), inode);
    assert_eq!(successor.path(), harness.path());
    harness.supervisor.stop().await;
}
