//! Counts in windows aligned to the epoch: at most N in each, so at most 2N across an edge.
//!
//! State: the window's start and what was used in it. Twin: `lua/fixed_window.lua`.

use super::{Look, Quota, Transition, later, window_start};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    start: Micros,
    used: u64,
}

impl Window {
    /// The window in force at `now`. What was used in a window that began inside it counts here: it was another
    /// period's window before a reload.
    fn at(self, quota: &Quota, now: Micros) -> Self {
        let start = window_start(now.max(self.start), quota.period_us);
        Self { start, used: if self.start >= start { self.used } else { 0 } }
    }

    fn end_if_used(self, quota: &Quota, used: u64) -> Micros {
        if used > 0 { later(self.start, quota.period_us) } else { 0 }
    }
}

impl Transition for Window {
    fn look(&self, quota: &Quota, now: Micros, cost: u64) -> Look {
        let window = self.at(quota, now);
        Look {
            capacity: quota.units,
            left: quota.units.saturating_sub(window.used),
            whole_at: window.end_if_used(quota, window.used),
            whole_after: window.end_if_used(quota, window.used.saturating_add(cost)),
            passes_at: later(window.start, quota.period_us),
        }
    }

    fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        *self = self.at(quota, now);
        self.used += cost;
    }

    fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        let window = self.at(quota, now);
        if window_start(charged_at, quota.period_us) == window.start {
            let used = window.used.saturating_sub(cost);
            *self = if used > 0 { Self { used, ..window } } else { Self::default() };
        }
    }

    fn whole_at(&self, quota: &Quota) -> Micros {
        self.at(quota, self.start).end_if_used(quota, self.used)
    }
}
