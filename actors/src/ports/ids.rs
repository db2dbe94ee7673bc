//! Ids and randomness.

use std::sync::Arc;

use uuid::Uuid;

use crate::ports::Clock;

/// Makes ids and random bytes.
pub trait Ids: Send + Sync {
    /// Makes a UUID of version 7: unique, and sorted by the time it was made.
    fn uuid_v7(&self) -> Uuid;

    /// Returns 32 random bytes fit for keys.
    fn random_key(&self) -> [u8; 32];
}

/// Ids from the operating system's randomness and the tree's clock.
pub struct SystemIds {
    clock: Arc<dyn Clock>,
}

impl SystemIds {
    /// Makes ids whose time part comes from `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }
}

impl Ids for SystemIds {
    fn uuid_v7(&self) -> Uuid {
        let now_ms = u64::try_from(self.clock.now_ms()).unwrap_or(0);
        let random = Uuid::new_v4().into_bytes();
        let mut tail = [0; 10];
        tail.copy_from_slice(&random[..10]);
        uuid::Builder::from_unix_timestamp_millis(now_ms, &tail).into_uuid()
    }

    fn random_key(&self) -> [u8; 32] {
        // Three v4 UUIDs hold 366 bits from the operating system; hashing spreads them over all 256 bits of the key.
        let mut hasher = blake3::Hasher::new();
        for _ in 0..3 {
            hasher.update(Uuid::new_v4().as_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::SystemClock;

    #[test]
    fn ids_are_unique_and_carry_the_time() {
        let ids = SystemIds::new(Arc::new(SystemClock::new()));
        let (first, second) = (ids.uuid_v7(), ids.uuid_v7());
        assert_ne!(first, second);
        assert_eq!(first.get_version_num(), 7);
        assert_ne!(ids.random_key(), ids.random_key());
    }
}
