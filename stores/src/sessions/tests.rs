//! The store with a real file.

use std::path::Path;
use std::time::Instant;

use holdfast_protocol::ids::{EventId, SessionId};
use holdfast_protocol::methods::session::{SessionScope, SessionStatus};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::kit::idempotency::body_hash;
use crate::kit::row_insert::{RowInsert, rows_insert};

const CONTEXT: OpenContext<'static> = OpenContext { app_version: "0.0.0-test", now_ms: 1_000 };

async fn open(directory: &Path) -> SessionsStore {
    SessionsStore::open(directory, CONTEXT).await.unwrap().0
}

fn session_id(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(number))
}

fn new_session(number: u128) -> NewSession {
    NewSession {
        session_id: session_id(number),
        agent_id: "claude".parse().unwrap(),
        session_key: None,
        scope: SessionScope::Main,
        display_name: None,
        request: None,
    }
}

fn draft(number: u128, body: &str) -> EventDraft {
    EventDraft {
        event_id: EventId(Uuid::from_u128(number)),
        parent_event_id: None,
        kind: EventKind::Message,
        role: Some(EventRole::User),
        idempotency_key: None,
        created_at_ms: 2_000,
        body_json: body.to_owned(),
    }
}

fn keyed(number: u128, key: &str, body: &str) -> EventDraft {
    EventDraft { idempotency_key: Some(key.to_owned()), ..draft(number, body) }
}

fn append(session: u128, events: Vec<EventDraft>) -> Append {
    Append { session_id: session_id(session), events, request_key: None }
}

async fn insert(store: &mut SessionsStore, requests: &[NewSession]) -> Vec<Result<SessionInserted, Refusal>> {
    store.session_insert(requests, 1_500).await.answers.into_iter().map(Result::unwrap).collect()
}

async fn append_all(store: &mut SessionsStore, requests: &[Append]) -> Vec<Result<Appended, Refusal>> {
    store.events_append(requests).await.answers.into_iter().map(Result::unwrap).collect()
}

fn at(seqs: impl IntoIterator<Item = u64>, stored: bool) -> Result<Appended, Refusal> {
    Ok(Appended { seqs: seqs.into_iter().collect(), stored })
}

async fn bodies(store: &SessionsStore, session: u128) -> Vec<(u64, String)> {
    let page = store.reads().events_page(session_id(session), 0, PAGE_MAX).await.unwrap().unwrap();
    page.events.into_iter().map(|event| (event.seq, event.body_json)).collect()
}

