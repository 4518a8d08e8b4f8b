//! All limits of a request, decided together.
//!
//! `rule` turns a request into one question per limit, `limiter` asks and makes one outcome of the answers, `hot` answers for
//! busy keys before the store is asked, `failure` is what happens where the store gave no answer. How a decision is told to clients is `respond`'s.

pub mod failure;
pub mod hot;
pub mod limiter;
pub mod name;
pub mod rule;

pub use limiter::{Limiter, Outcome, Ruling};
pub use name::Name;
pub use rule::{Allowance, Exceptions, Limit, Matcher, OnFailure, OnMissingKey, RouteLimit};

use crate::algorithm::{Algorithm, Quota};

/// How one limit stands to one request, for the answer's fields, the log and the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Told<'l> {
    pub name: &'l Name,
    /// What the counter holds when whole: the quota's number, or the burst of a bucket.
    pub capacity: u64,
    pub policy: Policy<'l>,
    pub remaining: u64,
    /// Until the limit is whole again; when `refused`, see `retry_after_us`.
    pub reset_us: u64,
    pub refused: bool,
    /// When `refused`: the wait; `None`: no wait helps.
    pub retry_after_us: Option<u64>,
}

/// How `RateLimit-Policy` tells a limit.
#[derive(Clone, Copy, Debug)]
pub enum Policy<'l> {
    /// As it was written when the configuration was loaded.
    Written(&'l [u8]),
    /// For a key with a quota of its own, by the window told as `w`: the period; of a bucket, the time in which the burst
    /// refills (µs).
    Window(u64),
}

/// The time in which a bucket refills wholly, or a window's length.
#[must_use]
pub fn window_us(quota: &Quota, algorithm: Algorithm) -> u64 {
    if algorithm == Algorithm::TokenBucket {
        let wide = u128::from(quota.burst) * u128::from(quota.period_us);
        u64::try_from(wide.div_ceil(u128::from(quota.units))).unwrap_or(u64::MAX)
    } else {
        quota.period_us
    }
}
