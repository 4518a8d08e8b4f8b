//! The rate algorithms: pure transitions of a small state, with no clock, no I/O and no store.
//!
//! Each has a twin in `lua/` that gives the same numbers to the microsecond (semantics: `docs`; proof: `tests/twins.rs`).
//! A transition first looks (`State::decide`), and only if the whole request passes is the state charged
//! (`State::charge`); what was charged can be given back (`State::release`).

use crate::clock::Micros;

/// The numbers of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// N, units per period: 1 ..= 2^53. (0 and "unlimited" never reach a store.)
    pub units: u64,
    /// W in microseconds, ≥ 1.
    pub period_us: u64,
    /// Token bucket only: what the bucket holds when full, 1 ..= 2^53. Equal to `units` elsewhere.
    pub burst: u64,
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
pub struct State {
    _owned_by_the_algorithm_helper: (),
}

impl Algorithm {
    pub const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SlidingWindowLog, Self::SlidingWindowCounter, Self::TokenBucket];
}

#[allow(unused_variables, clippy::unused_self)]
impl State {
    /// The state of a key nobody has asked for.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        unimplemented!()
    }

    /// Looks: what would be said to a request of `cost` units (≥ 0) at `now`. Changes nothing.
    #[must_use]
    pub fn decide(&self, quota: &Quota, now: Micros, cost: u64) -> Decision {
        unimplemented!()
    }

    /// Charges `cost` units at `now`; the caller has seen `decide` admit them.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        unimplemented!()
    }

    /// Charges as much of `cost` as still fits (what was admitted while the store was away); tells how much.
    pub fn charge_up_to(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        unimplemented!()
    }

    /// Gives back `cost` units that were charged at `charged_at`: never more than was charged, never into a later window.
    pub fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        unimplemented!()
    }

    /// When this state says no more than a fresh one would: the store may forget it then (µs since the epoch).
    #[must_use]
    pub fn whole_at(&self, quota: &Quota) -> Micros {
        unimplemented!()
    }
}
