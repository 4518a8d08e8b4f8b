//! How many second tries an upstream may be sent: a part of what it was sent in the last seconds, and a few a second in any
//! case. When everything fails, retries without a bound would multiply the load by 1 + `retries`, just then.
//!
//! The tries are those that the histogram of durations has counted anyway, so that a request which goes well pays nothing.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// The window, in ticks of a second each.
const WINDOW: usize = 10;
/// Retries a second that are granted whatever the load: a small site has no traffic to take a part of. As in linkerd.
const LEAST_PER_SECOND: u64 = 10;

/// One upstream's, shared by all cores; it goes on through reloads.
#[derive(Debug, Default)]
pub struct Budget {
    granted: AtomicU64,
    /// Of what was before the window: tries, and retries among them.
    tries_before: AtomicU64,
    granted_before: AtomicU64,
    /// The counts at each tick of the window, the oldest first.
    ticks: Mutex<VecDeque<(u64, u64)>>,
}

impl Budget {
    /// Takes one retry, if there is one left. `tries`: all that the upstream was ever sent. `percent`: of first tries.
    pub fn take(&self, tries: u64, percent: u64) -> bool {
        let before = self.granted_before.load(Ordering::Relaxed);
        let tries = tries.saturating_sub(self.tries_before.load(Ordering::Relaxed));
        let more = |granted: u64| {
            let retries = granted.saturating_sub(before);
            let firsts = tries.saturating_sub(retries);
            let allowed = (firsts * percent / 100).max(LEAST_PER_SECOND * WINDOW as u64);
            (retries < allowed).then_some(granted + 1)
        };
        self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A second has passed.
    pub fn tick(&self, tries: u64) {
        let mut ticks = self.ticks.lock();
        ticks.push_back((tries, self.granted.load(Ordering::Relaxed)));
        if ticks.len() > WINDOW
            && let Some((tries, granted)) = ticks.pop_front()
        {
            self.tries_before.store(tries, Ordering::Relaxed);
            self.granted_before.store(granted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(budget: &Budget, tries: u64, percent: u64) -> usize {
        (0..10_000).take_while(|_| budget.take(tries, percent)).count()
    }

    #[test]
    fn a_part_of_the_tries_is_granted_and_no_more() {
        assert_eq!(granted(&Budget::default(), 100_000, 2), 1960); // 2 % of the 98040 that were no retries
        let budget = Budget::default();
        let retries = granted(&budget, 1200, 20);
        assert_eq!(retries, 200, "of 1000 first tries");
    }

    #[test]
    fn a_few_a_second_are_granted_whatever_the_load() {
        let budget = Budget::default();
        assert_eq!(granted(&budget, 0, 20), 100);
        assert_eq!(granted(&budget, 100, 20), 0);
        (0..=WINDOW).for_each(|_| budget.tick(100));
        assert_eq!(granted(&budget, 100, 0), 100, "the window has gone on");
    }

    #[test]
    fn what_was_sent_before_the_window_gives_nothing() {
        let budget = Budget::default();
        budget.tick(1_000_000);
        (0..WINDOW).for_each(|_| budget.tick(1_000_000));
        assert_eq!(granted(&budget, 1_000_000, 20), 100);
        assert_eq!(granted(&budget, 1_001_200, 20), 100, "200 for 1000 first tries, of which half are gone");
    }
}
