//! Appending: one INSERT for a whole batch; a closer look, one append at a time, only when that is refused.
//!
//! The common case asks nothing: it assumes that no key has been used, and the unique indexes say when one has. Then
//! the batch is run again singly, and each append looks its keys up.

use std::collections::HashMap;

use holdfast_protocol::ids::SessionId;
use sqlx::SqliteConnection;

use super::ROLE;
use super::error::Refusal;
use super::heads::{Head, Heads};
use super::row::{EventRow, bad_row, count};
use super::types::{Append, Appended, EventDraft};
use crate::kit::error::InStore;
use crate::kit::idempotency::BodyHash;
use crate::kit::row_insert::{RowInsert, rows_insert};
use crate::kit::{BatchWork, StoreError};

/// Appends in a batch, and how far they would bring each session.
pub(super) struct AppendWork<'a> {
    heads: &'a mut Heads,
    /// The ends after what has been run and is not committed yet.
    reached: HashMap<SessionId, i64>,
    /// The end that the last single append would bring.
    one: Option<(SessionId, i64)>,
}

type Answer = Result<Appended, Refusal>;

impl<'a> AppendWork<'a> {
    pub(super) fn new(heads: &'a mut Heads) -> Self {
        Self { heads, reached: HashMap::new(), one: None }
    }

    fn last_seq(&self, session_id: SessionId, head: Head) -> i64 {
        self.reached.get(&session_id).copied().unwrap_or(head.last_seq)
    }
}

impl BatchWork for AppendWork<'_> {
    type Request = Append;
    type Answer = Answer;

    fn is_single_statement(&self, requests: &[Append]) -> bool {
        requests.iter().map(|request| request.events.len()).sum::<usize>() <= EventRow::ROWS_MAX
    }

    async fn run_all(&mut self, writer: &mut SqliteConnection, requests: &[Append]) -> Result<Vec<Answer>, StoreError> {
        let mut rows = Vec::with_capacity(requests.len());
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let head = match open_head(request.session_id, self.heads.get(request.session_id)) {
                Ok(head) => head,
                Err(refusal) => {
                    answers.push(Err(refusal));
                    continue;
                }
            };
            let first_seq = self.last_seq(request.session_id, head) + 1;
            let mut seq = first_seq;
            for event in &request.events {
                rows.push(event_row(head, seq, event));
                seq += 1;
            }
            if let Some(first) = rows.len().checked_sub(request.events.len()).and_then(|at| rows.get_mut(at)) {
                set_request(first, request);
            }
            self.reached.insert(request.session_id, seq - 1);
            answers.push(Ok(Appended {
                seqs: seqs("append events", first_seq..seq)?,
                stored: !request.events.is_empty(),
            }));
        }
        rows_insert(writer, &rows).await?;
        Ok(answers)
    }

    async fn run_one(&mut self, writer: &mut SqliteConnection, request: &Append) -> Result<Answer, StoreError> {
        let known = self.heads.find(writer, request.session_id).await?;
        let head = match open_head(request.session_id, known) {
            Ok(head) => head,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let stored = match stored_events(writer, head, request).await? {
            Ok(stored) => stored,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(key) = &request.request_key
            && let Some((first_seq, hash)) = request_find(writer, head, key).await?
        {
            return Ok(if hash == request_hash(request) {
                // What it stored then lies in one piece from `first_seq` on; the rest was there before.
                let (seqs, _) = place(&stored, request, first_seq, |event_seq, next| event_seq == next);
                Ok(Appended { seqs: seqs_of("append events", &seqs)?, stored: false })
            } else {
                Err(Refusal::KeyReused { key: key.clone() })
            });
        }
        let first_seq = self.last_seq(request.session_id, head) + 1;
        let (placed, end) = place(&stored, request, first_seq, |_, _| false);
        let mut rows: Vec<EventRow<'_>> = Vec::new();
        let mut next = first_seq;
        for (event, seq) in request.events.iter().zip(&placed) {
            if *seq == next {
                rows.push(event_row(head, next, event));
                next += 1;
            }
        }
        if let Some(first) = rows.first_mut() {
            set_request(first, request);
        }
        rows_insert(writer, &rows).await?;
        self.one = Some((request.session_id, end - 1));
        Ok(Ok(Appended { seqs: seqs_of("append events", &placed)?, stored: !rows.is_empty() }))
    }

    fn committed(&mut self) {
        for (session_id, last_seq) in self.reached.drain() {
            self.heads.advance(session_id, last_seq);
        }
    }

    fn undone(&mut self) {
        self.reached.clear();
        self.one = None;
        self.heads.forget();
    }

    fn one_kept(&mut self) {
        self.reached.extend(self.one.take());
    }

    fn one_undone(&mut self) {
        self.one = None;
    }
}

fn open_head(session_id: SessionId, head: Option<Head>) -> Result<Head, Refusal> {
    match head {
        Some(head) if head.open => Ok(head),
        Some(_) => Err(Refusal::Closed { session_id }),
        None => Err(Refusal::NotFound { session_id }),
    }
}

fn event_row(head: Head, seq: i64, event: &EventDraft) -> EventRow<'_> {
    EventRow {
        session: head.row,
        seq,
        event_id: event.event_id.0.as_bytes(),
        parent_event_id: event.parent_event_id.as_ref().map(|id| id.0.as_bytes().as_slice()),
        kind: event.kind.name(),
        role: event.role.map(super::types::EventRole::name),
        idempotency_key: event.idempotency_key.as_deref(),
        body_hash: event.idempotency_key.as_ref().map(|_| event_hash(event).to_vec()),
        request_key: None,
        request_hash: None,
        created_at_ms: event.created_at_ms,
        body_json: &event.body_json,
    }
}