#[tokio::test]
async fn events_get_gapless_places_and_come_back_as_they_were_given() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1), new_session(2)]).await;
    let mut thought = draft(12, "{ \"b\" : 1.50, \"a\": \"\\u00e9\" }");
    (thought.kind, thought.role, thought.parent_event_id) =
        (EventKind::Thought, None, Some(EventId(Uuid::from_u128(11))));
    let batch = [
        append(1, vec![draft(11, "1"), thought.clone()]),
        append(2, vec![draft(21, "\"x\"")]),
        append(3, vec![draft(31, "3")]),
        append(1, vec![draft(13, "[]")]),
        append(1, vec![]),
    ];
    let answers = append_all(&mut store, &batch).await;
    let missing = Err(Refusal::NotFound { session_id: session_id(3) });
    assert_eq!(answers, [at([1, 2], true), at([1], true), missing, at([3], true), at([], false)]);

    let page = store.reads().events_page(session_id(1), 1, 1).await.unwrap().unwrap();
    let expected = StoredEvent {
        seq: 2,
        event_id: thought.event_id,
        parent_event_id: thought.parent_event_id,
        kind: EventKind::Thought,
        role: None,
        created_at_ms: 2_000,
        body_json: thought.body_json.clone(),
    };
    assert_eq!(page, EventsPage { events: vec![expected], more: true });
    let tail = store.reads().events_tail(session_id(1), 2).await.unwrap().unwrap();
    assert_eq!(tail.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3]);
    assert!(tail.more);
    let end = store.reads().events_page(session_id(1), 3, 10).await.unwrap().unwrap();
    assert_eq!(end, EventsPage { events: Vec::new(), more: false });
    assert_eq!(store.reads().events_page(session_id(9), 0, 10).await.unwrap(), None);
    assert_eq!(store.reads().events_tail(session_id(9), 10).await.unwrap(), None);

    let record = store.reads().session_get(session_id(1)).await.unwrap().unwrap();
    assert_eq!((record.last_seq, record.message_count, record.updated_at_ms), (3, 2, 2_000));
    store.close().await.unwrap();

    // Places go on after a restart.
    let mut store = open(directory.path()).await;
    assert_eq!(append_all(&mut store, &[append(1, vec![draft(14, "4")])]).await, [at([4], true)]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_repeated_event_gets_its_first_place_and_another_body_is_a_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1), new_session(2)]).await;
    assert_eq!(append_all(&mut store, &[append(1, vec![draft(1, "0"), keyed(2, "k", "1")])]).await, [at([1, 2], true)]);
    let batch = [
        append(1, vec![draft(3, "a")]),
        append(1, vec![keyed(4, "k", "1")]),
        append(1, vec![draft(5, "b"), keyed(6, "k", "other"), draft(7, "c")]),
        append(2, vec![keyed(8, "k", "other session")]),
        append(1, vec![draft(9, "d"), keyed(10, "k", "1"), keyed(11, "new", "e"), keyed(12, "new", "e")]),
        append(1, vec![draft(13, "f")]),
    ];
    let conflict = Err(Refusal::EventKeyReused { key: "k".to_owned(), index: 1 });
    let answers = append_all(&mut store, &batch).await;
    assert_eq!(
        answers,
        [at([3], true), at([2], false), conflict, at([1], true), at([4, 2, 5, 5], true), at([6], true)]
    );
    let stored: Vec<_> = bodies(&store, 1).await.into_iter().map(|(_, body)| body).collect();
    assert_eq!(stored, ["0", "1", "a", "d", "e", "f"]);
    let other_body_in_one_request = append(1, vec![keyed(14, "z", "1"), keyed(15, "z", "2")]);
    let conflict = Err(Refusal::EventKeyReused { key: "z".to_owned(), index: 1 });
    assert_eq!(append_all(&mut store, &[other_body_in_one_request]).await, [conflict]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_repeated_append_gets_its_first_answer_and_another_body_is_a_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1)]).await;
    append_all(&mut store, &[append(1, vec![keyed(1, "old", "0")])]).await;
    let request = |events: Vec<EventDraft>| Append { request_key: Some("r".to_owned()), ..append(1, events) };
    let first = || request(vec![draft(2, "a"), keyed(3, "old", "0"), keyed(4, "k", "b"), draft(5, "c")]);
    assert_eq!(append_all(&mut store, &[first()]).await, [at([2, 1, 3, 4], true)]);
    append_all(&mut store, &[append(1, vec![draft(6, "d")])]).await;
    // Twice in one batch, and beside a new one.
    let answers = append_all(&mut store, &[first(), append(1, vec![draft(7, "e")]), first()]).await;
    assert_eq!(answers, [at([2, 1, 3, 4], false), at([6], true), at([2, 1, 3, 4], false)]);
    let reused = Err(Refusal::KeyReused { key: "r".to_owned() });
    assert_eq!(append_all(&mut store, &[request(vec![draft(8, "a")])]).await, [reused]);
    assert_eq!(bodies(&store, 1).await.len(), 6);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_session_key_leads_to_its_session_until_that_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    let on_key = |number, key: &str| NewSession { session_key: Some(key.to_owned()), ..new_session(number) };
    let made = |number, created| Ok(SessionInserted { session_id: session_id(number), created });
    let odd = "a/b:ç 漢\0x";
    let answers = insert(&mut store, &[on_key(1, odd), on_key(2, odd), on_key(3, "a/b:ç 漢"), new_session(4)]).await;
    assert_eq!(answers, [made(1, true), made(1, false), made(3, true), made(4, true)]);
    let closed = store.session_close(&[session_id(1), session_id(1), session_id(9)], 3_000).await.answers;
    let closed: Vec<_> = closed.into_iter().map(Result::unwrap).collect();
    assert_eq!(closed, [Ok(true), Ok(false), Err(Refusal::NotFound { session_id: session_id(9) })]);
    assert_eq!(insert(&mut store, &[on_key(5, odd)]).await, [made(5, true)]);
    let refused = append_all(&mut store, &[append(1, vec![draft(1, "1")]), append(5, vec![draft(2, "1")])]).await;
    assert_eq!(refused, [Err(Refusal::Closed { session_id: session_id(1) }), at([1], true)]);
    let record = store.reads().session_get(session_id(5)).await.unwrap().unwrap();
    assert_eq!(record.session_key.as_deref(), Some(odd));
    let too_long = store.session_insert(&[on_key(6, &"x".repeat(513)), new_session(7)], 1).await.answers;
    assert!(matches!(&too_long[0], Err(StoreError::Constraint { .. })), "{too_long:?}");
    assert!(too_long[1].is_ok());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_repeated_new_session_is_the_first_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    let request =
        |number, body: &[u8]| NewSession { request: Some(("key".to_owned(), body_hash(body))), ..new_session(number) };
    let answers = insert(&mut store, &[request(1, b"a"), request(2, b"a"), request(3, b"b")]).await;
    let first = Ok(SessionInserted { session_id: session_id(1), created: true });
    assert_eq!(answers, [first.clone(), first, Err(Refusal::KeyReused { key: "key".to_owned() })]);
    assert_eq!(store.idempotency_purge(1_500 + 25 * 3_600_000).await.unwrap(), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_list_is_paged_without_gap_and_filtered() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    let sessions: Vec<_> = (1..=25)
        .map(|number| NewSession {
            agent_id: if number % 2 == 0 { "even" } else { "odd" }.parse().unwrap(),
            session_key: (number == 7).then(|| "seven".to_owned()),
            ..new_session(number << 120)
        })
        .collect();
    insert(&mut store, &sessions).await;
    // The third is the last changed.
    append_all(&mut store, &[append(3 << 120, vec![draft(1, "1")])]).await;
    store.session_close(&[session_id(9 << 120)], 1).await;
    let reads = store.reads();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = reads.session_list(&ListFilter::default(), after, 10).await.unwrap();
        seen.extend(page.sessions.iter().map(|session| session.session_id.0.as_u128() >> 120));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<u128> = [3].into_iter().chain((1..=25).rev().filter(|number| *number != 3)).collect();
    assert_eq!(seen, expected);

    let count = async |filter: ListFilter| reads.session_list(&filter, None, 100).await.unwrap().sessions.len();
    assert_eq!(count(ListFilter { agent_id: Some("even".parse().unwrap()), ..ListFilter::default() }).await, 12);
    assert_eq!(count(ListFilter { status: Some(SessionStatus::Closed), ..ListFilter::default() }).await, 1);
    assert_eq!(count(ListFilter { session_key: Some("seven".to_owned()), ..ListFilter::default() }).await, 1);
    assert_eq!(count(ListFilter { id_prefix: Some("1".to_owned()), ..ListFilter::default() }).await, 10);
    assert_eq!(count(ListFilter { id_prefix: Some("19000000-0".to_owned()), ..ListFilter::default() }).await, 1);
    assert_eq!(count(ListFilter { id_prefix: Some("zz".to_owned()), ..ListFilter::default() }).await, 0);
    store.close().await.unwrap();
}

