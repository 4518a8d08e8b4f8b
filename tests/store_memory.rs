//! What is the memory store's own: it agrees with a plain map, it is bounded, and it forgets the right ones.

use proptest::prelude::*;
use staunch::algorithm::{Algorithm, Quota, State};
use staunch::store::memory::Memory;
use staunch::store::{Answer, Check, CounterKey};
use std::collections::HashMap;
use std::thread;

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 86_400 * SECOND_US;
/// Some instant; nothing here depends on which.
const NOW: u64 = 1_800_000_000 * SECOND_US;

/// The store as a map of states; `Memory` must be indistinguishable from it while nothing is evicted.
#[derive(Default)]
struct Model {
    states: HashMap<CounterKey, (Algorithm, State)>,
}

impl Model {
    fn decide(&mut self, checks: &[Check], now: u64) -> Vec<Answer> {
        let mut charged = self.states.clone();
        let mut answers = Vec::new();
        for check in checks {
            let state = state_of(&charged, check);
            let decision = state.decide(&check.quota, now, check.cost);
            if decision.admitted {
                charge(&mut charged, check, now);
            }
            answers.push(Answer::new(decision, decision.admitted, now));
        }
        if checks.iter().zip(&answers).all(|(check, answer)| answer.charged || !check.enforced) {
            self.states = charged;
        } else {
            for answer in &mut answers {
                answer.charged = false;
            }
        }
        answers
    }

    fn give_back(&mut self, check: &Check, charged_at: u64, now: u64) {
        if let Some((algorithm, state)) = self.states.get_mut(&check.key)
            && *algorithm == check.algorithm
        {
            state.release(&check.quota, now, check.cost, charged_at);
        }
    }
}

fn state_of(states: &HashMap<CounterKey, (Algorithm, State)>, check: &Check) -> State {
    match states.get(&check.key) {
        Some((algorithm, state)) if *algorithm == check.algorithm => state.clone(),
        _ => State::new(check.algorithm),
    }
}

fn charge(states: &mut HashMap<CounterKey, (Algorithm, State)>, check: &Check, now: u64) {
    let mut state = state_of(states, check);
    state.charge(&check.quota, now, check.cost);
    states.insert(check.key, (check.algorithm, state));
}

#[derive(Clone, Debug)]
enum Step {
    Decide(Vec<Check>),
    /// Gives back a charge made earlier, counted from the latest.
    GiveBack(usize),
    Reset(CounterKey),
    Wait(u64),
    Sweep(usize),
}

