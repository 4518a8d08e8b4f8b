//! Two windows aligned to the epoch, the previous one weighted by how much of it the last period still covers:
//! previous · (1 − e/W) + current + c ≤ N, e being the time into the window.
//!
//! The weight is kept as a whole number, ⌈previous · (W − e) / W⌉: the other terms are whole, so nothing is lost by it.
//! Twin: `lua/sliding_window_counter.lua`.

use super::{Look, Quota, Transition, later, multiply_divide, multiply_divide_up, window_start};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counter {
    start: Micros,
    previous: u64,
    current: u64,
}

impl Counter {
    /// The windows in force at `now`. Under a changed period the old windows count where their start falls.
    fn at(self, quota: &Quota, now: Micros) -> Self {
        let start = window_start(now.max(self.start), quota.period_us);
        if self.start >= start {
            Self { start, ..self }
        } else if later(self.start, quota.period_us) >= start {
            Self { start, previous: self.current, current: 0 }
        } else {
            Self { start, previous: 0, current: 0 }
        }
    }

    /// When both windows no longer count, if `current` is used in this one.
    fn whole(self, quota: &Quota, current: u64) -> Micros {
        let next = later(self.start, quota.period_us);
        match (self.previous, current) {
            (0, 0) => 0,
            (_, 0) => next,
            _ => later(next, quota.period_us),
        }
    }

    /// When `cost` ≤ N fits, if it does not now: the root of this window's line, or of the next one's.
    fn passes_at(self, quota: &Quota, cost: u64) -> Micros {
        let (w, next) = (quota.period_us, later(self.start, quota.period_us));
        let room = quota.units.saturating_sub(cost);
        if self.current <= room {
            let (covered, _) = multiply_divide(room - self.current, w, 0, self.previous.max(1));
            later(self.start, w.saturating_sub(covered))
        } else {
            let (covered, _) = multiply_divide(room, w, 0, self.current);
            later(next, w.saturating_sub(covered))
        }
    }
}

impl Transition for Counter {
    fn look(&self, quota: &Quota, now: Micros, cost: u64) -> Look {
        let counter = self.at(quota, now);
        let elapsed = now.max(self.start) - counter.start;
        let weight = multiply_divide_up(counter.previous, quota.period_us - elapsed, 0, quota.period_us);
        let left = quota.units.saturating_sub(counter.current).saturating_sub(weight);
        Look {
            capacity: quota.units,
            left,
            whole_at: counter.whole(quota, counter.current),
            whole_after: counter.whole(quota, counter.current.saturating_add(cost)),
            passes_at: if cost > left { counter.passes_at(quota, cost) } else { 0 },
        }
    }

    fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        *self = self.at(quota, now);
        self.current += cost;
    }

    fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        let counter = self.at(quota, now);
        if window_start(charged_at, quota.period_us) == counter.start {
            let current = counter.current.saturating_sub(cost);
            *self = if current > 0 || counter.previous > 0 { Self { current, ..counter } } else { Self::default() };
        }
    }

    fn whole_at(&self, quota: &Quota) -> Micros {
        let counter = self.at(quota, self.start);
        counter.whole(quota, counter.current)
    }
}
