//! The actor with real files: what is answered is stored, whatever happens around it.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::SessionId;
use holdfast_protocol::methods::session::{
    AppendParams, CloseParams, EventsParams, ListParams, NewEvent, NewParams, SessionKind, SessionStatus,
};
use serde_json::value::RawValue;

use super::*;
use crate::address::CallError;
use crate::ports::Ports;
use crate::supervisor::{ChildOutcome, Intensity, Limits, Strategy, Supervisor, SupervisorSpec, child};

struct Rig {
    supervisor: Supervisor,
    outcomes: Vec<ChildOutcome>,
    handle: SessionsHandle,
}

impl Rig {
    async fn start(directory: &Path) -> Self {
        let surface = SessionsSurface::new(directory.to_owned(), "0.0.0-test");
        let (child, address) = child("sessions", Limits::default(), &Ports::system(), surface);
        let spec = SupervisorSpec {
            name: "test",
            strategy: Strategy::OneForOne,
            intensity: Intensity::default(),
            stages: vec![vec![Box::new(child)]],
        };
        let (supervisor, outcomes) = Supervisor::start(spec, 1, None).await.unwrap();
        Self { supervisor, outcomes, handle: SessionsHandle::new(address) }
    }

    async fn new_session(&self) -> SessionId {
        self.handle.create(new_params(None)).await.unwrap().session_id
    }

