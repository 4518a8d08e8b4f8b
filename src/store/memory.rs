//! Counters in this process, bounded. (skeleton)

use super::{Answer, Check, CounterKey};
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::clock::Micros;
use smallvec::SmallVec;

/// Shared by all cores.
#[derive(Debug)]
pub struct Memory {}

#[allow(unused_variables, clippy::unused_self)]
impl Memory {
    /// Holds at most `max_keys` counters.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        unimplemented!()
    }

    /// Looks at all, then charges all or none (shadow ones aside).
    pub fn decide(&self, checks: &[Check], now: Micros) -> SmallVec<[Answer; 4]> {
        unimplemented!()
    }

    pub fn give_back(&self, check: &Check, charged_at: Micros, now: Micros) {
        unimplemented!()
    }

    /// Looks at one counter without charging it.
    #[must_use]
    pub fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota, now: Micros) -> Decision {
        unimplemented!()
    }

    /// Forgets one counter; says whether it was there.
    pub fn reset(&self, key: CounterKey) -> bool {
        unimplemented!()
    }

    /// Takes out every counter with the units it holds (what was admitted locally while a shard was away). See the limiter.
    #[must_use]
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
