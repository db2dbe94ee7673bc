//! Domain time. Instants are UTC milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;

/// How often the wall clock is looked at again where the system does not announce its changes.
const RECHECK: Duration = Duration::from_secs(30);

/// Tells the time and waits for it.
pub trait Clock: Send + Sync {
    /// Returns the time now.
    fn now_ms(&self) -> i64;

    /// Waits until the wall clock shows `at_ms` or later, also after the clock was set or the machine slept.
    fn wait_until(&self, at_ms: i64) -> BoxFuture<'_, ()>;
}

/// The system's wall clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Makes one.
    pub fn new() -> Self {
        Self
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn wait_until(&self, at_ms: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let left_ms = at_ms.saturating_sub(self.now_ms());
                let Ok(left_ms) = u64::try_from(left_ms) else { return };
                if left_ms == 0 {
                    return;
                }
                #[cfg(target_os = "linux")]
                if timer::wait(at_ms).await.is_ok() {
                    continue;
                }
                tokio::time::sleep(Duration::from_millis(left_ms).min(RECHECK)).await;
            }
        })
    }
}

#[cfg(target_os = "linux")]
mod timer {
    //! A timer on the wall clock that also wakes when the clock is set or the machine wakes up.
    //! Source: timerfd_create(2), `TFD_TIMER_CANCEL_ON_SET`.

    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    /// Waits until the wall clock shows `at_ms` or was set. The caller looks at the clock again.
    pub(super) async fn wait(at_ms: i64) -> io::Result<()> {
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let value = Timespec { tv_sec: at_ms.div_euclid(1_000), tv_nsec: at_ms.rem_euclid(1_000) * 1_000_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once)?;
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped, and only `AsyncFd` drops it.
        let timer: AsyncFd<OwnedFd> = unsafe { AsyncFd::register(timer) }?;
        // Readable means expired, or cancelled because the clock was set; both end the wait.
        timer.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_the_wall_clock_is_there() {
        let clock = SystemClock::new();
        let at_ms = clock.now_ms() + 20;
        clock.wait_until(at_ms).await;
        assert!(clock.now_ms() >= at_ms);
        clock.wait_until(0).await;
    }
}
