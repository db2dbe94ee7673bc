use holdfast_protocol::ids::{InstanceId, SessionId, TurnId};
use uuid::Uuid;

use super::*;

const CONTEXT: OpenContext<'static> = OpenContext { app_version: "0.1.0", now_ms: 1_000 };

async fn open(dir: &Path) -> AcpSessionsStore {
    AcpSessionsStore::open(dir, CONTEXT).await.unwrap().0
}

fn new_session(number: u128, key: Option<&str>) -> NewAcpSession {
    NewAcpSession {
        session_id: SessionId(Uuid::from_u128(number)),
        agent_id: "demo".parse().unwrap(),
        session_key: key.map(str::to_owned),
        cwd: "/tmp".to_owned(),
        new_params: "{}".to_owned(),
        owner_session_key: None,
        instance_id: InstanceId(Uuid::nil()),
        boot_id: "boot-1".to_owned(),
        created_at_ms: 1_000 + i64::try_from(number).unwrap(),
    }
}

async fn made(store: &mut AcpSessionsStore, number: u128) -> AcpSessionRow {
    let outcome = store.session_create(&[new_session(number, None)]).await;
    outcome.answers.into_iter().next().unwrap().unwrap().unwrap()
}

fn update(seq: i64, kind: &str, update: serde_json::Value) -> AcpUpdate {
    let params = serde_json::json!({ "sessionId": "s", "update": update }).to_string();
    AcpUpdate { seq, turn_number: Some(1), kind: kind.to_owned(), method: None, params, created_at_ms: 5 }
}

fn text(seq: i64) -> AcpUpdate {
    update(seq, "agent_message_chunk", serde_json::json!({ "sessionUpdate": "agent_message_chunk", "n": seq }))
}

fn change(row: &AcpSessionRow, updates: Vec<AcpUpdate>) -> SessionChange {
    SessionChange { row_id: row.row_id, updates, begin: None, end: None, row: RowChange::default(), at_ms: 2_000 }
}

fn begin(number: i64) -> TurnBegin {
    TurnBegin {
        number,
        turn_id: TurnId(Uuid::from_u128(900 + u128::try_from(number).unwrap())),
        prompt: "{}".to_owned(),
        boot_id: "boot-1".to_owned(),
        first_seq: 1,
    }
}

async fn record(store: &mut AcpSessionsStore, changes: Vec<SessionChange>) {
    let changes: Vec<_> = changes.into_iter().map(Arc::new).collect();
    for answer in store.change_record(&changes).await.answers {
        answer.unwrap();
    }
}

async fn seqs(store: &AcpSessionsStore, row: &AcpSessionRow) -> Vec<i64> {
    let mut reader = store.readers().reader().await.unwrap();
    update_page(&mut reader, row.row_id, 0, 1_000).await.unwrap().into_iter().map(|update| update.seq).collect()
}

async fn get(store: &AcpSessionsStore, row: &AcpSessionRow) -> AcpSessionRow {
    let mut reader = store.readers().reader().await.unwrap();
    session_get(&mut reader, row.session_id).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_change_sent_again_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    let (a, b) = (made(&mut store, 1).await, made(&mut store, 2).await);
    let first = SessionChange { begin: Some(begin(1)), ..change(&a, vec![text(1), text(2)]) };
    record(&mut store, vec![first.clone(), change(&b, vec![text(1)])]).await;
    record(&mut store, vec![first, change(&b, vec![text(2)])]).await;
    assert_eq!(seqs(&store, &a).await, [1, 2]);
    assert_eq!(seqs(&store, &b).await, [1, 2]);
    let row = get(&store, &a).await;
    assert_eq!((row.update_count, row.turn_count, row.turn_state), (2, 1, TurnState::Running));
    assert_eq!(row.updated_at_ms, 2_000);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_turn_settles_with_its_last_update() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    let row = made(&mut store, 1).await;
    record(&mut store, vec![SessionChange { begin: Some(begin(1)), ..change(&row, vec![text(1)]) }]).await;
    let end = TurnEnd {
        number: 1,
        outcome: TurnOutcome::Failed,
        stop_reason: None,
        result: None,
        error: Some("boom".to_owned()),
    };
    let title = RowChange { title: Some("a title".to_owned()), ..RowChange::default() };
    record(&mut store, vec![SessionChange { end: Some(end), row: title, ..change(&row, vec![text(2)]) }]).await;
    let row = get(&store, &row).await;
    assert_eq!((row.turn_state, row.title.as_deref()), (TurnState::Error, Some("a title")));
    let mut reader = store.readers().reader().await.unwrap();
    let turns = turn_list(&mut reader, row.row_id).await.unwrap();
    assert_eq!((turns.len(), turns[0].state.as_str(), turns[0].error.as_deref()), (1, "failed", Some("boom")));
    drop(reader);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_name_is_taken_once_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    let outcome = store.session_create(&[new_session(1, Some("ci")), new_session(2, Some("ci"))]).await;
    let made: Vec<bool> = outcome.answers.into_iter().map(|answer| answer.unwrap().is_some()).collect();
    assert_eq!(made, [true, false]);
    let mut reader = store.readers().reader().await.unwrap();
    let found = session_find_by_key(&mut reader, &"demo".parse().unwrap(), "ci").await.unwrap().unwrap();
    assert_eq!(found.session_id, SessionId(Uuid::from_u128(1)));
    drop(reader);
    store.close().await.unwrap();
}

