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
}
