//! The only place that reads time.
//!
//! Time on a limit's path is integer microseconds since the Unix epoch. The process clock is anchored once, at its first
//! reading, and runs on the monotonic clock from there: a step of the wall clock can neither hand out a window twice nor
//! freeze a counter. Wall time for people (`X-RateLimit-Reset`, logs) is read from the system as it is.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub type Micros = u64;

static ANCHOR: OnceLock<(Instant, Micros)> = OnceLock::new();

/// The process clock: never steps, never goes back.
#[must_use]
pub fn now_us() -> Micros {
    let (instant, epoch_us) = ANCHOR.get_or_init(|| (now(), wall_us()));
    epoch_us + micros(now().duration_since(*instant))
}

/// The system's wall clock, as people and clients read it.
#[must_use]
pub fn wall_us() -> Micros {
    micros(wall().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[allow(clippy::disallowed_methods, reason = "this file is where time is read")]
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// A monotonic instant, for deadlines and durations.
#[allow(clippy::disallowed_methods, reason = "this file is where time is read")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// A duration in whole microseconds; saturates after half a million years.
#[must_use]
pub fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
