//! Randomness that can be had again: every run prints its seed.

/// A small generator (SplitMix64, Steele, Lea and Flood 2014): good enough to choose moments, and the same everywhere.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Makes a generator that always yields the same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Takes the seed from `HOLDFAST_TEST_SEED`, else from the system, and prints it.
    ///
    /// # Panics
    /// When the variable is no number.
    pub fn for_test(name: &str) -> Self {
        let seed = match std::env::var("HOLDFAST_TEST_SEED") {
            Ok(text) => text.parse().expect("HOLDFAST_TEST_SEED is a number"),
            Err(_) => uuid::Uuid::new_v4().as_u64_pair().0,
        };
        println!("{name}: repeat with HOLDFAST_TEST_SEED={seed}");
        Self::new(seed)
    }

    /// Returns any number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, `high` not included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high - low).max(1)
    }
}
