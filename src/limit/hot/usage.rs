//! How much of a key this gateway used lately: as much as a lease may be.

use crate::clock::Micros;

/// A time of this process, and how long the cache remembers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub now: Micros,
    pub ttl: Micros,
}

/// Units used in the last ttl, from two periods of that length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    since: Micros,
    current: u64,
    previous: u64,
}

impl Usage {
    pub fn count(&mut self, units: u64, at: Moment) {
        let Moment { now, ttl } = at;
        let passed = now.saturating_sub(self.since);
        if passed >= ttl {
            let previous = if passed < 2 * ttl { self.current } else { 0 };
            let since = if passed < 2 * ttl { self.since + ttl } else { now };
            *self = Self { since, current: 0, previous };
        }
        self.current += units;
    }

    pub fn take_back(&mut self, units: u64) {
        self.current = self.current.saturating_sub(units);
    }

    /// The previous period weighted by how much of it lies in the last ttl.
    pub fn last(&self, at: Moment) -> u64 {
        let Moment { now, ttl } = at;
        let passed = now.saturating_sub(self.since);
        let weigh = |units: u64, left: u64| u64::try_from(u128::from(units) * u128::from(left) / u128::from(ttl));
        match passed / ttl.max(1) {
            0 => self.current + weigh(self.previous, ttl - passed).unwrap_or(0),
            1 => weigh(self.current, 2 * ttl - passed).unwrap_or(0),
            _ => 0,
        }
    }
}
