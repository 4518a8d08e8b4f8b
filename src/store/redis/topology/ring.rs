//! Which node holds a key: rendezvous hashing by node name.
//!
//! Every gateway works it out alone and all agree, whatever the order or the addresses of the nodes; a node that is added
//! takes its share from each of the others, and no other key moves. The hash is part of the contract between versions:
//! changing it moves every counter.

use crate::store::CounterKey;
use siphasher::sip::SipHasher13;

/// The nodes by the hash of their names; an index here is an index into the settings' list.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ring {
    names: Vec<(u64, String)>,
}

impl Ring {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let hash = |name: &str| SipHasher13::new().hash(name.as_bytes());
        Self { names: names.into_iter().map(|name| (hash(name), name.to_owned())).collect() }
    }

    /// The node with the highest score for the key. Equal scores (one in 2^64) go to the greater name, so that the order of
    /// the nodes stays without effect.
    pub fn shard_of(&self, key: CounterKey) -> usize {
        if self.names.len() == 1 {
            return 0;
        }
        let folded = fold(key);
        let mut best = 0;
        let mut best_score = 0;
        for (index, (hash, name)) in self.names.iter().enumerate() {
            let this = mix(hash ^ folded);
            if index == 0 || this > best_score || (this == best_score && *name > self.names[best].1) {
                (best, best_score) = (index, this);
            }
        }
        best
    }
}

/// Both halves of the digest count, and neither alone decides.
fn fold(key: CounterKey) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a 128-bit digest")]
    let (high, low) = ((key.0 >> 64) as u64, key.0 as u64);
    low ^ mix(high)
}

/// The finaliser of `SplitMix64`: every bit of the input reaches every bit of the output.
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
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