    async fn down(&self) -> WireError {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(down) = self.handle.address().down() {
                return CallError::Down(down).into();
            }
            assert!(std::time::Instant::now() < deadline, "the surface is {}", self.handle.address().state_name());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn new_params(session_key: Option<&str>) -> NewParams {
    NewParams {
        agent_id: "claude".parse().unwrap(),
        session_key: session_key.map(str::to_owned),
        title: Some("A title".to_owned()),
        scope: None,
        idempotency_key: None,
    }
}

fn event(body: &str) -> NewEvent {
    NewEvent {
        kind: "message".to_owned(),
        role: Some("user".to_owned()),
        idempotency_key: None,
        body: RawValue::from_string(body.to_owned()).unwrap(),
    }
}

fn append_params(session_id: SessionId, body: &str) -> AppendParams {
    AppendParams { session_id, events: vec![event(body)], idempotency_key: None }
}

fn keyed(session_id: SessionId, key: &str, body: &str) -> AppendParams {
    AppendParams { idempotency_key: Some(key.to_owned()), ..append_params(session_id, body) }
}

fn close_params(session_id: SessionId) -> CloseParams {
    CloseParams { session_id, idempotency_key: None }
}

async fn bodies(handle: &SessionsHandle, session_id: SessionId) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let after_seq = bodies.len() as u64;
        let page = handle.events(EventsParams { session_id, after_seq, limit: Some(300) }).await.unwrap();
        for event in page.events {
            bodies.push(event.body.get().to_owned());
            assert_eq!(event.seq, bodies.len() as u64);
        }
        if !page.more {
            return bodies;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_callers_share_commits_and_keep_each_callers_order() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    let callers = (0..32).map(|caller| {
        let handle = rig.handle.clone();
        tokio::spawn(async move {
            let mut last = 0;
            for number in 0..20 {
                let body = format!("[{caller},{number}]");
                let seq = handle.append(append_params(session_id, &body)).await.unwrap().seqs[0];
                assert!(seq > last);
                last = seq;
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    let stored = bodies(&rig.handle, session_id).await;
    assert_eq!(stored.len(), 640);
    for caller in 0..32 {
        let of_caller: Vec<_> = stored.iter().filter(|body| body.starts_with(&format!("[{caller},"))).collect();
        let expected: Vec<_> = (0..20).map(|number| format!("[{caller},{number}]")).collect();
        assert_eq!(of_caller, expected.iter().collect::<Vec<_>>());
    }
    let commits = rig.supervisor.observed()[0].stats.commits();
    assert!(commits < 320, "{commits} commits for 640 appends");
    assert!(rig.supervisor.observed()[0].stats.size_bytes() > 0);
    rig.supervisor.stop().await;
    let mut left: Vec<_> = std::fs::read_dir(directory.path().join("sessions"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["sessions.db", "sessions.db.marker"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_and_doubles_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    let callers = (0..32).map(|caller| {
        let handle = rig.handle.clone();
        tokio::spawn(async move {
            for number in 0..30 {
                let body = format!("\"{caller}-{number}\"");
                handle.append(append_params(session_id, &body)).await.unwrap();
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for generation in 2..6 {
        rig.supervisor.reload(generation).await.unwrap();
    }
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    let mut stored = bodies(&rig.handle, session_id).await;
    assert_eq!(stored.len(), 960);
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), 960);
    rig.supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_what_is_queued() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    // Posted one behind the other without waiting, so that most are queued when the stop comes.
    let (sender, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..200 {
        let sender = sender.clone();
        let reply = crate::reply::Reply::sink(move |answer| sender.send((number, answer)).unwrap());
        let params = append_params(session_id, &number.to_string());
        rig.handle.address().post(reply, |reply| SessionsMessage::Append { params, reply });
    }
    drop(sender);
    rig.supervisor.stop().await;
    let mut answered = 0;
    while let Some((number, answer)) = answers.recv().await {
        assert_eq!(answer.unwrap().unwrap().seqs, [number + 1]);
        answered += 1;
    }
    assert_eq!(answered, 200);
    let rig = Rig::start(directory.path()).await;
    assert_eq!(bodies(&rig.handle, session_id).await.len(), 200);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn writes_of_different_kinds_keep_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    let (before, closed, after, again) = tokio::join!(
        rig.handle.append(append_params(session_id, "1")),
        rig.handle.close(close_params(session_id)),
        rig.handle.append(append_params(session_id, "2")),
        rig.handle.close(close_params(session_id)),
    );
    assert_eq!(before.unwrap().seqs, [1]);
    assert!(closed.unwrap().closed_now);
    assert_eq!(after.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(!again.unwrap().closed_now);
    assert_eq!(bodies(&rig.handle, session_id).await, ["1"]);
    let detail = rig.handle.show(session_id).await.unwrap();
    assert_eq!((detail.row.status, detail.last_seq, detail.row.message_count), (SessionStatus::Closed, 1, 1));
    assert!(detail.row.created_at.ends_with('Z') && detail.row.created_at.starts_with("20"));
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_bad_request_fails_alone_and_the_actor_lives_on() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    let missing = SessionId(uuid::Uuid::from_u128(7));
    let other = || keyed(session_id, "k", "\"other\"");
    let (good, unknown, first, repeated, reused, last) = tokio::join!(
        rig.handle.append(append_params(session_id, "1")),
        rig.handle.append(append_params(missing, "1")),
        rig.handle.append(keyed(session_id, "k", "2")),
        rig.handle.append(keyed(session_id, "k", "2")),
        rig.handle.append(other()),
        rig.handle.append(append_params(session_id, "3")),
    );
    assert_eq!(good.unwrap().seqs, [1]);
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!((first.unwrap().seqs, repeated.unwrap().seqs), (vec![2], vec![2]));
    let reused = WireError::from(reused.unwrap_err());
    assert_eq!((reused.kind, reused.remedy.is_some()), (ErrorKind::Conflict, true));
    assert_eq!(last.unwrap().seqs, [3]);
    let error = rig.handle.events(EventsParams { session_id: missing, after_seq: 0, limit: None }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(rig.handle.tail(missing, 5).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(rig.handle.show(missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    let tail = rig.handle.tail(session_id, 2).await.unwrap();
    assert_eq!((tail.events[0].body.get(), tail.events[1].body.get(), tail.more), ("2", "3", true));
    assert_eq!(rig.supervisor.observed()[0].stats.restarts(), 0);
    rig.supervisor.stop().await;
}

#[tokio::test]
async fn a_list_goes_on_where_it_ended_and_refuses_foreign_cursors() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    for number in 0..5 {
        rig.handle.create(new_params(Some(&format!("key {number}")))).await.unwrap();
    }
    assert!(!rig.handle.create(new_params(Some("key 2"))).await.unwrap().created);
    let page = |cursor| ListParams { cursor, limit: Some(2), ..ListParams::default() };
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let list = rig.handle.list(page(cursor.take())).await.unwrap();
        seen.extend(list.sessions.into_iter().map(|session| session.session_id));
        match list.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    let next = rig.handle.list(page(None)).await.unwrap().next_cursor;
    let other_list = ListParams { status: Some(SessionStatus::Active), ..page(next) };
    let refused = WireError::from(rig.handle.list(other_list).await.unwrap_err());
    assert_eq!((refused.kind, refused.path.as_deref()), (ErrorKind::InvalidParams, Some("cursor")));
    let acp = rig.handle.list(ListParams { kind: Some(SessionKind::Acp), ..ListParams::default() }).await.unwrap();
    assert_eq!(acp.sessions, []);
    rig.supervisor.stop().await;
}

/// Fills a store, ends it, and damages a page in the middle of its file.
async fn damaged(directory: &Path, clean_stop: bool) -> Vec<u8> {
    let rig = Rig::start(directory).await;
    let session_id = rig.new_session().await;
    for number in 0..30 {
        let body = format!("\"{number}{}\"", "x".repeat(3_000));
        rig.handle.append(append_params(session_id, &body)).await.unwrap();
    }
    rig.supervisor.stop().await;
    let path = directory.join("sessions/sessions.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let page = bytes.len() / 4096 - 2;
    bytes[page * 4096..(page + 1) * 4096].fill(0xa5);
    std::fs::write(&path, &bytes).unwrap();
    if !clean_stop {
        let marker = path.with_extension("db.marker");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&marker).unwrap()).unwrap();
        json["clean_stop"] = serde_json::Value::Null;
        std::fs::write(&marker, json.to_string()).unwrap();
    }
    bytes
}

#[tokio::test]
async fn a_file_damaged_while_stopped_is_an_error_and_never_an_empty_list() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = damaged(directory.path(), true).await;
    let rig = Rig::start(directory.path()).await;
    let down = rig.outcomes[0].down.clone().unwrap();
    assert_eq!(down.kind, ErrorKind::Damaged);
    assert!(down.reason.contains("sessions.db"), "{}", down.reason);
    let error = WireError::from(rig.handle.list(ListParams::default()).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.remedy.unwrap().contains("kept as it is"));
    rig.supervisor.stop().await;
    assert_eq!(std::fs::read(directory.path().join("sessions/sessions.db")).unwrap(), bytes);
}

#[tokio::test]
async fn damage_after_an_unclean_stop_turns_the_surface_down_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    damaged(directory.path(), false).await;
    let rig = Rig::start(directory.path()).await;
    let down = rig.down().await;
    assert_eq!(down.kind, ErrorKind::Damaged);
    assert!(down.remedy.unwrap().contains("kept as it is"));
    rig.supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_while_another_process_holds_the_lock_and_the_write_follows() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let session_id = rig.new_session().await;
    let path = directory.path().join("sessions/sessions.db");
    let mut other = tokio::process::Command::new("sqlite3")
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"BEGIN IMMEDIATE; SELECT 'locked';\n").await.unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(stdout));
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("locked"));

    let handle = rig.handle.clone();
    let write = tokio::spawn(async move { handle.append(append_params(session_id, "1")).await });
    // Until the commit has been started and waits: new, its flush and its end, append, its flush.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while rig.supervisor.observed()[0].stats.handled() < 5 {
        assert!(std::time::Instant::now() < deadline, "the append was not handled");
        tokio::task::yield_now().await;
    }
    let begun = std::time::Instant::now();
    assert_eq!(rig.handle.show(session_id).await.unwrap().last_seq, 0);
    assert_eq!(bodies(&rig.handle, session_id).await, Vec::<String>::new());
    assert!(begun.elapsed() < Duration::from_secs(1) && !write.is_finished());
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"COMMIT;\n").await.unwrap();
    drop(stdin);
    assert!(other.wait().await.unwrap().success());
    assert_eq!(write.await.unwrap().unwrap().seqs, [1]);
    rig.supervisor.stop().await;
}
