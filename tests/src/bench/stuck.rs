//! A store that does not move: what is offered to it is refused once its address is full, and memory stays.

use std::time::Duration;

use futures_util::FutureExt;
use holdfast_protocol::methods::session::{AppendParams, NewEvent, NewParams};
use rusqlite::Connection;
use serde_json::value::RawValue;

use super::raw::body;
use super::report::Row;
use super::{Options, status_field};
use crate::tree::TestTree;

const OFFERED: usize = 1_000_000;

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
    let (before, mut most, mut taken) = (resident_mb(), 0.0_f64, 0_usize);
    for number in 0..OFFERED {
        let event = NewEvent { kind: "message".to_owned(), role: None, idempotency_key: None, body: body.clone() };
        let offer = sessions.append(AppendParams { session_id, events: vec![event], idempotency_key: None });
        // Refused at once, or taken and waiting behind the lock: then nobody waits for the answer here.
        taken += usize::from(offer.now_or_never().is_none());
        if number % 10_000 == 0 {
            most = most.max(resident_mb() - before);
        }
    }
    most = most.max(resident_mb() - before);
    blocker.execute_batch("ROLLBACK").unwrap();
    drop(blocker);
    tree.stop().await;
    vec![
        Row::bounded("1 M appends offered to a stuck store: memory over idle", "MB", most, 64.0),
        Row::bounded("1 M appends offered to a stuck store: taken", "", taken as f64, 10_000.0),
    ]
}

fn resident_mb() -> f64 {
    status_field(std::process::id(), "VmRSS:") / 1024.0
}
