//! One limit, one thread.

use super::{Place, Store, check, with_cost, with_units};
use staunch::algorithm::Algorithm;
use staunch::store::Check;

pub fn a_first_request_is_never_refused(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        for units in [1, 2, 1_000_000_000, 1 << 53] {
            assert!(store.passes(&[check(algorithm, units)]), "{algorithm:?} {units}");
        }
        assert!(
            store.passes(&[with_cost(&check(algorithm, 7), 7)]),
            "{algorithm:?}: a first request of the whole quota"
        );
    }
}

pub fn exactly_the_quota_of_a_burst_passes(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        for units in [1, 2, 100] {
            let check = check(algorithm, units);
            let passed = (0..units + 50).filter(|_| store.passes(&[check])).count();
            assert_eq!(passed as u64, units, "{algorithm:?}");
        }
    }
}

pub fn a_refusal_says_when_to_come_again(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = exhausted(&store, algorithm, 4);
        let decision = store.decide(&[check])[0].decision;
        assert!(!decision.admitted);
        let wait_us = decision.retry_after_us.expect("a wait helps");
        assert!((1..=2 * check.quota.period_us).contains(&wait_us), "{algorithm:?}: {wait_us}");
        assert_eq!((decision.before.remaining, decision.after), (0, decision.before), "{algorithm:?}");
    }
}

pub fn each_answer_shows_the_standing_before_and_after(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 10);
        for used in 0..10 {
            let decision = store.decide(&[check])[0].decision;
            let shown = (decision.before.remaining, decision.after.remaining, decision.retry_after_us);
            assert_eq!(shown, (10 - used, 9 - used, None), "{algorithm:?}");
            assert!(decision.after.reset_us > 0, "{algorithm:?}");
        }
    }
}

pub fn a_cost_is_taken_whole_or_not_at_all(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 10);
        assert!(store.passes(&[with_cost(&check, 7)]), "{algorithm:?}");
        assert!(!store.passes(&[with_cost(&check, 4)]), "{algorithm:?}");
        assert_eq!(store.remaining(&check), 3, "{algorithm:?}");
        assert!(store.passes(&[with_cost(&check, 3)]), "{algorithm:?}");
        assert!(!store.passes(&[check]), "{algorithm:?}");
    }
}

pub fn a_refused_request_changes_nothing(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 10);
        assert!(store.passes(&[with_cost(&check, 6)]));
        for _ in 0..20 {
            assert!(!store.passes(&[with_cost(&check, 5)]), "{algorithm:?}");
        }
        assert!(store.passes(&[with_cost(&check, 4)]), "{algorithm:?}");
    }
}

pub fn what_is_given_back_can_be_used_again(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 10);
        assert!(store.passes(&[with_cost(&check, 6)]));
        let taken = store.decide(&[with_cost(&check, 4)])[0];
        assert!(taken.charged && !store.passes(&[check]), "{algorithm:?}");
        store.give_back(&with_cost(&check, 4), taken.at_us);
        assert_eq!(store.remaining(&check), 4, "{algorithm:?}: exactly what was charged");
        assert!(store.passes(&[with_cost(&check, 4)]), "{algorithm:?}");
        assert!(!store.passes(&[check]), "{algorithm:?}");
    }
}

pub fn giving_back_to_a_key_that_is_not_there_gives_nothing(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let (there, absent) = (check(algorithm, 5), check(algorithm, 5));
        let at_us = store.decide(&[there])[0].at_us;
        store.give_back(&absent, at_us);
        assert!(!store.reset(absent.key), "{algorithm:?}: no counter was made");
        assert_eq!(store.remaining(&absent), 5, "{algorithm:?}");
    }
}

pub fn a_raised_quota_applies_to_what_was_used(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = exhausted(&store, algorithm, 10);
        let raised = with_units(&check, 20);
        let passed = (0..30).filter(|_| store.passes(&[raised])).count();
        assert_eq!(passed, 10, "{algorithm:?}");
    }
}

pub fn a_lowered_quota_applies_to_what_was_used(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 20);
        assert!(store.passes(&[with_cost(&check, 6)]));
        let passed = (0..30).filter(|_| store.passes(&[with_units(&check, 8)])).count();
        assert_eq!(passed, 2, "{algorithm:?}");
        let below = with_units(&check, 3);
        assert!(!store.passes(&[below]), "{algorithm:?}");
        assert_eq!(store.remaining(&below), 0, "{algorithm:?}");
    }
}

pub fn another_algorithm_starts_anew(place: &impl Place) {
    let store = place.open();
    for before in Algorithm::ALL {
        for after in Algorithm::ALL.into_iter().filter(|after| *after != before) {
            let check = exhausted(&store, before, 3);
            let changed = Check { algorithm: after, ..check };
            let passed = (0..10).filter(|_| store.passes(&[changed])).count();
            assert_eq!(passed, 3, "{before:?} to {after:?}");
        }
    }
}

pub fn charging_what_fits_stops_at_the_quota(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 10);
        assert_eq!(store.charge_up_to(&with_cost(&check, 4)), 4, "{algorithm:?}");
        assert_eq!(store.charge_up_to(&with_cost(&check, 9)), 6, "{algorithm:?}");
        assert_eq!(store.charge_up_to(&check), 0, "{algorithm:?}");
        assert!(!store.passes(&[check]), "{algorithm:?}");
    }
}

pub fn looking_charges_nothing(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 3);
        for _ in 0..5 {
            assert_eq!(store.remaining(&check), 3, "{algorithm:?}");
        }
        assert!(!store.reset(check.key), "{algorithm:?}: looking made a counter");
        assert!(store.passes(&[with_cost(&check, 2)]));
        for _ in 0..5 {
            assert_eq!(store.remaining(&check), 1, "{algorithm:?}");
        }
    }
}

pub fn a_reset_key_is_whole_again(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let check = exhausted(&store, algorithm, 3);
        assert!(store.reset(check.key), "{algorithm:?}");
        assert!(!store.reset(check.key), "{algorithm:?}");
        assert!(store.passes(&[with_cost(&check, 3)]), "{algorithm:?}");
    }
}

pub fn two_keys_never_interact(place: &impl Place) {
    let store = place.open();
    for algorithm in Algorithm::ALL {
        let spent: Vec<Check> = (0..50).map(|_| exhausted(&store, algorithm, 2)).collect();
        let other = check(algorithm, 2);
        assert!(store.passes(&[with_cost(&other, 2)]), "{algorithm:?}");
        assert!(spent.iter().all(|check| !store.passes(&[*check])), "{algorithm:?}");
    }
}

fn exhausted(store: &impl Store, algorithm: Algorithm, units: u64) -> Check {
    let check = check(algorithm, units);
    assert!(store.passes(&[with_cost(&check, units)]));
    check
}
