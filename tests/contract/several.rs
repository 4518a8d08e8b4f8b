//! Several limits on one request.

use super::{Place, Store, check, shadow, with_cost};
use staunch::algorithm::Algorithm;
use staunch::store::Check;

/// Three tiers of every algorithm against every other, the tightest in each place in turn.
pub fn one_tier_refusing_charges_no_other(place: &impl Place) {
    let store = place.open();
    for algorithms in triples() {
        for tightest in 0..3 {
            let mut tiers = algorithms.map(|algorithm| check(algorithm, 50));
            tiers[tightest].quota.units = 5;
            tiers[tightest].quota.burst = 5;
            let passed = (0..20).filter(|_| store.passes(&tiers)).count();
            assert_eq!(passed, 5, "{algorithms:?}");
            for (at, tier) in tiers.iter().enumerate() {
                let left = if at == tightest { 0 } else { 45 };
                assert_eq!(store.remaining(tier), left, "{algorithms:?} tier {at}, tightest {tightest}");
            }
        }
    }
}

pub fn a_shadow_limit_refuses_nobody_and_hides_nobody(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        for dry_first in [true, false] {
            let (dry, enforced) = (shadow(&check(algorithm, 2)), check(algorithm, 6));
            let checks = if dry_first { [dry, enforced] } else { [enforced, dry] };
            let passed = (0..20).filter(|_| store.passes(&checks)).count();
            assert_eq!(passed, 6, "{algorithm:?}: the enforced limit still decides");
            let told = store.decide(&checks)[usize::from(!dry_first)].decision;
            assert!(!told.admitted, "{algorithm:?}: a dry shadow limit says so");
        }
    }
}

pub fn a_shadow_limit_of_a_refused_request_is_not_charged(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let (watched, enforced) = (shadow(&check(algorithm, 100)), check(algorithm, 3));
        let passed = (0..10).filter(|_| store.passes(&[watched, enforced])).count();
        assert_eq!((passed, store.remaining(&watched)), (3, 97), "{algorithm:?}");
    }
}

/// Each of the two checks takes its units, and the second sees those of the first.
pub fn a_key_that_comes_twice_is_charged_twice(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 5);
        let answers = store.decide(&[check, with_cost(&check, 2)]);
        let seen = [answers[0].decision.before.remaining, answers[1].decision.before.remaining];
        assert_eq!((seen, store.remaining(&check)), ([5, 4], 2), "{algorithm:?}");
        assert!(!store.passes(&[check, with_cost(&check, 2)]), "{algorithm:?}");
        assert_eq!(store.remaining(&check), 2, "{algorithm:?}: all or nothing");
        assert!(store.passes(&[check, check]), "{algorithm:?}");
        assert!(!store.passes(&[check]), "{algorithm:?}");
    }
}

pub fn the_order_of_the_checks_changes_nothing(place: &impl Place) {
    let store = place.open();
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    let results: Vec<(usize, Vec<u64>)> = orders.iter().map(|order| outcome_in(&store, order)).collect();
    for result in &results {
        assert_eq!(*result, (4, vec![6, 0, 2, 16]));
    }
}

fn outcome_in(store: &impl Store, order: &[usize; 4]) -> (usize, Vec<u64>) {
    let [window, log, counter, bucket] = Algorithm::ALL;
    let limits = [check(window, 10), check(log, 4), shadow(&check(counter, 6)), with_cost(&check(bucket, 20), 1)];
    let checks: Vec<Check> = order.iter().map(|&at| limits[at]).collect();
    let passed = (0..9).filter(|_| store.passes(&checks)).count();
    (passed, limits.iter().map(|limit| store.remaining(limit)).collect())
}

fn triples() -> Vec<[Algorithm; 3]> {
    let mut triples = Vec::new();
    for first in Algorithm::ALL {
        for second in Algorithm::ALL {
            for third in Algorithm::ALL {
                triples.push([first, second, third]);
            }
        }
    }
    triples
}