#[tokio::test]
async fn many_rows_in_one_statement_are_what_single_ones_are() {
    let mut dumps = Vec::new();
    for together in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path()).await;
        insert(&mut store, &[new_session(1)]).await;
        let ids: Vec<_> = (1..=200_u128).map(u128::to_be_bytes).collect();
        let rows: Vec<_> = (1_i64..)
            .zip(&ids)
            .map(|(seq, id)| row::EventRow {
                session: 1,
                seq,
                event_id: id,
                parent_event_id: (seq % 3 == 0).then_some(id.as_slice()),
                kind: if seq % 2 == 0 { "message" } else { "custom" },
                role: (seq % 2 == 0).then_some("user"),
                idempotency_key: (seq % 5 == 0).then_some(["a", "b", "c"][0]).filter(|_| seq == 5),
                body_hash: (seq == 5).then(|| vec![1; 32]),
                request_key: (seq == 6).then_some("r"),
                request_hash: (seq == 6).then(|| vec![2; 32]),
                created_at_ms: seq * 10,
                body_json: "{\"text\":\"é\"}",
            })
            .collect();
        let writer = store.database.writer();
        if together {
            assert_eq!(rows_insert(writer, &rows[..70]).await.unwrap(), 70);
            assert_eq!(rows_insert(writer, &rows[70..]).await.unwrap(), 130);
        } else {
            for row in &rows {
                assert_eq!(row.insert_one(writer).await.unwrap(), 1);
            }
        }
        let path = store.database.path().to_owned();
        store.close().await.unwrap();
        dumps.push(dump(&path));
    }
    assert!(dumps[0].contains("C3A9") || dumps[0].contains('é'));
    assert_eq!(dumps[0], dumps[1]);
}

/// The tables' content as text, without the driver under test.
fn dump(path: &Path) -> String {
    let sql = "SELECT * FROM transcript_events ORDER BY id; SELECT * FROM sessions;";
    let output =
        std::process::Command::new("sqlite3").args(["-readonly", "-quote"]).arg(path).arg(sql).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_schema_refuses_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1)]).await;
    append_all(&mut store, &[append(1, vec![draft(1, "1")])]).await;
    // As a fault of ours would: the store remembers a wrong end.
    store.heads.advance(session_id(1), 7);
    let answers = append_all(&mut store, &[append(1, vec![draft(2, "2")])]).await;
    assert_eq!(answers, [at([2], true)], "the refused batch is run again with what is stored");
    assert_eq!(bodies(&store, 1).await.len(), 2);
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_append_of_more_rows_than_a_statement_takes_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1)]).await;
    let many = row::EventRow::ROWS_MAX as u128 + 10;
    let events = (1..=many).map(|number| draft(number, "1")).collect();
    let answers = append_all(&mut store, &[append(1, events)]).await;
    assert_eq!(answers, [at(1..=many as u64, true)]);
    let record = store.reads().session_get(session_id(1)).await.unwrap().unwrap();
    assert_eq!(record.message_count, many as u64);
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_forgotten_session_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(1)]).await;
    for number in 1..=4 {
        assert_eq!(append_all(&mut store, &[append(1, vec![draft(number, "1")])]).await, [at([number as u64], true)]);
        store.heads.forget();
    }
    store.close().await.unwrap();
}

