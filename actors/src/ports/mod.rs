//! What the outside gives: time, ids and randomness. Passed in, so that a test decides all three.

mod clock;
mod ids;

use std::sync::Arc;

pub use clock::{Clock, SystemClock};
pub use ids::{Ids, SystemIds};

/// The ports of one tree.
#[derive(Clone)]
pub struct Ports {
    /// Domain time.
    pub clock: Arc<dyn Clock>,
    /// Ids and randomness.
    pub ids: Arc<dyn Ids>,
}

impl Ports {
    /// Returns the real ones.
    pub fn system() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self { ids: Arc::new(SystemIds::new(Arc::clone(&clock))), clock }
    }
}
