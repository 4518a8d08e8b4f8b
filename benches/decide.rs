//! Nanoseconds a decision takes in memory: `cargo bench --bench decide`.
//!
//! Every algorithm with one warm key and with a thousand; eight limits on one request; keys that are new, in a store with room
//! and in a full one; a refusal. The quota is so large that nothing else is ever refused. Time stands still but for one
//! microsecond a decision, so the system's clock is not measured.

use criterion::{Criterion, criterion_group, criterion_main};
use staunch::algorithm::{Algorithm, Decision, Quota, Standing};
use staunch::limit::hot::{Attempt, Hot, Patience, Word};
use staunch::store::memory::Memory;
use staunch::store::{Answer, Check, CounterKey};
use std::hint::black_box;
use std::time::Duration;

const START_US: u64 = 1_800_000_000_000_000;

fn check(algorithm: Algorithm, key: u64) -> Check {
    // A log keeps a time for each unit, so its quota is one that is used: 1000 a millisecond, at one unit a microsecond.
    let (units, period_us) =
        if algorithm == Algorithm::SlidingWindowLog { (1001, 1_000) } else { (1 << 40, 60_000_000) };
    let key = CounterKey(u128::from(spread(key)) << 64 | u128::from(spread(!key)));
    Check { key, algorithm, quota: Quota { units, period_us, burst: units }, cost: 1, enforced: true }
}

/// A digest's stand-in: the finaliser of `SplitMix64`.
fn spread(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn warm(criterion: &mut Criterion) {
    for algorithm in Algorithm::ALL {
        for keys in [1, 1_000] {
            let memory = Memory::new(1_000_000);
            let checks: Vec<Check> = (0..keys).map(|key| check(algorithm, key)).collect();
            let (mut now, mut turn) = (START_US, 0);
            criterion.bench_function(&format!("{algorithm:?}/warm, {keys} keys"), |bencher| {
                bencher.iter(|| {
                    now += 1;
                    turn = if turn + 1 == checks.len() { 0 } else { turn + 1 };
                    memory.decide(black_box(&checks[turn..=turn]), now)
                });
            });
        }
    }
}

fn eight_limits(criterion: &mut Criterion) {
    let memory = Memory::new(1_000_000);
    let checks: Vec<Check> = (0..8).map(|key| check(Algorithm::SlidingWindowCounter, key)).collect();
    let mut now = START_US;
    criterion.bench_function("SlidingWindowCounter/warm, 8 limits a request", |bencher| {
        bencher.iter(|| {
            now += 1;
            memory.decide(black_box(&checks), now)
        });
    });
}

fn refused(criterion: &mut Criterion) {
    for algorithm in Algorithm::ALL {
        let memory = Memory::new(1_000_000);
        let mut spent = check(algorithm, 1);
        spent.quota = Quota { units: 1, period_us: 86_400_000_000, burst: 1 };
        criterion.bench_function(&format!("{algorithm:?}/refused"), |bencher| {
            bencher.iter(|| memory.decide(black_box(&[spent]), START_US));
        });
    }
}

fn cold(criterion: &mut Criterion) {
    for (name, max_keys) in [("with room", 100_000_000), ("in a full store", 1_000_000)] {
        let memory = Memory::new(max_keys);
        let mut key = 0;
        let mut ask_anew = || {
            key += 1;
            memory.decide(black_box(&[check(Algorithm::SlidingWindowCounter, key)]), START_US)
        };
        (0..1_000_000).for_each(|_| drop(ask_anew()));
        criterion
            .bench_function(&format!("SlidingWindowCounter/new key {name}"), |bencher| bencher.iter(&mut ask_anew));
    }
}

/// Answers of the cache in front of Redis: a lease in hand, and a remembered refusal.
fn hot(criterion: &mut Criterion) {
    let hour_us = 3_600_000_000;
    for admitted in [true, false] {
        let hot = Hot::new(Duration::from_hours(1), 1000).expect("a ttl");
        let mut check = check(Algorithm::SlidingWindowCounter, 1);
        check.quota.period_us = hour_us;
        let Attempt::Ask(words) = hot.attempt(&[check], &Patience::default(), START_US) else { panic!("it is cold") };
        let Word::Ask(leaving) = words[0] else { panic!("it is asked") };
        let standing = Standing { remaining: 1 << 40, reset_us: 2 * hour_us };
        let retry_after_us = (!admitted).then_some(hour_us);
        let decision = Decision { admitted, before: standing, after: standing, retry_after_us };
        let (leased, lease_lasts_us) = if admitted { (1 << 39, hour_us) } else { (0, 0) };
        let answer = Answer { leased, lease_lasts_us, ..Answer::new(decision, admitted, START_US) };
        hot.land(&check, &leaving, &Ok(answer), START_US);
        let name = if admitted { "a lease" } else { "a remembered refusal" };
        criterion.bench_function(&format!("SlidingWindowCounter/{name}"), |bencher| {
            bencher.iter(|| match hot.attempt(black_box(&[check]), &Patience::default(), START_US + 1) {
                Attempt::Answered(settled) => assert_eq!(settled.passes, admitted),
                other => panic!("{other:?}"),
            });
        });
    }
}

criterion_group! {
    name = decide;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = warm, eight_limits, refused, cold, hot
}
criterion_main!(decide);
