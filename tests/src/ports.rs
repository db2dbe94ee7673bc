//! Time and ids that a test decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use holdfast_actors::ports::{Clock, Ids, Ports};
use tokio::sync::watch;
use uuid::Uuid;

use crate::random::Random;

/// 2026-01-01T00:00:00Z.
pub const START_MS: i64 = 1_767_225_600_000;

/// A clock that stands still until it is moved; moving it wakes whoever waits for the time that has come.
#[derive(Debug)]
pub struct FakeClock {
    now_ms: watch::Sender<i64>,
}

impl FakeClock {
    /// Makes a clock that shows `now_ms`.
    pub fn at(now_ms: i64) -> Arc<Self> {
        Arc::new(Self { now_ms: watch::Sender::new(now_ms) })
    }

    /// Moves it forward.
    pub fn advance(&self, by_ms: i64) {
        self.now_ms.send_modify(|now_ms| *now_ms += by_ms);
    }

    /// Sets it, also back.
    pub fn set(&self, now_ms: i64) {
        self.now_ms.send_replace(now_ms);
    }

    /// Returns how many wait for a time to come. A test that is about to move the clock first waits until those it means
    /// to wake are there.
    pub fn waiting(&self) -> usize {
        self.now_ms.receiver_count()
    }
}

impl Clock for FakeClock {
    fn now_ms(&self) -> i64 {
        *self.now_ms.borrow()
    }

    fn wait_until(&self, at_ms: i64) -> BoxFuture<'_, ()> {
        let mut now_ms = self.now_ms.subscribe();
        Box::pin(async move {
            // The sender outlives the borrow of `self`, so the wait ends only with the time.
            let _shown = now_ms.wait_for(|now_ms| *now_ms >= at_ms).await;
        })
    }
}

/// Ids that are the same for the same seed, in order, and unlike those of another seed.
#[derive(Debug)]
pub struct SeededIds {
    clock: Arc<FakeClock>,
    seed: u64,
    made: AtomicU64,
}

impl SeededIds {
    /// Makes ids of `seed` whose time part comes from `clock`.
    pub fn new(clock: Arc<FakeClock>, seed: u64) -> Self {
        Self { clock, seed, made: AtomicU64::new(0) }
    }

    fn next(&self) -> (u64, Random) {
        let count = self.made.fetch_add(1, Ordering::Relaxed);
        (count, Random::new(self.seed ^ count.wrapping_mul(0xD6E8_FEB8_6659_FD93)))
    }
}

impl Ids for SeededIds {
    fn uuid_v7(&self) -> Uuid {
        let (count, mut random) = self.next();
        let now_ms = u64::try_from(self.clock.now_ms()).unwrap_or(0);
        let mut tail = [0; 10];
        // The count is in front, so that ids of one millisecond sort in the order in which they were made.
        tail[..4].copy_from_slice(&u32::try_from(count << 4).expect("fewer ids than that").to_be_bytes());
        tail[4..].copy_from_slice(&random.next_u64().to_be_bytes()[..6]);
        uuid::Builder::from_unix_timestamp_millis(now_ms, &tail).into_uuid()
    }

    fn random_key(&self) -> [u8; 32] {
        let (_, mut random) = self.next();
        let mut key = [0; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&random.next_u64().to_be_bytes());
        }
        key
    }
}

/// Makes the ports of a tree: a clock of its own and ids of `seed`.
pub fn fake_ports(seed: u64) -> (Ports, Arc<FakeClock>) {
    let clock = FakeClock::at(START_MS);
    let ids = Arc::new(SeededIds::new(Arc::clone(&clock), seed));
    (Ports { clock: Arc::clone(&clock) as Arc<dyn Clock>, ids }, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moving_the_clock_wakes_whose_time_has_come() {
        let clock = FakeClock::at(1_000);
        let waiter = {
            let clock = Arc::clone(&clock);
            tokio::spawn(async move { clock.wait_until(5_000).await })
        };
        while clock.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(3_999);
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        clock.advance(1);
        waiter.await.unwrap();
        assert_eq!(clock.now_ms(), 5_000);
    }

    #[test]
    fn ids_repeat_by_seed_and_sort_in_order() {
        let ids = |seed| {
            let (ports, _) = fake_ports(seed);
            (0..1_000).map(|_| ports.ids.uuid_v7()).collect::<Vec<_>>()
        };
        assert_eq!(ids(1), ids(1));
        assert_ne!(ids(1), ids(2));
        assert!(ids(3).is_sorted());
    }
}
