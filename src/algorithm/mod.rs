//! The rate algorithms: pure transitions of a small state, with no clock, no I/O and no store.
//!
//! Each has a twin in `lua/` that gives the same numbers to the microsecond (proof: `tests/twins.rs`; both are judged by the
//! naive models of `tests/reference.rs`). A state keeps what was used, never what is left, so a changed quota applies to it
//! at once. A transition first looks (`State::decide`), and only if the whole request passes is the state charged
//! (`State::charge`); what was charged can be given back (`State::release`). Time that runs backwards stands still.

use crate::clock::Micros;

mod fixed_window;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

/// 2^53: the largest unit count and the last instant. Lua's numbers are exact up to here; both twins stop here.
pub const LARGEST: u64 = 1 << 53;

/// The numbers of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quota {
    /// N, units per period: 1 ..= 2^53. (0 and "unlimited" never reach a store.)
    pub units: u64,
    /// W in microseconds, ≥ 1.
    pub period_us: u64,
    /// Token bucket only: what the bucket holds when full, 1 ..= 2^53. Equal to `units` elsewhere.
    pub burst: u64,
}

impl Quota {
    /// The time in which so many units of a bucket are refilled, rounded up.
    #[must_use]
    pub fn refill_us(&self, units: u64) -> u64 {
        multiply_divide_up(units, self.period_us, 0, self.units)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
}

/// What a limit has left, and how long until it is whole again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Whole units left: 0 ..= N (or burst).
    pub remaining: u64,
    /// Microseconds until the limit is whole again, rounded up; 0: it is whole.
    pub reset_us: u64,
}

/// What one limit says to one request; carries its evidence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    pub admitted: bool,
    /// The limit as it stands if this request is not charged to it.
    pub before: Standing,
    /// … and if it is. Equal to `before` when not admitted.
    pub after: Standing,
    /// When refused: microseconds until the same request passes, if alone on the key (≥ 1).
    /// `None` when admitted, or when no wait would help.
    pub retry_after_us: Option<u64>,
}

/// One counter's state. Its time is the time of whoever holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct State(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    FixedWindow(fixed_window::Window),
    SlidingWindowLog(Box<sliding_window_log::Log>),
    SlidingWindowCounter(sliding_window_counter::Counter),
    TokenBucket(token_bucket::Bucket),
}

/// What every algorithm answers. Instants, not waits: the wait is from the holder's `now`, even while its time stands still.
trait Transition {
    fn look(&self, quota: &Quota, now: Micros, cost: u64) -> Look;
    fn charge(&mut self, quota: &Quota, now: Micros, cost: u64);
    fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros);
    fn whole_at(&self, quota: &Quota) -> Micros;

    /// Charges up to `lease.units` of the `share`, to be spent within `lease.hold_us`; tells how many.
    fn lease(&mut self, quota: &Quota, now: Micros, lease: Lease, share: u64) -> u64 {
        let units = lease.units.min(share);
        if units > 0 {
            self.charge(quota, now, units);
        }
        units
    }
}

/// Units charged in advance, to be spent later by whoever asks for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// How many are wanted.
    pub units: u64,
    /// How long they are to be held, at most.
    pub hold_us: u64,
}

/// A lease takes no more than one part in so many of what remains: near the limit checks are exact again.
pub const LEASE_SHARE: u64 = 8;

/// One look at a counter.
struct Look {
    /// What the limit holds when whole.
    capacity: u64,
    left: u64,
    whole_at: Micros,
    /// When it is whole if the cost is charged now; only read when the cost fits.
    whole_after: Micros,
    /// When the cost fits if nobody else charges; only read when it does not fit now but could.
    passes_at: Micros,
}

impl Algorithm {
    pub const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SlidingWindowLog, Self::SlidingWindowCounter, Self::TokenBucket];

    /// As the configuration spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().0
    }

    /// One line for documentation and error texts.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        self.description().1
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// What a counter holds when whole: the quota's number, or the bucket's burst.
    #[must_use]
    pub const fn capacity(self, quota: &Quota) -> u64 {
        match self {
            Self::TokenBucket => quota.burst,
            Self::FixedWindow | Self::SlidingWindowLog | Self::SlidingWindowCounter => quota.units,
        }
    }

    /// Whether units can be charged now and spent a little later without harm to the limit. A log would have to move them.
    #[must_use]
    pub const fn is_leased(self) -> bool {
        match self {
            Self::SlidingWindowLog => false,
            Self::FixedWindow | Self::SlidingWindowCounter | Self::TokenBucket => true,
        }
    }

    /// How long `units` charged in advance may be held: to the end of the window that they were charged in; of a bucket, until
    /// it would be full but for them. `reset_us`: until the limit, so charged, is whole again.
    #[must_use]
    pub fn lease_lasts_us(self, quota: &Quota, units: u64, reset_us: u64) -> u64 {
        match self {
            Self::FixedWindow => reset_us,
            Self::SlidingWindowLog => 0,
            Self::SlidingWindowCounter => reset_us.saturating_sub(quota.period_us),
            Self::TokenBucket => reset_us.saturating_sub(quota.refill_us(units)),
        }
    }

    /// As charged when a lease is to be given back that was taken at `at` and lasts so long: never into a later window, and
    /// of a bucket's nothing once it would have been full without it, for then it has flowed back by itself.
    #[must_use]
    pub fn lease_charged_at(self, quota: &Quota, at: Micros, lasts_us: u64) -> Micros {
        match self {
            Self::TokenBucket => later(at, lasts_us).saturating_sub(quota.refill_us(quota.burst)).max(1),
            Self::FixedWindow | Self::SlidingWindowLog | Self::SlidingWindowCounter => at,
        }
    }

    const fn description(self) -> (&'static str, &'static str) {
        match self {
            Self::FixedWindow => {
                ("fixed_window", "counts in windows that start at multiples of the period; may admit 2N across an edge")
            }
            Self::SlidingWindowLog => (
                "sliding_window_log",
                "remembers each admitted unit's time; exact in any interval, memory grows with N",
            ),
            Self::SlidingWindowCounter => (
                "sliding_window_counter",
                "two windows, the previous one weighted by its share of the last period; small, close to exact",
            ),
            Self::TokenBucket => ("token_bucket", "refills steadily up to a burst; smooths, and allows short peaks"),
        }
    }
}

