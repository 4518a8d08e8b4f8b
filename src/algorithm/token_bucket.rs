//! A bucket of `burst` tokens, refilled by N per W: at most burst + N·t/W in any interval t.
//!
//! State: what is missing from it, used − phase/W tokens with 0 ≤ phase < W, so `used` is what is missing in whole tokens,
//! rounded up. All integers, hence exact at every rate: refilling for t µs adds N·t to the phase and nothing is ever cut.
//! Twin: `lua/token_bucket.lua`.

use super::{Lease, Look, Quota, Transition, later, multiply_divide, multiply_divide_up};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bucket {
    at: Micros,
    used: u64,
    phase: u64,
}

impl Bucket {
    /// The bucket as it is at `now`. A phase of another period is dropped.
    fn at(self, quota: &Quota, now: Micros) -> Self {
        let at = now.max(self.at);
        let phase = if self.phase < quota.period_us { self.phase } else { 0 };
        let (refilled, phase) = multiply_divide(quota.units, at - self.at, phase, quota.period_us);
        if refilled >= self.used {
            Self { at, used: 0, phase: 0 }
        } else {
            Self { at, used: self.used - refilled, phase }
        }
    }

    /// When `tokens` more have been refilled. With the phase as (W − phase) on top of one token less, all terms are positive.
    fn refilled_at(self, quota: &Quota, tokens: u64) -> Micros {
        if tokens == 0 {
            return 0;
        }
        later(self.at, multiply_divide_up(tokens - 1, quota.period_us, quota.period_us - self.phase, quota.units))
    }

    /// The same bucket, told from the latest instant a token's refill began: the phase is then below N, and 0
    /// wherever N divides W, so the stored form is short.
    fn told_from_last_token(self, quota: &Quota) -> Self {
        Self { at: self.at.saturating_sub(self.phase / quota.units), phase: self.phase % quota.units, ..self }
    }

    /// A charge can be given back while a full bucket's refill is not yet over; after it nothing of the charge is left.
    fn still_owed(quota: &Quota, now: Micros, charged_at: Micros) -> bool {
        now < later(charged_at, multiply_divide_up(quota.burst, quota.period_us, 0, quota.units))
    }
}

impl Transition for Bucket {
    fn look(&self, quota: &Quota, now: Micros, cost: u64) -> Look {
        let bucket = self.at(quota, now);
        let left = quota.burst.saturating_sub(bucket.used);
        let fits = cost <= left;
        Look {
            capacity: quota.burst,
            left,
            whole_at: bucket.refilled_at(quota, bucket.used),
            whole_after: if fits { bucket.refilled_at(quota, bucket.used + cost) } else { 0 },
            passes_at: if fits {
                0
            } else {
                bucket.refilled_at(quota, bucket.used - quota.burst.saturating_sub(cost).min(bucket.used))
            },
        }
    }

    fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        let bucket = self.at(quota, now);
        *self = Self { used: bucket.used + cost, ..bucket }.told_from_last_token(quota);
    }

    fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        let bucket = self.at(quota, now);
        if !Self::still_owed(quota, bucket.at, charged_at) {
            return;
        }
        *self = if cost < bucket.used {
            Self { used: bucket.used - cost, ..bucket }.told_from_last_token(quota)
        } else {
            Self::default()
        };
    }

    /// While units are held the bucket may not fill up without them, or it would pour out more than its burst when they are
    /// spent. So a full one is charged what flows in meanwhile, too; by the time the units are due it has come back.
    fn lease(&mut self, quota: &Quota, now: Micros, lease: Lease, share: u64) -> u64 {
        let bucket = self.at(quota, now);
        let inflow = multiply_divide_up(lease.hold_us, quota.units, bucket.phase, quota.period_us);
        let kept_out = inflow.saturating_sub(bucket.used).min(share / 2);
        let units = lease.units.min(share - kept_out);
        if units > 0 {
            self.charge(quota, now, units + kept_out);
        }
        units
    }

    fn whole_at(&self, quota: &Quota) -> Micros {
        self.at(quota, self.at).refilled_at(quota, self.used)
    }
}