#[tokio::test]
async fn turns_of_earlier_runs_are_interrupted_and_their_open_calls_marked() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    let row = made(&mut store, 1).await;
    let open_call = update(
        2,
        "tool_call",
        serde_json::json!({ "sessionUpdate": "tool_call", "toolCallId": "t2", "status": "in_progress" }),
    );
    record(&mut store, vec![SessionChange { begin: Some(begin(1)), ..change(&row, vec![text(1), open_call]) }]).await;

    let same_run = store.interrupted_settle("boot-1", 3_000).await.unwrap();
    assert_eq!(same_run, Recovered { turns: 0, sessions: 0 });
    let next_run = store.interrupted_settle("boot-2", 3_000).await.unwrap();
    assert_eq!(next_run, Recovered { turns: 1, sessions: 1 });
    assert_eq!(store.interrupted_settle("boot-2", 4_000).await.unwrap(), Recovered::default());

    assert_eq!(get(&store, &row).await.turn_state, TurnState::Interrupted);
    let mut reader = store.readers().reader().await.unwrap();
    let updates = update_page(&mut reader, row.row_id, 2, 10).await.unwrap();
    assert_eq!(updates.len(), 1);
    assert!(updates[0].params.contains("\"t2\"") && updates[0].params.contains("interrupted"));
    drop(reader);
    store.close().await.unwrap();
}

#[tokio::test]
async fn listing_pages_newest_first_without_gap_or_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    for number in 1..=7 {
        made(&mut store, number).await;
    }
    let mut reader = store.readers().reader().await.unwrap();
    let mut filter = SessionFilter { limit: 3, ..SessionFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = session_list(&mut reader, &filter).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.after = Some(SessionPosition { updated_at_ms: last.updated_at_ms, row_id: last.row_id.0 });
        seen.extend(page.iter().map(|row| row.session_id.0.as_u128()));
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    filter = SessionFilter { agent_id: Some("other".parse().unwrap()), limit: 3, ..SessionFilter::default() };
    assert!(session_list(&mut reader, &filter).await.unwrap().is_empty());
    drop(reader);
    store.close().await.unwrap();
}

/// A store as it was before `method` was a column.
async fn before_methods(dir: &Path) -> Database {
    let first = MIGRATOR.iter().take(1).cloned().collect::<Vec<_>>();
    let migrator: &'static Migrator = Box::leak(Box::new(Migrator { migrations: first.into(), ..Migrator::DEFAULT }));
    let spec: &'static DatabaseSpec = Box::leak(Box::new(DatabaseSpec { migrator, ..SPEC }));
    Database::open(dir, spec, CONTEXT).await.unwrap().0
}

#[tokio::test]
async fn rows_from_before_learn_which_of_them_are_no_updates() {
    let dir = tempfile::tempdir().unwrap();
    let mut old = before_methods(dir.path()).await;
    let rows = [
        ("agent_message_chunk", r#"{"update":{"sessionUpdate":"agent_message_chunk"}}"#, None),
        ("_vendor_update", r#"{"update":{"sessionUpdate":"_vendor_update"}}"#, None),
        ("_vendor/told", r#"{"sessionId":"s"}"#, Some("_vendor/told")),
        ("odd", "no JSON", None),
    ];
    let session =
        "INSERT INTO acp_session (id, session_id, agent_id, cwd, new_params_json, status, turn_state, backend,
        instance_id, boot_id, created_at_ms, updated_at_ms)
        VALUES (1, 's', 'demo', '/', '{}', 'active', 'idle', 'acp', 'i', 'b', 1, 1)";
    sqlx::query(session).execute(old.writer()).await.unwrap();
    for (seq, (kind, params, _)) in (1..).zip(rows) {
        let insert =
            "INSERT INTO acp_update (session, seq, kind, params_json, created_at_ms) VALUES (1, ?1, ?2, ?3, 1)";
        sqlx::query(insert).bind(seq).bind(kind).bind(params).execute(old.writer()).await.unwrap();
    }
    old.close().await.unwrap();
    let store = open(dir.path()).await;
    let mut reader = store.readers().reader().await.unwrap();
    let page = update_page(&mut reader, AcpSessionRowId(1), 0, 10).await.unwrap();
    let seen: Vec<_> = page.iter().map(|update| (update.kind.as_str(), update.method.as_deref())).collect();
    assert_eq!(seen, rows.map(|(kind, _, method)| (kind, method)));
    drop(reader);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_session_knows_all_that_are_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).await;
    let mut above: Vec<String> = Vec::new();
    for number in 1..=3 {
        let owner = above.last().cloned();
        let new = NewAcpSession { owner_session_key: owner.clone(), ..new_session(number, None) };
        let row = store.session_create(&[new]).await.answers.remove(0).unwrap().unwrap();
        let mut reader = store.readers().reader().await.unwrap();
        let ownership = ownership_list(&mut reader, &[row.row_id, AcpSessionRowId(99)]).await.unwrap();
        assert_eq!(ownership.len(), 1);
        let expected = Ownership {
            session_key: row.session_id.to_string(),
            agent_id: row.agent_id,
            owner_session_key: owner.clone().or(Some(row.session_id.to_string())),
            spawned_by: owner.clone(),
            parent_session_key: owner,
            ancestor_session_keys: above.clone(),
        };
        assert_eq!(ownership[&row.row_id], expected);
        above.push(row.session_id.to_string());
    }
    store.close().await.unwrap();
}
