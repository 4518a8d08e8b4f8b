//! Which node holds a key: rendezvous hashing by node name.
//!
//! Every gateway works it out alone and all agree, whatever the order or the addresses of the nodes; a node that is added
//! takes its share from each of the others, and no other key moves.

use crate::identify::rendezvous;
use crate::store::CounterKey;

/// The nodes by the hash of their names; an index here is an index into the settings' list.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ring {
    names: Vec<(u64, String)>,
}

impl Ring {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { names: names.into_iter().map(|name| (rendezvous::hash(name), name.to_owned())).collect() }
    }

    /// The node with the highest score for the key. Equal scores (one in 2^64) go to the greater name, so that the order of
    /// the nodes stays without effect.
    pub fn shard_of(&self, key: CounterKey) -> usize {
        if self.names.len() == 1 {
            return 0;
        }
        let folded = rendezvous::fold(key.0);
        let mut best = 0;
        let mut best_score = 0;
        for (index, (hash, name)) in self.names.iter().enumerate() {
            let this = rendezvous::score(*hash, folded);
            if index == 0 || this > best_score || (this == best_score && *name > self.names[best].1) {
                (best, best_score) = (index, this);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(seed: u64, count: usize) -> Vec<CounterKey> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| CounterKey(random.u128(..))).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("n{i}")).collect()
    }

    fn ring(names: &[String]) -> Ring {
        Ring::new(names.iter().map(String::as_str))
    }

    #[test]
    fn keys_stay_where_earlier_versions_put_them() {
        let ring = Ring::new(["a", "b", "c"]);
        let places: Vec<usize> = (0..16).map(|i| ring.shard_of(CounterKey(i))).collect();
        assert_eq!(places, PLACES);
    }

    const PLACES: [usize; 16] = [2, 2, 0, 1, 1, 2, 1, 0, 2, 2, 0, 0, 0, 1, 2, 1];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_node_that_is_added_takes_its_share_and_moves_nothing_else(count in 1_usize..9, seed: u64) {
            let keys = keys(seed, 4000);
            let (before, after) = (ring(&names(count)), ring(&names(count + 1)));
            let moved: Vec<_> = keys.iter().filter(|key| before.shard_of(**key) != after.shard_of(**key)).collect();
            prop_assert!(moved.iter().all(|key| after.shard_of(**key) == count));
            let due = 4000 / (count + 1);
            prop_assert!(moved.len().abs_diff(due).pow(2) < 36 * due, "{} moved, {due} were due", moved.len());
        }

        #[test]
        fn the_order_of_the_nodes_changes_nothing(count in 1_usize..9, seed: u64) {
            let names = names(count);
            let mut shuffled = names.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
            let (one, other) = (ring(&names), ring(&shuffled));
            for key in keys(seed, 200) {
                prop_assert_eq!(&names[one.shard_of(key)], &shuffled[other.shard_of(key)]);
            }
        }
    }

    #[test]
    fn digests_that_differ_in_a_few_bits_only_still_spread() {
        let ring = ring(&names(4));
        for shift in [0, 60, 64, 116] {
            let mut shares = [0; 4];
            for i in 0..4000_u128 {
                shares[ring.shard_of(CounterKey(i << shift))] += 1;
            }
            assert!(shares.iter().all(|share| (800..1200).contains(share)), "{shares:?} at bit {shift}");
        }
    }
}
