//! What a live session has yet to put on disk, in order. Pure: the session sends it and says how it went.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_protocol::ids::TurnId;
use holdfast_stores::acp_sessions::{AcpSessionRowId, AcpUpdate, RowChange, SessionChange, TurnBegin, TurnEnd};
use tokio::sync::OwnedSemaphorePermit;

use crate::reply::Reply;

/// One transaction holds at most this many updates of a session; more wait for the next.
const UPDATES_MAX: usize = 1_024;
/// And at most about this many bytes of them.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// What an update holds until it is on disk: the reader's turn to go on, and its share of the bytes in flight.
pub(super) type Held = (Option<Reply<()>>, Option<OwnedSemaphorePermit>);

/// What a notification of the agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What<'a> {
    /// `session/update` with this discriminator.
    Update(&'a str),
    /// Another one, with this method.
    Other(&'a str),
}

/// Changes not yet on disk. `T` is what to do once a change is there.
pub(super) struct Journal<T> {
    row_id: AcpSessionRowId,
    next_seq: i64,
    stored_seq: i64,
    sent: Option<Entry<T>>,
    waiting: VecDeque<Entry<T>>,
}

struct Entry<T> {
    change: Arc<SessionChange>,
    bytes: usize,
    held: Vec<Held>,
    then: Vec<T>,
}

/// What is left of changes that the store refused.
pub(super) struct Abandoned<T> {
    /// What was to be done once they were on disk.
    pub(super) then: Vec<T>,
    /// The end of a turn that has begun on disk, if one was among them.
    pub(super) end: Option<TurnEnd>,
    /// The number of a turn that has not begun on disk, and so was none.
    pub(super) unbegun: Option<i64>,
    /// What else was to change.
    pub(super) row: RowChange,
}

/// A change that is on disk now.
pub(super) struct Stored<T> {
    pub(super) change: Arc<SessionChange>,
    pub(super) then: Vec<T>,
}

impl<T> Journal<T> {
    /// Makes an empty journal of a session whose last stored update is `stored_seq`.
    pub(super) fn new(row_id: AcpSessionRowId, stored_seq: i64) -> Self {
        Self { row_id, next_seq: stored_seq + 1, stored_seq, sent: None, waiting: VecDeque::new() }
    }

    /// Returns the position of the last update that is on disk.
    pub(super) fn stored_seq(&self) -> i64 {
        self.stored_seq
    }

    /// Returns the position of the last update, on disk or not.
    pub(super) fn last_seq(&self) -> i64 {
        self.next_seq - 1
    }

    /// Says whether everything is on disk.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_none() && self.waiting.is_empty()
    }

    /// Adds an update and returns its position.
    pub(super) fn update(
        &mut self,
        turn_number: Option<i64>,
        what: What<'_>,
        params: String,
        at_ms: i64,
        held: Held,
    ) -> i64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        let bytes = params.len();
        let entry = self.open_entry(at_ms, |entry| {
            entry.change.end.is_none() && entry.change.updates.len() < UPDATES_MAX && entry.bytes < BYTES_MAX
        });
        entry.bytes += bytes;
        entry.held.push(held);
        let (kind, method) = match what {
            What::Update(kind) => (kind, None),
            What::Other(method) => (method, Some(method.to_owned())),
        };
        let update = AcpUpdate { seq, turn_number, kind: kind.to_owned(), method, params, created_at_ms: at_ms };
        change_of(entry).updates.push(update);
        seq
    }

    /// Adds the beginning of a turn, before all updates to come.
    pub(super) fn begin(&mut self, number: i64, turn_id: TurnId, prompt: String, boot_id: String, at_ms: i64) {
        let first_seq = self.next_seq;
        let begin = TurnBegin { number, turn_id, prompt, boot_id, first_seq };
        let entry = self.open_entry(at_ms, |entry| {
            entry.change.begin.is_none() && entry.change.end.is_none() && entry.change.updates.is_empty()
        });
        change_of(entry).begin = Some(begin);
    }

    /// Adds the end of a turn, after all updates so far.
    pub(super) fn end(&mut self, end: TurnEnd, at_ms: i64) {
        let entry = self.open_entry(at_ms, |entry| entry.change.end.is_none());
        change_of(entry).end = Some(end);
    }

    /// Adds a change of the session's row.
    pub(super) fn row(&mut self, change: RowChange, at_ms: i64) {
        let entry = self.open_entry(at_ms, |_| true);
        merge(&mut change_of(entry).row, change);
    }

    /// Has something done once all that was added so far is on disk; hands it back if it is there already.
    pub(super) fn then(&mut self, what: T) -> Option<T> {
        match self.waiting.back_mut().or(self.sent.as_mut()) {
            Some(entry) => {
                entry.then.push(what);
                None
            }
            None => Some(what),
        }
    }

    /// Returns the next change to send, if none is on its way.
    pub(super) fn next(&mut self) -> Option<Arc<SessionChange>> {
        if self.sent.is_some() {
            return None;
        }
        self.sent = self.waiting.pop_front();
        self.again()
    }

    /// Returns the change that is on its way, to be sent again after an unknown outcome.
    pub(super) fn again(&self) -> Option<Arc<SessionChange>> {
        self.sent.as_ref().map(|entry| Arc::clone(&entry.change))
    }

    /// Notes that the change on its way is on disk, and lets go of what it held.
    pub(super) fn stored(&mut self) -> Option<Stored<T>> {
        let entry = self.sent.take()?;
        if let Some(last) = entry.change.updates.last() {
            self.stored_seq = last.seq;
        }
        for (reply, bytes) in entry.held {
            drop(bytes);
            if let Some(reply) = reply {
                reply.send(());
            }
        }
        Some(Stored { change: entry.change, then: entry.then })
    }

    /// Forgets every update that is not on disk. What must not be lost with them comes back.
    pub(super) fn abandon(&mut self) -> Abandoned<T> {
        self.next_seq = self.stored_seq + 1;
        let mut abandoned = Abandoned { then: Vec::new(), end: None, unbegun: None, row: RowChange::default() };
        for entry in self.sent.take().into_iter().chain(self.waiting.drain(..)) {
            abandoned.then.extend(entry.then);
            let change = Arc::unwrap_or_clone(entry.change);
            abandoned.unbegun = abandoned.unbegun.or(change.begin.map(|begin| begin.number));
            let has_begun = |end: &TurnEnd| abandoned.unbegun.is_none_or(|number| end.number < number);
            abandoned.end = change.end.filter(has_begun).or(abandoned.end);
            merge(&mut abandoned.row, change.row);
        }
        abandoned
    }

    fn open_entry(&mut self, at_ms: i64, fits: impl Fn(&Entry<T>) -> bool) -> &mut Entry<T> {
        let last_fits = self.waiting.back().is_some_and(|entry| entry.then.is_empty() && fits(entry));
        if !last_fits {
            let change = SessionChange {
                row_id: self.row_id,
                updates: Vec::new(),
                begin: None,
                end: None,
                row: RowChange::default(),
                at_ms,
            };
            self.waiting.push_back(Entry { change: Arc::new(change), bytes: 0, held: Vec::new(), then: Vec::new() });
        }
        let last = self.waiting.len() - 1;
        let entry = &mut self.waiting[last];
        change_of(entry).at_ms = at_ms;
        entry
    }
}

