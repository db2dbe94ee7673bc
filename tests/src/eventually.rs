//! Waits for a state, not for a time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How often a state is looked at.
const STEP: Duration = Duration::from_millis(5);

/// Long enough for anything a healthy daemon does on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until what is seen is `good`, and returns it.
///
/// # Panics
/// When that takes longer than `limit`; says what was seen last.
#[track_caller]
pub fn eventually<T: Debug>(limit: Duration, mut look: impl FnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + limit;
    loop {
        let seen = look();
        if good(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}; last seen: {seen:?}");
        std::thread::sleep(STEP);
    }
}

/// Like [`eventually`], for looks that await.
///
/// # Panics
/// As [`eventually`].
pub async fn eventually_async<T: Debug>(
    limit: Duration,
    mut look: impl AsyncFnMut() -> T,
    good: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        let seen = look().await;
        if good(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}; last seen: {seen:?}");
        tokio::time::sleep(STEP).await;
    }
}
