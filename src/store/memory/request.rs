//! One request while it is decided: what each of its checks was told so far. Owns the rule for a key that comes twice; the
//! locks and the charging are the store's.

use super::slab::Entry;
use crate::algorithm::{Decision, State};
use crate::clock::Micros;
use crate::store::Check;
use smallvec::SmallVec;

/// A request, as far as it was looked at.
pub struct Request<'a> {
    pub checks: &'a [Check],
    pub now: Micros,
    pub looks: SmallVec<[Look; 4]>,
}

/// Where one check's counter is, and what it says.
pub struct Look {
    /// An index into the locked shards.
    pub lock: usize,
    pub slot: Option<usize>,
    pub decision: Decision,
}

impl<'a> Request<'a> {
    /// Whether the request passes: no enforced limit refuses it.
    pub fn passes(&self) -> bool {
        self.checks.iter().zip(&self.looks).all(|(check, look)| look.decision.admitted || !check.enforced)
    }

    /// The checks that have room, so are charged if the request passes.
    pub fn admitted(&self) -> impl Iterator<Item = (&'a Check, &Look)> {
        self.checks.iter().zip(&self.looks).filter(|(_, look)| look.decision.admitted)
    }

    /// What the next check is told; `known` is its counter.
    pub fn decide(&self, known: Option<&Entry>, check: &Check) -> Decision {
        let earlier = &self.checks[..self.looks.len()];
        if earlier.iter().any(|earlier| earlier.key == check.key) {
            return self.decide_again(known, check);
        }
        match known {
            Some(entry) => entry.decide(check, self.now),
            None => State::new(check.algorithm).decide(&check.quota, self.now, check.cost),
        }
    }

    /// What it is told if those before it on the same key are charged first.
    fn decide_again(&self, known: Option<&Entry>, check: &Check) -> Decision {
        let mut state = known.map_or_else(|| State::new(check.algorithm), |entry| entry.state.clone());
        for (earlier, _) in self.admitted().filter(|(earlier, _)| earlier.key == check.key) {
            if state.algorithm() != earlier.algorithm {
                state = State::new(earlier.algorithm);
            }
            state.charge(&earlier.quota, self.now, earlier.cost);
        }
        if state.algorithm() != check.algorithm {
            state = State::new(check.algorithm);
        }
        state.decide(&check.quota, self.now, check.cost)
    }
}
