//! The only place that reads time.
//!
//! Time on a limit's path is integer microseconds since the Unix epoch. The process clock is anchored once, at its first
//! reading, and runs on the monotonic clock from there: a step of the wall clock can neither hand out a window twice nor
//! freeze a counter. Wall time for people (`X-RateLimit-Reset`, logs) is read from the system as it is.
//!
//! A reading costs some 25 ns, so a request's is taken once and told in whichever clock is asked for: `us_at`, `wall_us_at`.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub type Micros = u64;

/// How long a step of the wall clock may go unnoticed.
const WALL_LASTS: Duration = Duration::from_millis(100);

static ANCHOR: OnceLock<(Instant, Micros)> = OnceLock::new();

thread_local! {
    /// The wall clock's last reading. It was read before the instant, so what is counted on from it is never ahead of it.
    static WALL: Cell<Option<(Instant, Micros)>> = const { Cell::new(None) };
}

/// The process clock: never steps, never goes back.
#[must_use]
pub fn now_us() -> Micros {
    us_at(now())
}

/// The process clock at an instant.
#[must_use]
pub fn us_at(instant: Instant) -> Micros {
    let (anchor, epoch_us) = ANCHOR.get_or_init(|| (now(), wall_us()));
    epoch_us + micros(instant.saturating_duration_since(*anchor))
}

/// The system's wall clock, as people and clients read it.
#[must_use]
pub fn wall_us() -> Micros {
    micros(wall().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The wall clock at an instant of this moment.
#[must_use]
pub fn wall_us_at(instant: Instant) -> Micros {
    if let Some((read, wall_us)) = WALL.get()
        && let Some(passed) = instant.checked_duration_since(read)
        && passed < WALL_LASTS
    {
        return wall_us + micros(passed);
    }
    // Two less for what whole microseconds leave out: ahead of the process clock by one, and a window that ends on a whole
    // second would be told a second late.
    let wall_us = wall_us().saturating_sub(2);
    let read = now();
    WALL.set(Some((read, wall_us)));
    wall_us.saturating_sub(micros(read.saturating_duration_since(instant)))
}

#[allow(clippy::disallowed_methods, reason = "this file is where time is read")]
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// A monotonic instant, for deadlines and durations. It is the timers', which a test can turn; outside tests, the system's.
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A duration in whole microseconds; saturates after half a million years.
#[must_use]
pub fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instants_wall_time_is_never_ahead_of_the_wall_clock_and_follows_it() {
        for _ in 0..1000 {
            let (before, instant) = (wall_us(), now());
            let told = wall_us_at(instant);
            assert!(told <= wall_us() && told + 1000 >= before, "{told} {before}");
        }
    }
}