/// Few keys, so that they meet; each has one quota for life, and mostly one algorithm.
fn a_check() -> impl Strategy<Value = Check> {
    (0..6_u64, 0..40_usize, 1..=3_u64, any::<bool>()).prop_map(|(key, dice, cost, enforced)| {
        let at = usize::try_from(key).expect("small");
        let algorithm = Algorithm::ALL[if dice == 0 { (at + 1) % 4 } else { at % 4 }];
        let units = 3 + key;
        let burst = if algorithm == Algorithm::TokenBucket { units + key % 3 } else { units };
        let quota = Quota { units, period_us: (1 + key * 3) * SECOND_US / 2, burst };
        Check { key: CounterKey(u128::from(key) << 64 | u128::from(key)), algorithm, quota, cost, enforced }
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(a_check(), 1..=5).prop_map(Step::Decide),
        2 => (0..4_usize).prop_map(Step::GiveBack),
        1 => a_check().prop_map(|check| Step::Reset(check.key)),
        4 => prop_oneof![0..SECOND_US, Just(SECOND_US / 2), 0..20 * SECOND_US].prop_map(Step::Wait),
        1 => (0..10_usize).prop_map(Step::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_answers_as_a_plain_map_of_states_would(steps in prop::collection::vec(a_step(), 1..80)) {
        let (memory, mut model, mut now) = (Memory::new(100), Model::default(), NOW);
        let mut taken: Vec<(Check, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Decide(checks) => {
                    let answers = memory.decide(&checks, now).to_vec();
                    prop_assert_eq!(&answers, &model.decide(&checks, now));
                    let charged = checks.iter().zip(&answers).filter(|(_, answer)| answer.charged);
                    taken.extend(charged.map(|(check, answer)| (*check, answer.at_us)));
                }
                Step::GiveBack(back) if back < taken.len() => {
                    let (check, at_us) = taken.remove(taken.len() - 1 - back);
                    memory.give_back(&check, at_us, now);
                    model.give_back(&check, at_us, now);
                }
                Step::GiveBack(_) => {}
                Step::Reset(key) => {
                    let was_there = memory.reset(key);
                    prop_assert!(model.states.remove(&key).is_some() || !was_there);
                }
                Step::Wait(us) => now += us,
                Step::Sweep(budget) => prop_assert!(memory.sweep(now, budget) <= budget),
            }
            prop_assert!(memory.len() <= model.states.len());
        }
        prop_assert_eq!(memory.evicted_live(), 0);
    }
}

fn a_limit(units: u64) -> Check {
    let quota = Quota { units, period_us: DAY_US, burst: units };
    let key = CounterKey(fastrand::u128(..));
    Check { key, algorithm: Algorithm::FixedWindow, quota, cost: 1, enforced: true }
}

fn passes(memory: &Memory, check: &Check, now: u64) -> bool {
    memory.decide(&[*check], now)[0].decision.admitted
}

fn exhaust(memory: &Memory, check: &Check) {
    while passes(memory, check, NOW) {}
}

fn exhaust_all(memory: &Memory, checks: &[Check]) {
    for check in checks {
        exhaust(memory, check);
    }
}

#[test]
fn a_flood_of_new_keys_keeps_the_exhausted_and_the_hot() {
    let memory = Memory::new(10_000);
    let exhausted: Vec<Check> = (0..200).map(|_| a_limit(3)).collect();
    let hot: Vec<Check> = (0..200).map(|_| a_limit(1_000_000)).collect();
    exhaust_all(&memory, &exhausted);
    let mut rounds = 0;
    for flood in 0..200_000 {
        if flood % 20_000 == 0 {
            // Asked no more than twice before the flood sets in, and rarely while it lasts.
            rounds += 2;
            assert!(hot.iter().all(|check| passes(&memory, check, NOW) && passes(&memory, check, NOW)));
        }
        assert!(passes(&memory, &a_limit(100), NOW));
    }
    for check in &hot {
        let left = memory.inspect(check.key, check.algorithm, &check.quota, NOW).before.remaining;
        assert_eq!(left, 1_000_000 - rounds);
    }
    assert!(exhausted.iter().all(|check| !passes(&memory, check, NOW)));
    assert_eq!(memory.len(), 10_000);
    assert_eq!(memory.evicted_live(), 200_400 - 10_000);
}

/// Every key of the flood is exhausted at once, as those of "1 an hour" are.
#[test]
fn a_flood_of_exhausted_keys_keeps_those_that_keep_asking() {
    let memory = Memory::new(4_096);
    let blocked: Vec<Check> = (0..100).map(|_| a_limit(1)).collect();
    for check in &blocked {
        (0..5).for_each(|_| exhaust(&memory, check));
    }
    (0..100_000).for_each(|_| assert!(passes(&memory, &a_limit(1), NOW)));
    assert!(blocked.iter().all(|check| !passes(&memory, check, NOW)));
}

#[test]
fn whole_counters_leave_before_any_that_holds_usage() {
    let memory = Memory::new(3_000);
    let long: Vec<Check> = (0..1_500).map(|_| a_limit(10)).collect();
    for check in &long {
        assert!(passes(&memory, check, NOW));
        let mut short = a_limit(10);
        short.quota.period_us = SECOND_US;
        assert!(passes(&memory, &short, NOW));
    }
    assert_eq!(memory.len(), 3_000);
    let later = NOW + 3 * SECOND_US;
    // A search ends after a bounded number of entries; whole ones are found first while they are not rare.
    (0..1_000).for_each(|_| assert!(passes(&memory, &a_limit(10), later)));
    assert_eq!((memory.len(), memory.evicted_live()), (3_000, 0));
    let left = |check: &Check| memory.inspect(check.key, check.algorithm, &check.quota, later).before.remaining;
    assert!(long.iter().all(|check| left(check) == 9));
}

#[test]
fn where_all_are_exhausted_the_least_asked_goes_and_it_is_counted() {
    let memory = Memory::new(3);
    let limits: Vec<Check> = (0..3).map(|_| a_limit(1)).collect();
    for (extra, check) in limits.iter().enumerate() {
        (0..=extra).for_each(|_| exhaust(&memory, check));
    }
    assert_eq!(memory.evicted_live(), 0);
    exhaust(&memory, &a_limit(1));
    assert_eq!((memory.len(), memory.evicted_live()), (3, 1));
    let standing = |check: &Check| memory.inspect(check.key, check.algorithm, &check.quota, NOW).admitted;
    assert_eq!(limits.iter().map(standing).collect::<Vec<_>>(), [true, false, false]);
}

/// By a charge that left nothing, or by a refusal.
#[test]
fn an_exhausted_counter_outlasts_one_that_was_asked_a_little_more_often() {
    for (first_cost, second_cost) in [(5, 1), (4, 2)] {
        let memory = Memory::new(3);
        let (spent, others) = (a_limit(5), [a_limit(100), a_limit(100)]);
        for cost in [first_cost, second_cost] {
            memory.decide(&[Check { cost, ..spent }], NOW);
        }
        for other in &others {
            (0..10).for_each(|_| assert!(passes(&memory, other, NOW)));
        }
        assert!(passes(&memory, &a_limit(100), NOW));
        assert!(!memory.decide(&[Check { cost: 2, ..spent }], NOW)[0].decision.admitted);
        assert_eq!(others.iter().filter(|other| memory.reset(other.key)).count(), 1);
    }
}

#[test]
fn there_are_never_more_counters_than_allowed_and_never_fewer_than_fit() {
    for max_keys in [1, 2, 3, 100, 5_000, 70_000] {
        let memory = Memory::new(max_keys);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..max_keys / 2 + 5 {
                        assert!(passes(&memory, &a_limit(5), NOW));
                        assert!(memory.len() <= max_keys);
                    }
                });
            }
        });
        assert_eq!(memory.len(), max_keys);
    }
}

