//! Which endpoint is next: the order of turns, worked out once, and picks among weights. Nothing here knows an endpoint: a
//! weight of zero is one that may not be picked.

use crate::identify::rendezvous;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How an upstream shares its requests out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    RoundRobin,
    /// The less busy of two endpoints picked by chance: as good as the least busy of all to within a constant, and without
    /// all cores running to the same one at the same time.
    LeastRequests,
    /// By the key of the route's first limit; a request without one takes its turn.
    ConsistentHash,
}

/// An order in which each endpoint comes as often as its weight says, spread as evenly as can be (nginx's smooth
/// weighted round robin). All cores take turns in the same order.
#[derive(Debug)]
pub struct Rotation {
    order: Vec<usize>,
    next: AtomicUsize,
}

impl Rotation {
    /// `weights`: at least one, each ≥ 1.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<i64> = weights.iter().map(|weight| i64::from(weight / divisor)).collect();
        let total: i64 = weights.iter().sum();
        let mut current = vec![0_i64; weights.len()];
        let order = (0..total).map(|_| heaviest(&mut current, &weights, total)).collect();
        Self { order, next: AtomicUsize::new(0) }
    }

    /// The index of the endpoint whose turn it is.
    pub fn turn(&self) -> usize {
        match self.order[..] {
            [only] => only,
            _ => self.order[self.next.fetch_add(1, Ordering::Relaxed) % self.order.len()],
        }
    }
}

fn heaviest(current: &mut [i64], weights: &[i64], total: i64) -> usize {
    let mut best = 0;
    for index in 0..weights.len() {
        current[index] += weights[index];
        if current[index] > current[best] {
            best = index;
        }
    }
    current[best] -= total;
    best
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One by chance, each as often as its weight says.
pub fn draw(weights: &[u64]) -> Option<usize> {
    let total: u64 = weights.iter().sum();
    if total == 0 {
        return None;
    }
    let mut left = fastrand::u64(..total);
    weights.iter().position(|weight| {
        let hit = left < *weight;
        left = left.saturating_sub(*weight);
        hit
    })
}

/// The one whose turn it is as often as its weight is of its `full` weight, else another by chance. Where all have their
/// full weight these are the turns; else each comes as its weight says all the same: a turn that is not taken is dealt out
/// by the weights that are left.
pub fn turn_or_draw(turn: usize, full: u64, weights: &[u64]) -> Option<usize> {
    let weight = weights[turn];
    if weight > 0 && (weight >= full || fastrand::u64(..full) < weight) { Some(turn) } else { draw(weights) }
}

/// Of two by chance the one with fewer requests for its weight.
pub fn less_busy_of_two(weights: &[u64], requests: impl Fn(usize) -> u64) -> Option<usize> {
    let one = draw(weights)?;
    let mut others: smallvec::SmallVec<[u64; 16]> = weights.into();
    others[one] = 0;
    let Some(other) = draw(&others) else { return Some(one) };
    // With the request that is to come: an idle endpoint of twice the weight goes before an idle one.
    let busy = |index: usize| u128::from(requests(index) + 1);
    let (first, second) = (busy(one) * u128::from(weights[other]), busy(other) * u128::from(weights[one]));
    Some(if first <= second { one } else { other })
}

/// The one to which a digest belongs, by the hashes of the names. Weighted rendezvous: the score's logarithm is a wait whose
/// rate is the weight, and the shortest wait wins, so that each name gets its weight's part and a name that is out moves
/// none but its own digests.
pub fn home(weights: &[u64], hash: impl Fn(usize) -> u64, digest: u128) -> Option<usize> {
    let folded = rendezvous::fold(digest);
    let candidates = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
    let waits = candidates.map(|(index, weight)| (index, wait(rendezvous::score(hash(index), folded), *weight)));
    waits.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(index, _)| index)
}

