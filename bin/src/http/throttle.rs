//! Slows down whoever tries tokens. Lock-free counters of fixed size, so that trying costs the daemon nothing.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Wrong tokens from one place within a minute; past it the place is refused until the minute is over.
const FAILURES_MAX: u64 = 20;
const WINDOW_SECONDS: u64 = 60;
const PLACES: usize = 256;

/// Counts of wrong tokens. Places share a counter now and then; the hash is keyed, so nobody can arrange to share one.
pub(super) struct Throttle {
    /// The start of the window in seconds, and in the low 16 bits how many failed in it.
    counters: [AtomicU64; PLACES],
    hasher: RandomState,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { counters: [const { AtomicU64::new(0) }; PLACES], hasher: RandomState::new() }
    }
}

impl Throttle {
    /// Says whether `ip` may try a token at `now_seconds` (of any clock that does not go back).
    pub(super) fn allows(&self, ip: IpAddr, now_seconds: u64) -> bool {
        let packed = self.counter(ip).load(Ordering::Relaxed);
        let (started, failures) = (packed >> 16, packed & 0xFFFF);
        now_seconds.saturating_sub(started) >= WINDOW_SECONDS || failures < FAILURES_MAX
    }

    /// Counts a wrong token.
    pub(super) fn failed(&self, ip: IpAddr, now_seconds: u64) {
        let next = |packed: u64| {
            let (started, failures) = (packed >> 16, packed & 0xFFFF);
            if packed == 0 || now_seconds.saturating_sub(started) >= WINDOW_SECONDS {
                (now_seconds << 16) | 1
            } else {
                (started << 16) | (failures + 1).min(0xFFFF)
            }
        };
        // The closure always returns a value, so this always stores one.
        let _previous =
            self.counter(ip).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |packed| Some(next(packed)));
    }

    fn counter(&self, ip: IpAddr) -> &AtomicU64 {
        let place = match ip.to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // One machine has a whole /64 to choose from.
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        &self.counters[(self.hasher.hash_one(place) % PLACES as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_wrong_tokens_a_minute_and_no_more() {
        let throttle = Throttle::default();
        let ip: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        for now in 0..20 {
            assert!(throttle.allows(ip, now));
            throttle.failed(ip, now);
        }
        assert!(!throttle.allows("127.0.0.1".parse().unwrap(), 20));
        assert!(!throttle.allows(ip, 59));
        assert!(throttle.allows(ip, 60));
        throttle.failed(ip, 60);
        assert!(throttle.allows(ip, 61));
    }
}
