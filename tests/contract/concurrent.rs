//! Many threads on the same keys.

use super::{Place, Store, check};
use staunch::algorithm::Algorithm;
use staunch::store::Check;
use std::thread;

const THREADS: usize = 8;

pub fn eight_threads_get_exactly_the_quota(place: &impl Place) {
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 500);
        let passed = passed_in_parallel(place, 100, &|_| vec![check]);
        assert_eq!(passed, 500, "{algorithm:?}");
        assert_eq!(place.open().remaining(&check), 0, "{algorithm:?}");
    }
}

/// Every thread names the tiers in another order; the tightest decides, and all were charged as often.
pub fn eight_threads_keep_all_tiers_consistent(place: &impl Place) {
    let [window, log, counter, bucket] = Algorithm::ALL;
    let tiers = [check(window, 500), check(log, 300), check(counter, 400), check(bucket, 301)];
    let rotated = |thread: usize| {
        let mut tiers = tiers.to_vec();
        tiers.rotate_left(thread % 4);
        if thread >= 4 {
            tiers.reverse();
        }
        tiers
    };
    assert_eq!(passed_in_parallel(place, 100, &rotated), 300);
    let store = place.open();
    let left: Vec<u64> = tiers.iter().map(|tier| store.remaining(tier)).collect();
    assert_eq!(left, [200, 0, 100, 1]);
}

pub fn eight_threads_give_back_what_they_took(place: &impl Place) {
    for algorithm in Algorithm::ALL {
        let check = check(algorithm, 20);
        let kept = in_parallel(&|thread| {
            let store = place.open();
            let taken: Vec<u64> =
                (0..50).map(|_| store.decide(&[check])[0]).filter_map(|a| a.charged.then_some(a.at_us)).collect();
            let given_back = if thread % 2 == 0 { taken.len() } else { 0 };
            taken[..given_back].iter().for_each(|&at_us| store.give_back(&check, at_us));
            taken.len() - given_back
        });
        let store = place.open();
        assert_eq!(store.remaining(&check), 20 - kept as u64, "{algorithm:?}");
    }
}

fn passed_in_parallel(place: &impl Place, requests: usize, checks_of: &(impl Fn(usize) -> Vec<Check> + Sync)) -> usize {
    in_parallel(&|thread| {
        let (store, checks) = (place.open(), checks_of(thread));
        (0..requests).filter(|_| store.passes(&checks)).count()
    })
}

fn in_parallel(work: &(impl Fn(usize) -> usize + Sync)) -> usize {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread's own assertions hold")).sum()
    })
}