#[test]
fn a_request_of_more_limits_than_the_store_holds_passes() {
    let memory = Memory::new(3);
    for _ in 0..10 {
        let limits: Vec<Check> = (0..8).map(|_| a_limit(5)).collect();
        assert!(memory.decide(&limits, NOW).iter().all(|answer| answer.charged));
        assert_eq!(memory.len(), 3);
    }
}

#[test]
fn a_sweep_forgets_what_is_whole_and_nothing_else_within_its_budget() {
    let memory = Memory::new(20_000);
    let kept: Vec<Check> = (0..500).map(|_| a_limit(2)).collect();
    exhaust_all(&memory, &kept);
    for _ in 0..9_500 {
        let mut short = a_limit(10);
        short.quota.period_us = SECOND_US / 100;
        assert!(passes(&memory, &short, NOW));
    }
    assert_eq!(memory.sweep(NOW, 100_000), 0, "nothing is whole yet");
    let later = NOW + 3 * SECOND_US;
    assert!((1..=1_000).contains(&memory.sweep(later, 1_000)));
    (0..20).for_each(|_| assert!(memory.sweep(later, 1_000) <= 1_000));
    assert_eq!(memory.len(), 500);
    assert!(kept.iter().all(|check| !passes(&memory, check, later)));
    assert_eq!(memory.sweep(later + 2 * DAY_US, 100_000), 500);
    assert!(memory.is_empty());
    (0..30_000).for_each(|_| assert!(passes(&memory, &a_limit(5), later)));
    assert_eq!(memory.len(), 20_000, "the room came back");
}

#[test]
fn a_refused_or_a_looking_request_makes_no_counter() {
    let memory = Memory::new(100);
    let (spent, other) = (a_limit(1), a_limit(5));
    exhaust(&memory, &spent);
    assert!(!memory.decide(&[other, spent], NOW)[0].charged);
    memory.give_back(&other, NOW, NOW);
    let _ = memory.inspect(other.key, other.algorithm, &other.quota, NOW);
    assert_eq!(memory.len(), 1);
}

/// One core read the clock, was overtaken by another, and decides after it.
#[test]
fn what_a_late_core_charged_can_be_given_back_at_the_instant_it_was_told() {
    for algorithm in Algorithm::ALL {
        let (memory, check, other) = (Memory::new(100), Check { algorithm, ..a_limit(5) }, a_limit(5));
        assert!(memory.decide(&[check, other], NOW + 10)[0].charged);
        for late in [memory.decide(&[check], NOW), memory.decide(&[check, other], NOW)] {
            memory.give_back(&check, late[0].at_us, NOW + 20);
            let left = memory.inspect(check.key, algorithm, &check.quota, NOW + 20).before.remaining;
            assert!(late[0].charged && left >= 3, "{algorithm:?}: {left}");
        }
        assert_eq!(memory.inspect(check.key, algorithm, &check.quota, NOW + 20).before.remaining, 4, "{algorithm:?}");
    }
}

#[test]
fn keys_that_all_fall_to_one_shard_may_take_all_the_room() {
    let memory = Memory::new(10_000);
    let others = 10_000_usize.div_ceil(3_300) - 1;
    for number in 0..12_000_u128 {
        let check = Check { key: CounterKey(number), ..a_limit(5) };
        assert!(passes(&memory, &check, NOW));
        assert!(memory.len() <= 10_000);
    }
    assert_eq!(memory.len(), 10_000 - others, "each other shard keeps a place for its first");
}
