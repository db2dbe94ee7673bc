//! A store that does not move: what is offered to it is refused once its address is full, and memory stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_protocol::methods::session::{AppendParams, NewEvent, NewParams};
use rusqlite::Connection;
use serde_json::value::RawValue;

use super::raw::body;
use super::report::Row;
use super::{Options, status_field};
use crate::tree::TestTree;

const OFFERED: usize = 1_000_000;
/// More than an address takes in, so that some are refused.
const CLIENTS: usize = 8_192;

pub(super) fn rows(_options: &Options) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure())
}

async fn measure() -> Vec<Row> {
    let tree = TestTree::start(1).await;
    let sessions = tree.handles().sessions.clone();
    let params = NewParams {
        agent_id: "bench".parse().unwrap(),
        session_key: None,
        title: None,
        scope: None,
        idempotency_key: None,
    };
    let session_id = sessions.create(params).await.unwrap().session_id;
    let body = RawValue::from_string(body()).unwrap();
    let blocker = Connection::open(tree.install_root.sessions_database()).unwrap();
    blocker.busy_timeout(Duration::from_secs(5)).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = resident_mb();
    let (offered, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (sessions, body) = (sessions.clone(), body.clone());
            let (offered, refused) = (Arc::clone(&offered), Arc::clone(&refused));
            tokio::spawn(async move {
                while offered.fetch_add(1, Ordering::Relaxed) < OFFERED {
                    let (body, idempotency_key) = (body.clone(), None);
                    let event = NewEvent { kind: "message".to_owned(), role: None, idempotency_key, body };
                    let params = AppendParams { session_id, events: vec![event], idempotency_key: None };
                    // Refused at once, or taken, and then this client waits for the lock to go.
                    refused.fetch_add(usize::from(sessions.append(params).await.is_err()), Ordering::Relaxed);
                    // A refusal waits for nothing, so that without this the others would never have their turn.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut most = 0.0_f64;
    while offered.load(Ordering::Relaxed) < OFFERED {
        most = most.max(resident_mb() - before);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    most = most.max(resident_mb() - before);
    blocker.execute_batch("ROLLBACK").unwrap();
    for client in clients {
        client.await.unwrap();
    }
    let taken = OFFERED - refused.load(Ordering::Relaxed);
    tree.stop().await;
    vec![
        Row::bounded("1 M appends offered to a stuck store: memory over idle", "MB", most, 64.0),
        Row::bounded("1 M appends offered to a stuck store: taken", "", taken as f64, 10_000.0),
    ]
}

fn resident_mb() -> f64 {
    status_field(std::process::id(), "VmRSS:") / 1024.0
}