impl State {
    /// The state of a key nobody has asked for.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::FixedWindow => Kind::FixedWindow(fixed_window::Window::default()),
            Algorithm::SlidingWindowLog => Kind::SlidingWindowLog(Box::default()),
            Algorithm::SlidingWindowCounter => Kind::SlidingWindowCounter(sliding_window_counter::Counter::default()),
            Algorithm::TokenBucket => Kind::TokenBucket(token_bucket::Bucket::default()),
        })
    }

    /// Which algorithm this is a state of. A limit whose algorithm was changed starts anew.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.0 {
            Kind::FixedWindow(_) => Algorithm::FixedWindow,
            Kind::SlidingWindowLog(_) => Algorithm::SlidingWindowLog,
            Kind::SlidingWindowCounter(_) => Algorithm::SlidingWindowCounter,
            Kind::TokenBucket(_) => Algorithm::TokenBucket,
        }
    }

    /// Looks: what would be said to a request of `cost` units (≥ 0) at `now`. Changes nothing.
    #[must_use]
    pub fn decide(&self, quota: &Quota, now: Micros, cost: u64) -> Decision {
        let look = self.transition().look(quota, now, cost);
        let before = Standing { remaining: look.left, reset_us: look.whole_at.saturating_sub(now) };
        if cost <= look.left {
            let after = Standing { remaining: look.left - cost, reset_us: look.whole_after.saturating_sub(now) };
            return Decision { admitted: true, before, after, retry_after_us: None };
        }
        let retry_after_us = (cost <= look.capacity).then(|| look.passes_at.saturating_sub(now).max(1));
        Decision { admitted: false, before, after: before, retry_after_us }
    }

    /// Charges `cost` units at `now`; the caller has seen `decide` admit them.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        if cost > 0 {
            self.transition_mut().charge(quota, now, cost);
        }
    }

    /// Charges as much of `cost` as still fits (what was admitted while the store was away); tells how much.
    pub fn charge_up_to(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let fits = cost.min(self.transition().look(quota, now, 0).left);
        self.charge(quota, now, fits);
        fits
    }

    /// Charges units in advance, after the cost of the check that asks for them; tells how many.
    pub fn lease(&mut self, quota: &Quota, now: Micros, lease: Lease) -> u64 {
        if lease.units == 0 || !self.algorithm().is_leased() {
            return 0;
        }
        let share = self.transition().look(quota, now, 0).left / LEASE_SHARE;
        self.transition_mut().lease(quota, now, lease, share)
    }

    /// Gives back `cost` units that were charged at `charged_at`: never more than was charged, never into a later window.
    pub fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        self.transition_mut().release(quota, now, cost, charged_at);
    }

    /// When this state says no more than a fresh one would: the store may forget it then (µs since the epoch).
    #[must_use]
    pub fn whole_at(&self, quota: &Quota) -> Micros {
        self.transition().whole_at(quota)
    }

    fn transition(&self) -> &dyn Transition {
        match &self.0 {
            Kind::FixedWindow(window) => window,
            Kind::SlidingWindowLog(log) => log.as_ref(),
            Kind::SlidingWindowCounter(counter) => counter,
            Kind::TokenBucket(bucket) => bucket,
        }
    }

    fn transition_mut(&mut self) -> &mut dyn Transition {
        match &mut self.0 {
            Kind::FixedWindow(window) => window,
            Kind::SlidingWindowLog(log) => log.as_mut(),
            Kind::SlidingWindowCounter(counter) => counter,
            Kind::TokenBucket(bucket) => bucket,
        }
    }
}

/// The start of the window that holds `at`; windows are aligned to the epoch.
const fn window_start(at: Micros, period_us: u64) -> Micros {
    at - at % period_us
}

/// `wait` after `at`, no later than the last instant.
fn later(at: Micros, wait: u64) -> Micros {
    at.saturating_add(wait).min(LARGEST)
}

/// ⌊(a·b + add) / divisor⌋, stopped at 2^53, and the remainder; exact for every operand.
fn multiply_divide(a: u64, b: u64, add: u64, divisor: u64) -> (u64, u64) {
    // Nearly all products fit in 64 bits, and there the division is several times cheaper.
    if let Some(product) = a.checked_mul(b).and_then(|product| product.checked_add(add)) {
        return ((product / divisor).min(LARGEST), product % divisor);
    }
    let (product, divisor) = (u128::from(a) * u128::from(b) + u128::from(add), u128::from(divisor));
    (narrow(product / divisor), narrow(product % divisor))
}

/// ⌈(a·b + add) / divisor⌉, stopped at 2^53.
fn multiply_divide_up(a: u64, b: u64, add: u64, divisor: u64) -> u64 {
    let (quotient, rest) = multiply_divide(a, b, add, divisor);
    (quotient + u64::from(rest > 0)).min(LARGEST)
}

fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(LARGEST).min(LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
            assert_eq!(State::new(algorithm).algorithm(), algorithm);
        }
        assert_eq!(Algorithm::from_name("leaky_bucket"), None);
    }

    #[test]
    fn a_state_is_small_enough_for_ten_million_of_them() {
        assert!(size_of::<State>() <= 32, "{} bytes", size_of::<State>());
    }
}
