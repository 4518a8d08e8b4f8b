//! Remembers when each unit was admitted: exact in any interval of length W. A unit of time t is gone at t + W exactly.
//!
//! Units of one instant are one entry, so a cost of a million is one entry too. Times never fall. What is over is dropped
//! by the next charge. Twin: `lua/sliding_window_log.lua`.

use super::{Look, Quota, Transition, later};
use crate::clock::Micros;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Log {
    entries: VecDeque<Entry>,
    /// The units of all entries.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    at: Micros,
    units: u64,
}

impl Log {
    /// Time as this log knows it.
    fn time(&self, now: Micros) -> Micros {
        self.entries.back().map_or(now, |last| last.at.max(now))
    }

    /// How many entries at the front are over at `now`, and the units in the others.
    fn live(&self, quota: &Quota, now: Micros) -> (usize, u64) {
        let time = self.time(now);
        let mut units = self.total;
        for (index, entry) in self.entries.iter().enumerate() {
            if later(entry.at, quota.period_us) > time {
                return (index, units);
            }
            units -= entry.units;
        }
        (self.entries.len(), 0)
    }

    /// When `excess` units of those from `first` on are gone.
    fn gone_at(&self, quota: &Quota, first: usize, mut excess: u64) -> Micros {
        for entry in self.entries.range(first..) {
            if entry.units >= excess {
                return later(entry.at, quota.period_us);
            }
            excess -= entry.units;
        }
        0
    }
}

impl Transition for Log {
    fn look(&self, quota: &Quota, now: Micros, cost: u64) -> Look {
        let (first, live) = self.live(quota, now);
        let left = quota.units.saturating_sub(live);
        let whole_at = if live > 0 { self.whole_at(quota) } else { 0 };
        Look {
            capacity: quota.units,
            left,
            whole_at,
            whole_after: if cost > 0 { later(self.time(now), quota.period_us) } else { whole_at },
            passes_at: if cost > left {
                self.gone_at(quota, first, live.saturating_sub(quota.units.saturating_sub(cost)))
            } else {
                0
            },
        }
    }

    fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        let (at, (over, live)) = (self.time(now), self.live(quota, now));
        self.entries.drain(..over);
        self.total = live + cost;
        match self.entries.back_mut() {
            Some(last) if last.at == at => last.units += cost,
            _ => self.entries.push_back(Entry { at, units: cost }),
        }
    }

    fn release(&mut self, quota: &Quota, now: Micros, cost: u64, charged_at: Micros) {
        let (first, live) = self.live(quota, now);
        let Ok(index) = self.entries.binary_search_by_key(&charged_at, |entry| entry.at) else { return };
        if index < first {
            return;
        }
        let given = cost.min(self.entries[index].units);
        if given == live {
            *self = Self::default();
            return;
        }
        self.entries[index].units -= given;
        self.total -= given;
        if self.entries[index].units == 0 {
            self.entries.remove(index);
        }
    }

    fn whole_at(&self, quota: &Quota) -> Micros {
        self.entries.back().map_or(0, |last| later(last.at, quota.period_us))
    }
}
