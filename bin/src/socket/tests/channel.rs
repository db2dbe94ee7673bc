//! Connections that turn into ACP channels.

use holdfast_actors::channel::FrameTooLong;

use super::*;

fn attach(agent: &str) -> String {
    request("\"a\"", "acp/attach", &json!({"agent": agent}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_answer_everything_is_raw() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    // Frames right behind the request belong to the channel already.
    wire.send(format!("{}not even JSON\n{{\"b\":2}}\n", attach("demo")));
    assert_eq!(wire.line()["result"], json!({"agent": "demo", "frame_bytes": 64 * 1024 * 1024}));
    let mut channel = harness.attached_channel().await;
    assert_eq!(*channel.incoming.recv().await.unwrap(), Ok(b"not even JSON".to_vec()));
    assert_eq!(*channel.incoming.recv().await.unwrap(), Ok(b"{\"b\":2}".to_vec()));
    channel.outgoing.push(b"{\"any\":\"thing\"}\n".to_vec()).await.unwrap();
    assert_eq!(wire.text().unwrap(), "{\"any\":\"thing\"}");
    let large = vec![b'x'; 20 * 1024 * 1024];
    let mut writing = wire.stream.try_clone().unwrap();
    let writer = std::thread::spawn({
        let large = large.clone();
        move || {
            writing.write_all(&large).unwrap();
            writing.write_all(b"\n").unwrap();
        }
    });
    assert!(*channel.incoming.recv().await.unwrap() == Ok(large), "a frame over the RPC limit did not pass");
    writer.join().unwrap();
    wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(channel.incoming.recv().await.is_none());
    channel.outgoing.push(b"last words\n".to_vec()).await.unwrap();
    drop(channel);
    assert_eq!(wire.text().unwrap(), "last words");
    wire.expect_closed();
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_leaves_the_connection_as_it_was() {
    let mut harness = Harness::start(SocketLimits::default()).await;
    let mut wire = harness.client();
    wire.send(format!("{}{}", attach("nobody"), ping(2)));
    assert_eq!(wire.line()["error"]["data"]["kind"], "not_found");
    assert_eq!(wire.line()["id"], 2);
    wire.send(request(3, "acp/attach", &json!({})));
    assert_eq!(wire.line()["error"]["code"], -32602);
    wire.send(format!("{}{}", request(4, "daemon/reload", &json!({})), attach("demo")));
    assert_eq!(wire.line()["error"]["data"]["kind"], "conflict");
    drop(harness.held_reply().await);
    assert_eq!(wire.line()["id"], 4);
    wire.send(format!("{}{}", ping(5), attach("demo")));
    assert_eq!((wire.line()["id"].clone(), wire.line()["id"].clone()), (json!(5), json!("a")));
    harness.attached_channel().await;
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_over_the_limit_is_reported_and_the_next_is_whole() {
    let limits = SocketLimits { acp_frame_bytes: 1000, finish: Duration::from_millis(50), ..SocketLimits::default() };
    let mut harness = Harness::start(limits).await;
    let mut wire = harness.client();
    wire.send(attach("demo"));
    wire.line();
    let mut channel = harness.attached_channel().await;
    wire.send("y".repeat(5000));
    assert_eq!(*channel.incoming.recv().await.unwrap(), Err(FrameTooLong { limit_bytes: 1000 }));
    wire.send("yyy\nnext\n");
    assert_eq!(*channel.incoming.recv().await.unwrap(), Ok(b"next".to_vec()));
    harness.server.stop().await;
    assert!(channel.incoming.recv().await.is_none(), "a stopping daemon ends the channel");
    drop(channel);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_behind_holds_its_client_back() {
    let limits = SocketLimits { queue_bytes: 64 * 1024, ..SocketLimits::default() };
    let mut harness = Harness::start(limits).await;
    let mut wire = harness.client();
    wire.send(attach("demo"));
    wire.line();
    let mut channel = harness.attached_channel().await;
    let mut writing = wire.stream.try_clone().unwrap();
    let line = [vec![b'z'; 1023], vec![b'\n']].concat();
    let count = 4_000;
    let writer = std::thread::spawn(move || {
        for _ in 0..count {
            writing.write_all(&line).unwrap();
        }
    });
    for index in 0..count {
        let frame = tokio::time::timeout(LIMIT, channel.incoming.recv()).await.unwrap().unwrap();
        assert_eq!(frame.as_ref().unwrap().len(), 1023, "frame {index}");
    }
    writer.join().unwrap();
    // A client that is gone ends both directions.
    drop(wire);
    assert!(channel.incoming.recv().await.is_none());
    tokio::time::timeout(LIMIT, channel.outgoing.closed()).await.unwrap();
    harness.end().await;
}