/// Later values win.
fn merge(row: &mut RowChange, later: RowChange) {
    let RowChange { agent_session_id, setup, title, status } = later;
    row.agent_session_id = agent_session_id.or(row.agent_session_id.take());
    row.setup = setup.or(row.setup.take());
    row.title = title.or(row.title.take());
    row.status = status.or(row.status.take());
}

/// A change that waits is shared with nobody yet, so this copies nothing.
fn change_of<T>(entry: &mut Entry<T>) -> &mut SessionChange {
    Arc::make_mut(&mut entry.change)
}

#[cfg(test)]
mod tests {
    use holdfast_stores::acp_sessions::TurnOutcome;
    use uuid::Uuid;

    use super::*;

    fn journal() -> Journal<&'static str> {
        Journal::new(AcpSessionRowId(1), 10)
    }

    fn add(journal: &mut Journal<&'static str>) -> i64 {
        journal.update(Some(1), What::Update("agent_message_chunk"), "{}".to_owned(), 5, (None, None))
    }

    fn end() -> TurnEnd {
        TurnEnd { number: 1, outcome: TurnOutcome::Ended, stop_reason: None, result: None, error: None }
    }

    #[test]
    fn what_comes_while_a_change_is_on_its_way_goes_into_the_next() {
        let mut journal = journal();
        assert_eq!((add(&mut journal), add(&mut journal)), (11, 12));
        let first = journal.next().unwrap();
        assert_eq!(first.updates.len(), 2);
        assert_eq!(add(&mut journal), 13);
        assert!(journal.next().is_none(), "two changes were on their way");
        assert_eq!(journal.again().unwrap().updates, first.updates);
        assert_eq!(journal.stored_seq(), 10);
        journal.stored().unwrap();
        assert_eq!((journal.stored_seq(), journal.last_seq()), (12, 13));
        assert_eq!(journal.next().unwrap().updates[0].seq, 13);
    }

    #[test]
    fn a_turn_begins_before_its_updates_and_ends_after_them() {
        let mut journal = journal();
        add(&mut journal);
        journal.begin(2, TurnId(Uuid::nil()), "{}".to_owned(), "boot".to_owned(), 1);
        add(&mut journal);
        journal.end(end(), 2);
        add(&mut journal);
        let changes: Vec<_> = std::iter::from_fn(|| {
            let change = journal.next()?;
            journal.stored();
            Some((change.begin.is_some(), change.updates.len(), change.end.is_some()))
        })
        .collect();
        assert_eq!(changes, [(false, 1, false), (true, 1, true), (false, 1, false)]);
    }

    #[test]
    fn what_is_to_follow_waits_for_all_before_it_and_for_nothing_after() {
        let mut journal = journal();
        assert_eq!(journal.then("now"), Some("now"));
        add(&mut journal);
        assert_eq!(journal.then("after 11"), None);
        add(&mut journal);
        journal.next().unwrap();
        assert_eq!(journal.stored().unwrap().then, ["after 11"]);
        assert!(!journal.is_empty());
    }

    #[test]
    fn abandoned_positions_are_given_again() {
        let mut journal = journal();
        add(&mut journal);
        journal.then("first");
        journal.next().unwrap();
        add(&mut journal);
        journal.then("second");
        journal.end(end(), 3);
        let abandoned = journal.abandon();
        assert_eq!(abandoned.then, ["first", "second"]);
        assert!(abandoned.end.is_some());
        assert!(journal.is_empty());
        assert_eq!(add(&mut journal), 11);
    }

    #[test]
    fn a_turn_whose_beginning_is_abandoned_has_no_end() {
        let mut journal = journal();
        journal.end(end(), 1);
        journal.next().unwrap();
        journal.begin(2, TurnId(Uuid::nil()), "{}".to_owned(), "boot".to_owned(), 2);
        journal.end(TurnEnd { number: 2, ..end() }, 3);
        let abandoned = journal.abandon();
        assert_eq!((abandoned.end.map(|end| end.number), abandoned.unbegun), (Some(1), Some(2)));
    }

    #[test]
    fn a_flood_is_cut_into_transactions() {
        let mut journal = journal();
        for _ in 0..2_500 {
            add(&mut journal);
        }
        let mut sizes = Vec::new();
        while let Some(change) = journal.next() {
            sizes.push(change.updates.len());
            journal.stored();
        }
        assert_eq!(sizes, [1_024, 1_024, 452]);
    }
}
