//! How often a crashed actor is started again, and how soon. Pure: time is passed in.

use std::collections::VecDeque;
use std::time::Duration;

/// The limit on restarts after crashes. Planned reloads do not count.
#[derive(Debug, Clone, Copy)]
pub struct Intensity {
    /// How many crashes within `period` are answered by a restart; one more and the surface is down.
    pub restarts_max: usize,
    /// The window the crashes are counted in.
    pub period: Duration,
    /// The pause before the second restart of a window; it doubles with each further one.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
}

impl Default for Intensity {
    /// 5 restarts in 30 s; pauses of 0, 50, 100, 200, 400 ms.
    fn default() -> Self {
        Self {
            restarts_max: 5,
            period: Duration::from_secs(30),
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
        }
    }
}

/// The crashes of one child within the window. Times are durations since any fixed start.
#[derive(Debug, Default)]
pub(super) struct CrashWindow {
    crashes: VecDeque<Duration>,
}

/// What to do after a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    RestartAfter(Duration),
    GiveUp,
}

impl CrashWindow {
    pub(super) fn crashed(&mut self, now: Duration, intensity: &Intensity) -> Verdict {
        while self.crashes.front().is_some_and(|at| now.saturating_sub(*at) > intensity.period) {
            self.crashes.pop_front();
        }
        self.crashes.push_back(now);
        let count = self.crashes.len();
        if count > intensity.restarts_max {
            return Verdict::GiveUp;
        }
        match u32::try_from(count - 1).unwrap_or(u32::MAX) {
            0 => Verdict::RestartAfter(Duration::ZERO),
            earlier => {
                let factor = 1u32.checked_shl(earlier - 1).unwrap_or(u32::MAX);
                Verdict::RestartAfter(intensity.backoff.saturating_mul(factor).min(intensity.backoff_max))
            }
        }
    }

    pub(super) fn forget(&mut self) {
        self.crashes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_the_window_slides() {
        let intensity = Intensity { restarts_max: 3, ..Intensity::default() };
        let mut window = CrashWindow::default();
        let at = Duration::from_secs;
        assert_eq!(window.crashed(at(1), &intensity), Verdict::RestartAfter(Duration::ZERO));
        assert_eq!(window.crashed(at(2), &intensity), Verdict::RestartAfter(Duration::from_millis(50)));
        assert_eq!(window.crashed(at(3), &intensity), Verdict::RestartAfter(Duration::from_millis(100)));
        assert_eq!(window.crashed(at(4), &intensity), Verdict::GiveUp);
        assert_eq!(window.crashed(at(100), &intensity), Verdict::RestartAfter(Duration::ZERO));
        window.forget();
        assert_eq!(window.crashed(at(101), &intensity), Verdict::RestartAfter(Duration::ZERO));
    }
}