/// One step of a random run: which session, which bodies, which keys.
type Step = (u8, Vec<(u8, Option<u8>)>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_run_of_batches_keeps_the_transcripts_gapless_and_the_counters_true(
        batches in prop::collection::vec(
            prop::collection::vec((0..3_u8, prop::collection::vec((0..4_u8, prop::option::of(0..4_u8)), 1..4)), 1..6),
            1..8,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(random_run(batches));
    }
}

async fn random_run(batches: Vec<Vec<Step>>) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await;
    insert(&mut store, &[new_session(0), new_session(1), new_session(2)]).await;
    // What must be stored: the bodies of each session in order, and the first body of each key.
    let mut expected: [Vec<String>; 3] = Default::default();
    let mut keys: std::collections::HashMap<(u8, u8), (u8, u64)> = std::collections::HashMap::new();
    let mut number = 0;
    for batch in batches {
        let mut requests = Vec::new();
        let mut answers = Vec::new();
        for (session, events) in batch {
            let drafts = events
                .iter()
                .map(|(body, key)| {
                    number += 1;
                    match key {
                        Some(key) => keyed(number, &key.to_string(), &body.to_string()),
                        None => draft(number, &body.to_string()),
                    }
                })
                .collect();
            requests.push(append(u128::from(session), drafts));
            // The model: all or none.
            let (mut new_keys, mut new_bodies) = (keys.clone(), expected[usize::from(session)].clone());
            let before = new_bodies.len();
            let mut seqs = Vec::new();
            let mut conflict = None;
            for (index, (body, key)) in events.iter().enumerate() {
                match key.and_then(|key| new_keys.get(&(session, key)).copied()) {
                    Some((first, seq)) if first == *body => seqs.push(seq),
                    Some(_) => {
                        let key = key.unwrap().to_string();
                        conflict = Some(Refusal::EventKeyReused { key, index });
                        break;
                    }
                    None => {
                        new_bodies.push(body.to_string());
                        seqs.push(new_bodies.len() as u64);
                        if let Some(key) = key {
                            new_keys.insert((session, *key), (*body, new_bodies.len() as u64));
                        }
                    }
                }
            }
            answers.push(match conflict {
                Some(refusal) => Err(refusal),
                None => {
                    let stored = new_bodies.len() > before;
                    keys = new_keys;
                    expected[usize::from(session)] = new_bodies;
                    Ok(Appended { seqs, stored })
                }
            });
        }
        assert_eq!(append_all(&mut store, &requests).await, answers);
    }
    for (session, wanted) in (0_u128..).zip(&expected) {
        let found = bodies(&store, session).await;
        let wanted: Vec<_> = (1_u64..).zip(wanted.iter().cloned()).collect();
        assert_eq!(found, wanted);
        let record = store.reads().session_get(session_id(session)).await.unwrap().unwrap();
        assert_eq!((record.last_seq, record.message_count), (wanted.len() as u64, wanted.len() as u64));
    }
    store.close().await.unwrap();
}

/// Prints the rate of durable appends; run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "prints figures, checks nothing"]
async fn append_rate() {
    for (sessions, batch) in [(1_u128, 1_usize), (64, 8), (64, 64), (1, 64), (64, 512)] {
        let directory = tempfile::tempdir_in(".").unwrap();
        let mut store = open(directory.path()).await;
        let all: Vec<_> = (0..sessions).map(new_session).collect();
        insert(&mut store, &all).await;
        let body = format!("{{\"text\":\"{}\"}}", "x".repeat(388));
        let rounds = (20_000 / batch).min(3_000);
        let mut number = 0;
        let begun = Instant::now();
        for _ in 0..rounds {
            let requests: Vec<_> = (0..batch)
                .map(|_| {
                    number += 1;
                    append(number % sessions, vec![keyed(number, &format!("key-{number}"), &body)])
                })
                .collect();
            let outcome = store.events_append(&requests).await;
            assert!(outcome.answers.iter().all(|answer| matches!(answer, Ok(Ok(_)))));
        }
        let rate = (rounds * batch) as f64 / begun.elapsed().as_secs_f64();
        println!("{sessions} sessions, batch {batch}: {rate:.0} rows/s");
        store.close().await.unwrap();
    }
}
