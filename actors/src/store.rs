//! What every surface that owns a store does alike: say why it is down, and check its file after an unclean stop.

use std::error::Error;
use std::time::Duration;

use holdfast_protocol::error::ErrorKind;
use holdfast_stores::kit::{OpenError, Reader, Readers, StoreError};
use tracing::Instrument;

use crate::address::{Address, CallError, Down};
use crate::shown::Shown;
use crate::stats::SurfaceStats;
use crate::surface::Fault;

/// Returns why a surface is down when its store can't be opened.
pub fn down(error: &OpenError) -> Down {
    Down { kind: error.kind(), reason: chain(error), remedy: error.remedy() }
}

/// Returns why a surface is down when its store was opened and can't be used.
pub fn unusable(error: &StoreError) -> Down {
    let remedy = error.remedy().unwrap_or("see the log for the cause, then `holdfast reload`");
    Down { kind: error.kind(), reason: chain(error), remedy: remedy.to_owned() }
}

/// Returns why a surface is down when its store's file turns out to be damaged.
pub fn damaged(store: &'static str, problem: &str) -> Down {
    Down {
        kind: ErrorKind::Damaged,
        reason: format!("the file of store `{store}` is damaged: {problem}"),
        remedy: StoreError::DAMAGED_REMEDY.to_owned(),
    }
}

/// Notes on `stats` what the answers of one commit say about the storage: it refused, or it took a write. Answers that
/// wrote nothing are left out by the caller.
pub fn note_writes<'a>(
    stats: &SurfaceStats,
    now_ms: i64,
    answers: impl IntoIterator<Item = Result<(), &'a StoreError>>,
) {
    let mut took = false;
    for answer in answers {
        match answer {
            Ok(()) => took = true,
            Err(error) if error.is_storage_fault() => {
                let remedy = error.remedy().unwrap_or("see the log for the cause");
                return stats.storage_refused(now_ms, chain(error), remedy);
            }
            Err(_) => {}
        }
    }
    if took {
        stats.storage_took();
    }
}

/// Returns an error and its causes as one text.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // A wrapper that says what its cause says.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Checks a store's whole file beside its owner's work and reports what is wrong with it.
pub fn check_in_background(readers: Readers, report: impl FnOnce(Result<Vec<String>, StoreError>) + Send + 'static) {
    tokio::spawn(async move { report(readers.quick_check().await) }.in_current_span());
}

/// Takes a reader of the store whose owner, at `address`, shows what `readers` finds. One that closes meanwhile belongs to
/// an owner that restarts: the next one's is waited for, `limit` at most.
///
/// # Errors
/// When the owner does not serve, or the store hands out none.
pub async fn reader<T, M, E>(
    shown: &Shown<T>,
    readers: impl Fn(&T) -> &Readers,
    address: &Address<M>,
    limit: Duration,
) -> Result<Reader, E>
where
    T: Clone + Send + Sync + 'static,
    M: Send + 'static,
    E: From<CallError> + From<StoreError>,
{
    let taken = async {
        loop {
            let shown = shown.get(address, limit).await?;
            match readers(&shown).reader().await {
                // Hidden before it was closed, so the next look waits.
                Err(StoreError::Closed { .. }) => {}
                taken => return Ok(taken?),
            }
        }
    };
    tokio::time::timeout(limit, taken).await.unwrap_or_else(|_passed| Err(CallError::Timeout.into()))
}

/// Judges a check: damage downs the surface.
///
/// # Errors
/// [`Fault::Down`] when the file is damaged.
pub fn judge_check(store: &'static str, problems: Result<Vec<String>, StoreError>) -> Result<(), Fault> {
    match problems {
        Ok(problems) => match problems.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(Fault::Down(damaged(store, &problem))),
        },
        Err(error) => {
            tracing::warn!(store, error = %chain(&error), "the file could not be checked after an unclean stop");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn only_the_storage_itself_makes_trouble_and_only_a_write_ends_it() {
        let source = || Arc::new(sqlx::Error::WorkerCrashed);
        let (store, action) = ("sessions", "append events");
        let full = StoreError::Full { store, action, source: source() };
        let large = StoreError::TooLarge { store, action, source: source() };
        let stats = SurfaceStats::default();
        note_writes(&stats, 1, [Err(&large)]);
        assert_eq!(stats.storage_trouble(), None);
        note_writes(&stats, 2, [Ok(()), Err(&full)]);
        let trouble = stats.storage_trouble().unwrap();
        assert_eq!(trouble.since_ms, 2);
        assert!(trouble.reason.starts_with("failed to append events in store `sessions`: the storage is full"));
        assert!(trouble.remedy.contains("free some space"));
        note_writes(&stats, 3, [Err(&large)]);
        note_writes(&stats, 4, []);
        assert_eq!(stats.storage_trouble().map(|trouble| trouble.since_ms), Some(2));
        note_writes(&stats, 5, [Err(&large), Ok(())]);
        assert_eq!(stats.storage_trouble(), None);
    }
}