#[allow(clippy::cast_precision_loss, reason = "53 bits of a score decide as well as 64; a weight is far below 2^53")]
fn wait(score: u64, weight: u64) -> f64 {
    let uniform = ((score >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln() / weight as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turns(weights: &[u32], count: usize) -> Vec<usize> {
        let rotation = Rotation::new(weights);
        (0..count).map(|_| rotation.turn()).collect()
    }

    #[test]
    fn endpoints_take_turns_by_weight_and_evenly_spread() {
        assert_eq!(turns(&[1, 1], 4), [0, 1, 0, 1]);
        assert_eq!(turns(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns(&[200, 600], 4), turns(&[1, 3], 4));
        assert_eq!(turns(&[7], 3), [0, 0, 0]);
    }

    /// How often each came, of `count` picks.
    fn shares(count: usize, size: usize, mut pick: impl FnMut() -> usize) -> Vec<f64> {
        let mut shares = vec![0.0; size];
        (0..count).for_each(|_| shares[pick()] += 1.0);
        shares
    }

    /// Whether what came is what was due, to within six standard deviations.
    fn assert_due(shares: &[f64], weights: &[u64], count: f64) {
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let (total, weights) = (weights.iter().sum::<u64>() as f64, weights.iter().map(|weight| *weight as f64));
        for (share, weight) in shares.iter().zip(weights) {
            let part = weight / total;
            let (due, deviation) = (count * part, (count * part * (1.0 - part)).sqrt());
            assert!((share - due).abs() <= 6.0 * deviation + 1.0, "{share} came, {due} were due");
        }
    }

    fn digests(seed: u64) -> impl Iterator<Item = u128> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(move || random.u128(..))
    }

    fn named(index: usize) -> u64 {
        rendezvous::hash(&format!("10.0.0.{index}:80"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn turns_are_as_many_as_the_weights_say_and_never_far_from_due(weights in prop::collection::vec(1_u32..20, 1..6)) {
            let total: u32 = weights.iter().sum();
            let count = i64::try_from(weights.len()).unwrap();
            let mut seen = vec![0_i64; weights.len()];
            for (number, index) in (1_i64..).zip(turns(&weights, usize::try_from(total).unwrap())) {
                seen[index] += 1;
                for (seen, weight) in seen.iter().zip(&weights) {
                    // In parts of a turn, of which there are `total`.
                    let ahead = seen * i64::from(total) - number * i64::from(*weight);
                    prop_assert!(ahead.abs() < i64::from(total) * count);
                }
            }
            prop_assert_eq!(seen, weights.iter().map(|weight| i64::from(*weight)).collect::<Vec<_>>());
        }

        #[test]
        fn each_comes_as_its_weight_says_though_some_are_out_or_warming(
            full in prop::collection::vec(1_u64..8, 2..6),
            parts in prop::collection::vec(0_u64..=10, 6),
        ) {
            let full: Vec<u64> = full.iter().map(|weight| weight * 10).collect();
            let weights: Vec<u64> = full.iter().zip(&parts).map(|(weight, part)| weight / 10 * part).collect();
            let rotation = Rotation::new(&full.iter().map(|weight| u32::try_from(*weight).unwrap()).collect::<Vec<_>>());
            let pick = || {
                let turn = rotation.turn();
                turn_or_draw(turn, full[turn], &weights)
            };
            if weights.iter().all(|weight| *weight == 0) {
                prop_assert_eq!(pick(), None);
            } else {
                assert_due(&shares(6000, full.len(), || pick().unwrap()), &weights, 6000.0);
            }
        }

        #[test]
        fn digests_belong_to_names_as_the_weights_say(weights in prop::collection::vec(0_u64..5, 2..6), seed: u64) {
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let mut digests = digests(seed);
            let shares = shares(6000, weights.len(), || home(&weights, named, digests.next().unwrap()).unwrap());
            assert_due(&shares, &weights, 6000.0);
        }

        #[test]
        fn a_name_that_is_out_moves_its_own_digests_and_no_other(
            weights in prop::collection::vec(1_u64..5, 2..6), out: prop::sample::Index, seed: u64,
        ) {
            let out = out.index(weights.len());
            let mut without = weights.clone();
            without[out] = 0;
            for digest in digests(seed).take(300) {
                let (before, after) = (home(&weights, named, digest).unwrap(), home(&without, named, digest).unwrap());
                prop_assert!(before == after || before == out);
                prop_assert_ne!(after, out);
            }
        }

        #[test]
        fn the_less_busy_for_its_weight_is_never_passed_over_for_the_busiest(
            ends in prop::collection::vec((1_u64..5, 0_u64..50), 2..6),
        ) {
            let weights: Vec<u64> = ends.iter().map(|(weight, _)| *weight).collect();
            let picked = less_busy_of_two(&weights, |index| ends[index].1).unwrap();
            // One that is busier for its weight than every other never wins a comparison.
            let busier = |(weight, requests): (u64, u64), than: (u64, u64)| (requests + 1) * than.0 > (than.1 + 1) * weight;
            let others = (0..ends.len()).filter(|index| *index != picked);
            prop_assert!(!others.clone().all(|other| busier(ends[picked], ends[other])));
        }
    }

    #[test]
    fn where_one_is_left_it_is_picked_and_where_none_is_none() {
        assert_eq!(
            (less_busy_of_two(&[0, 3, 0], |_| 9), home(&[0, 3, 0], named, 7), draw(&[0, 3, 0])),
            (Some(1), Some(1), Some(1))
        );
        assert_eq!((less_busy_of_two(&[0, 0], |_| 0), home(&[0, 0], named, 7), draw(&[])), (None, None, None));
    }
}
