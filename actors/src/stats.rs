//! What is observed of a surface. Atomic counters, so that reading them asks nobody and disturbs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_protocol::health::HealthWarning;
use tokio::sync::watch;

const BUCKETS: usize = 32;

/// Counters of one surface over all its incarnations.
#[derive(Debug)]
pub struct SurfaceStats {
    generation: AtomicU64,
    restarts: AtomicU64,
    handled: AtomicU64,
    size_bytes: AtomicU64,
    commits: AtomicU64,
    // Commits by the binary logarithm of their time in microseconds.
    commit_us_log2: [AtomicU64; BUCKETS],
    warnings: watch::Sender<Arc<[HealthWarning]>>,
    storage: watch::Sender<Option<StorageTrouble>>,
}

/// Why the storage of a surface took no write, until one succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageTrouble {
    /// When it first refused, UTC milliseconds.
    pub since_ms: i64,
    /// What it said last.
    pub reason: String,
    /// What a person can do about it.
    pub remedy: String,
}

impl Default for SurfaceStats {
    fn default() -> Self {
        Self {
            generation: AtomicU64::default(),
            restarts: AtomicU64::default(),
            handled: AtomicU64::default(),
            size_bytes: AtomicU64::default(),
            commits: AtomicU64::default(),
            commit_us_log2: Default::default(),
            warnings: watch::Sender::new(Arc::new([])),
            storage: watch::Sender::new(None),
        }
    }
}

impl SurfaceStats {
    /// Returns the generation the surface last started with.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns how often a crash restarted the surface; reloads do not count.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns how many messages were handled.
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Returns the size of the surface's store in bytes, as last recorded.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Records the size of the store.
    pub fn set_size_bytes(&self, bytes: u64) {
        self.size_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns what works but should be put right, as the surface last said.
    pub fn warnings(&self) -> Arc<[HealthWarning]> {
        Arc::clone(&self.warnings.borrow())
    }

    /// Says what works but should be put right, in place of what was said before.
    pub fn set_warnings(&self, warnings: Vec<HealthWarning>) {
        self.warnings.send_replace(warnings.into());
    }

    /// Returns how many commits were made.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Records one commit.
    pub fn commit_took(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let bucket = usize::try_from(us.ilog2()).unwrap_or(BUCKETS - 1).min(BUCKETS - 1);
        self.commit_us_log2[bucket].fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the median time of a commit in microseconds (the upper edge of its power-of-two bucket), if any was made.
    pub fn commit_p50_us(&self) -> Option<u64> {
        let counts: Vec<u64> = self.commit_us_log2.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut seen = 0;
        counts.iter().enumerate().find_map(|(bucket, count)| {
            seen += count;
            (total > 0 && seen * 2 >= total).then(|| 2u64 << bucket)
        })
    }

    /// Returns why the storage took no write, if the last one failed for its sake.
    pub fn storage_trouble(&self) -> Option<StorageTrouble> {
        self.storage.borrow().clone()
    }

    /// Notes that the storage refused a write at `now_ms`.
    pub fn storage_refused(&self, now_ms: i64, reason: String, remedy: &str) {
        self.storage.send_modify(|trouble| {
            let since_ms = trouble.as_ref().map_or(now_ms, |trouble| trouble.since_ms);
            *trouble = Some(StorageTrouble { since_ms, reason, remedy: remedy.to_owned() });
        });
    }

    /// Notes that a write succeeded.
    pub fn storage_took(&self) {
        self.storage.send_if_modified(|trouble| trouble.take().is_some());
    }

    pub(crate) fn started(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    pub(crate) fn crashed(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn message_handled(&self) {
        self.handled.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_commit_is_the_upper_edge_of_its_bucket() {
        let stats = SurfaceStats::default();
        assert_eq!(stats.commit_p50_us(), None);
        for us in [100, 110, 120, 5_000] {
            stats.commit_took(Duration::from_micros(us));
        }
        assert_eq!(stats.commit_p50_us(), Some(128));
        assert_eq!(stats.commits(), 4);
    }

    #[test]
    fn trouble_keeps_its_beginning_until_a_write_succeeds() {
        let stats = SurfaceStats::default();
        stats.storage_took();
        assert_eq!(stats.storage_trouble(), None);
        stats.storage_refused(5, "full".to_owned(), "free some space");
        stats.storage_refused(9, "failed".to_owned(), "check the disk");
        let expected = StorageTrouble { since_ms: 5, reason: "failed".to_owned(), remedy: "check the disk".to_owned() };
        assert_eq!(stats.storage_trouble(), Some(expected));
        stats.storage_took();
        assert_eq!(stats.storage_trouble(), None);
    }
}