fn set_request<'a>(row: &mut EventRow<'a>, request: &'a Append) {
    row.request_key = request.request_key.as_deref();
    row.request_hash = request.request_key.as_ref().map(|_| request_hash(request).to_vec());
}

/// Gives each event its place: its old one if it is stored, else the next from `first_seq` on. Two events with one key
/// share a place. `belongs` says whether a stored event is one of those from `first_seq` on.
///
/// Returns the places and the next free one.
fn place(
    stored: &HashMap<&str, i64>,
    request: &Append,
    first_seq: i64,
    belongs: impl Fn(i64, i64) -> bool,
) -> (Vec<i64>, i64) {
    let mut given: HashMap<&str, i64> = HashMap::new();
    let mut next = first_seq;
    let places = request
        .events
        .iter()
        .map(|event| {
            let key = event.idempotency_key.as_deref();
            if let Some(seq) = key.and_then(|key| stored.get(key).or_else(|| given.get(key))).copied() {
                if belongs(seq, next) {
                    next += 1;
                }
                return seq;
            }
            let seq = next;
            next += 1;
            given.extend(key.map(|key| (key, seq)));
            seq
        })
        .collect();
    (places, next)
}

/// Looks up the keys of the append's events. Returns the places of those that are stored.
async fn stored_events<'a>(
    writer: &mut SqliteConnection,
    head: Head,
    request: &'a Append,
) -> Result<Result<HashMap<&'a str, i64>, Refusal>, StoreError> {
    let mut stored = HashMap::new();
    let mut in_request: HashMap<&str, BodyHash> = HashMap::new();
    for (index, event) in request.events.iter().enumerate() {
        let Some(key) = event.idempotency_key.as_deref() else { continue };
        let hash = event_hash(event);
        let reused = || Ok(Err(Refusal::EventKeyReused { key: key.to_owned(), index }));
        if in_request.insert(key, hash).is_some_and(|earlier| earlier != hash) {
            return reused();
        }
        match event_find(writer, head, key).await? {
            Some((seq, stored_hash)) if stored_hash == hash => drop(stored.insert(key, seq)),
            Some(_) => return reused(),
            None => {}
        }
    }
    Ok(Ok(stored))
}

async fn event_find(
    writer: &mut SqliteConnection,
    head: Head,
    key: &str,
) -> Result<Option<(i64, BodyHash)>, StoreError> {
    const ACTION: &str = "look up the key of an event";
    let row = sqlx::query!(
        "SELECT seq, body_hash FROM transcript_events WHERE session = ? AND idempotency_key = ?",
        head.row,
        key
    )
    .fetch_optional(writer)
    .await
    .in_store(ROLE, ACTION)?;
    row.map(|row| Ok((row.seq, hash_of(ACTION, row.body_hash)?))).transpose()
}

async fn request_find(
    writer: &mut SqliteConnection,
    head: Head,
    key: &str,
) -> Result<Option<(i64, BodyHash)>, StoreError> {
    const ACTION: &str = "look up the key of an append";
    let row = sqlx::query!(
        "SELECT seq, request_hash FROM transcript_events WHERE session = ? AND request_key = ?",
        head.row,
        key
    )
    .fetch_optional(writer)
    .await
    .in_store(ROLE, ACTION)?;
    row.map(|row| Ok((row.seq, hash_of(ACTION, row.request_hash)?))).transpose()
}

fn hash_of(action: &'static str, bytes: Option<Vec<u8>>) -> Result<BodyHash, StoreError> {
    let bytes = bytes.unwrap_or_default();
    BodyHash::try_from(bytes.as_slice()).map_err(|_| bad_row(action, "hash", bytes))
}

/// Returns the hash of what makes an event the same event: not its id and time, which each attempt makes anew.
fn event_hash(event: &EventDraft) -> BodyHash {
    let mut hasher = blake3::Hasher::new();
    hash_event(&mut hasher, event);
    *hasher.finalize().as_bytes()
}

fn request_hash(request: &Append) -> BodyHash {
    let mut hasher = blake3::Hasher::new();
    for event in &request.events {
        hash_part(&mut hasher, event.idempotency_key.as_deref().map(str::as_bytes));
        hash_event(&mut hasher, event);
    }
    *hasher.finalize().as_bytes()
}

fn hash_event(hasher: &mut blake3::Hasher, event: &EventDraft) {
    hash_part(hasher, Some(event.kind.name().as_bytes()));
    hash_part(hasher, event.role.map(|role| role.name().as_bytes()));
    hash_part(hasher, event.parent_event_id.as_ref().map(|id| id.0.as_bytes().as_slice()));
    hash_part(hasher, Some(event.body_json.as_bytes()));
}

/// Adds a part with its length, so that no two lists of parts give the same bytes.
fn hash_part(hasher: &mut blake3::Hasher, part: Option<&[u8]>) {
    match part {
        Some(bytes) => {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        }
        None => {
            hasher.update(&u64::MAX.to_le_bytes());
        }
    }
}

fn seqs(action: &'static str, range: std::ops::Range<i64>) -> Result<Vec<u64>, StoreError> {
    range.map(|seq| count(action, "seq", seq)).collect()
}

fn seqs_of(action: &'static str, places: &[i64]) -> Result<Vec<u64>, StoreError> {
    places.iter().map(|seq| count(action, "seq", *seq)).collect()
}
