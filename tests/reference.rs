//! Naive models judge the transitions. A model keeps the list of everything admitted and sums it up anew for each question,
//! in exact integers, straight from the definition; it knows no state, no carry and no inverse.

use proptest::prelude::*;
use staunch::algorithm::{Algorithm, LARGEST, Quota, State};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
const START: u64 = 1_796_000_123 * SECOND + 456_789;

/// Everything admitted: when, and how many units.
#[derive(Clone, Debug)]
struct Model {
    algorithm: Algorithm,
    quota: Quota,
    admitted: Vec<(u64, u64)>,
}

impl Model {
    /// What is left at `at`, in periods of a unit: the definition times W, so that no fraction occurs.
    fn left_times_period(&self, at: u64) -> i128 {
        let (n, w) = (i128::from(self.quota.units), i128::from(self.quota.period_us));
        let at = i128::from(at);
        let window = at / w;
        let sum = |counts: &dyn Fn(i128) -> bool| -> i128 {
            let counted = self.admitted.iter().filter(|(time, _)| counts(i128::from(*time)));
            counted.map(|(_, units)| i128::from(*units)).sum()
        };
        match self.algorithm {
            Algorithm::FixedWindow => (n - sum(&|time| time / w == window)) * w,
            Algorithm::SlidingWindowLog => (n - sum(&|time| time + w > at)) * w,
            Algorithm::SlidingWindowCounter => {
                let (previous, current) = (sum(&|time| time / w == window - 1), sum(&|time| time / w == window));
                (n - current) * w - previous * (w - at % w)
            }
            Algorithm::TokenBucket => {
                let (mut missing, mut then) = (0, 0);
                for &(time, units) in &self.admitted {
                    missing = (missing - n * (i128::from(time) - then)).max(0) + i128::from(units) * w;
                    then = i128::from(time);
                }
                i128::from(self.quota.burst) * w - (missing - n * (at - then)).max(0)
            }
        }
    }

    fn admits(&self, at: u64, cost: u64) -> bool {
        cost == 0 || i128::from(cost) * i128::from(self.quota.period_us) <= self.left_times_period(at)
    }

    fn remaining(&self, at: u64) -> u64 {
        u64::try_from(self.left_times_period(at).div_euclid(i128::from(self.quota.period_us)).max(0)).unwrap()
    }

    fn is_whole(&self, at: u64) -> bool {
        self.remaining(at) == self.quota.burst
    }

    fn with(&self, at: u64, cost: u64) -> Self {
        let mut model = self.clone();
        model.admitted.push((at, cost));
        model
    }

    /// The wait is exact: then it is whole, and a microsecond earlier it is not. Time ends at 2^53 µs, in the year 2255.
    fn resets_after(&self, now: u64, wait: u64) -> bool {
        (self.is_whole(now + wait) || now + wait == LARGEST) && (wait == 0 || !self.is_whole(now + wait - 1))
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Lets a share of the period pass, in millionths, then some microseconds.
    Wait(u64, u64),
    /// To that many microseconds before or after the next window's start.
    Edge(i64),
    /// To the instant a refusal promised, less some microseconds.
    Promised(u64),
    /// Asks for a share of the limit, in thousandths (0: one unit), and charges it if admitted.
    Ask(u64),
    /// Asks, charges, and gives it back after a share of the period.
    AskAndGiveBack(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = prop_oneof![4 => Just(0_u64), 2 => 1_u64..400, 1 => 400_u64..1100];
    let step = prop_oneof![
        3 => (prop_oneof![Just(0), 1_u64..1000, 1000_u64..2_500_000], 0_u64..3).prop_map(|(share, us)| Step::Wait(share, us)),
        1 => (-1_i64..=1).prop_map(Step::Edge),
        3 => prop_oneof![Just(0), Just(1), Just(1000)].prop_map(Step::Promised),
        8 => cost.clone().prop_map(Step::Ask),
        1 => (cost, prop_oneof![Just(0), 1_u64..1_500_000]).prop_map(|(cost, share)| Step::AskAndGiveBack(cost, share)),
    ];
    prop::collection::vec(step, 1..50)
}

/// From one a day to more than one a microsecond, from one unit to 2^53, windows from a microsecond to a year.
fn quotas() -> impl Strategy<Value = (Algorithm, Quota)> {
    let units = prop_oneof![
        Just(1),
        2_u64..20,
        Just(60),
        Just(1000),
        Just(300_000),
        Just(1_000_000),
        Just(1_000_000_000),
        1_u64..LARGEST,
        Just(LARGEST)
    ];
    let period = prop_oneof![
        Just(1),
        1_u64..1000,
        Just(SECOND),
        SECOND..100 * SECOND,
        Just(60 * SECOND),
        Just(DAY),
        Just(365 * DAY)
    ];
    let burst = prop_oneof![2 => Just(0), 1 => Just(1), 1 => 1..2_000_000_000_u64];
    (prop::sample::select(Algorithm::ALL.to_vec()), units, period, burst).prop_map(
        |(algorithm, units, period_us, burst)| {
            let burst = if algorithm == Algorithm::TokenBucket && burst > 0 { burst } else { units };
            (algorithm, Quota { units, period_us, burst })
        },
    )
}

struct Trial {
    model: Model,
    state: State,
    now: u64,
    promised: u64,
}

impl Trial {
    fn new((algorithm, quota): (Algorithm, Quota)) -> Self {
        let model = Model { algorithm, quota, admitted: Vec::new() };
        Self { model, state: State::new(algorithm), now: START, promised: 0 }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        let period = self.model.quota.period_us;
        match step {
            Step::Wait(share, us) => self.now += period / 1_000_000 * share + us,
            Step::Edge(offset) => {
                self.now = self.now.max((self.now / period * period + period).saturating_add_signed(offset));
            }
            Step::Promised(early) => self.now = self.now.max(self.promised.min(2 * START).saturating_sub(early)),
            Step::Ask(share) => {
                self.ask(self.cost(share))?;
            }
            Step::AskAndGiveBack(share, hold) => {
                let (cost, charged_at, before) = (self.cost(share), self.now, self.state.clone());
                if self.ask(cost)? {
                    self.now += period / 1_000_000 * hold;
                    self.give_back(cost, charged_at, &before)?;
                }
            }
        }
        Ok(())
    }

    fn cost(&self, thousandths: u64) -> u64 {
        u64::try_from(u128::from(self.model.quota.burst) * u128::from(thousandths) / 1000).unwrap().clamp(1, LARGEST)
    }

    /// Judges the answer to a request, charges it if it is admitted, and tells whether it was.
    fn ask(&mut self, cost: u64) -> Result<bool, TestCaseError> {
        let (now, quota) = (self.now, self.model.quota);
        let decision = self.state.decide(&quota, now, cost);
        prop_assert_eq!(decision.admitted, self.model.admits(now, cost));
        prop_assert_eq!(decision.before.remaining, self.model.remaining(now));
        prop_assert!(self.model.resets_after(now, decision.before.reset_us), "{:?}", decision);
        if decision.admitted {
            prop_assert_eq!(decision.retry_after_us, None);
            prop_assert_eq!(decision.after.remaining, decision.before.remaining - cost, "it counts down");
            self.model = self.model.with(now, cost);
            self.state.charge(&quota, now, cost);
            prop_assert_eq!(decision.after.remaining, self.model.remaining(now));
            prop_assert!(self.model.resets_after(now, decision.after.reset_us), "{:?}", decision);
            prop_assert_eq!(self.state.whole_at(&quota), now + decision.after.reset_us);
        } else if let Some(wait) = decision.retry_after_us {
            prop_assert!(wait >= 1);
            prop_assert_eq!(decision.after, decision.before);
            prop_assert!(self.model.admits(now + wait, cost) || now + wait == LARGEST, "the promised instant passes");
            prop_assert!(!self.model.admits(now + wait - 1, cost), "a microsecond earlier does not");
            prop_assert!(wait < 1000 || !self.model.admits(now + wait - 1000, cost), "nor a millisecond earlier");
            self.promised = now + wait;
        } else {
            prop_assert!(cost > quota.burst, "only what can never fit is refused for ever");
        }
        Ok(decision.admitted)
    }

    /// Nobody else came: it is as if it had never been charged, unless the counter's window has changed meanwhile.
    fn give_back(&mut self, cost: u64, charged_at: u64, before: &State) -> Result<(), TestCaseError> {
        let (now, quota) = (self.now, self.model.quota);
        self.state.release(&quota, now, cost, charged_at);
        let same_window = now / quota.period_us == charged_at / quota.period_us;
        if self.model.algorithm == Algorithm::SlidingWindowCounter && !same_window {
            return Ok(());
        }
        self.model.admitted.pop();
        for cost in [1, cost, quota.burst] {
            prop_assert_eq!(self.state.decide(&quota, now, cost), before.decide(&quota, now, cost));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_the_naive_models_to_the_microsecond(limit in quotas(), steps in steps()) {
        let mut trial = Trial::new(limit);
        for step in steps {
            trial.take(step)?;
        }
    }

    #[test]
    fn a_clock_that_steps_back_admits_nothing_more(
        limit in quotas(),
        steps in prop::collection::vec((-1_000_000_i64..1_000_000, 0_u64..500), 1..50),
    ) {
        let mut trial = Trial::new(limit);
        let (period, quota) = (i64::try_from(limit.1.period_us).unwrap(), limit.1);
        for (wait, share) in steps {
            trial.now = trial.now.saturating_add_signed((period / 1_000_000 * wait).max(-(20 * 365 * 86_400 * 1_000_000)));
            let stands_at = trial.model.admitted.last().map_or(0, |last| last.0).max(trial.now);
            let (cost, now) = (trial.cost(share), trial.now);
            let decision = trial.state.decide(&quota, now, cost);
            prop_assert!(!decision.admitted || trial.model.admits(stands_at, cost));
            prop_assert!(decision.before.remaining <= trial.model.remaining(stands_at));
            if let Some(wait) = decision.retry_after_us {
                prop_assert!(trial.state.decide(&quota, now + wait, cost).admitted || now + wait == LARGEST);
                prop_assert!(!trial.state.decide(&quota, now + wait - 1, cost).admitted);
            }
            if decision.admitted {
                trial.state.charge(&quota, now, cost);
                trial.model = trial.model.with(stands_at, cost);
            }
        }
    }

    #[test]
    fn a_changed_quota_applies_to_what_was_used(limit in quotas(), share in 0_u64..1000, other in 1_u64..LARGEST) {
        let mut trial = Trial::new(limit);
        let (cost, now) = (trial.cost(share), trial.now);
        prop_assume!(trial.ask(cost)?);
        let quota = Quota { units: other, burst: other, ..limit.1 };
        let decision = trial.state.decide(&quota, now, 1);
        prop_assert_eq!(decision.before.remaining, other.saturating_sub(cost));
        prop_assert_eq!(decision.admitted, other > cost);
    }

    #[test]
    fn a_changed_period_is_never_an_error(limit in quotas(), other in quotas(), steps in steps()) {
        let mut trial = Trial::new(limit);
        let quota = Quota { period_us: other.1.period_us, ..limit.1 };
        for step in steps {
            trial.take(step)?;
            let now = trial.now;
            let decision = trial.state.decide(&quota, now, 1);
            prop_assert!(decision.before.remaining <= quota.burst);
            let mut state = trial.state.clone();
            state.release(&quota, now, 1, now);
            prop_assert!(state.charge_up_to(&quota, now, 1) <= 1);
            let whole_at = state.whole_at(&quota).max(now);
            let after = state.decide(&quota, whole_at, 1);
            prop_assert!(after.before.remaining == quota.burst || whole_at == LARGEST);
        }
    }

    #[test]
    fn charging_up_to_a_cost_takes_all_that_is_left_and_no_more(limit in quotas(), first in 0_u64..1000, then in 0_u64..1100) {
        let mut trial = Trial::new(limit);
        let (first, then, now, quota) = (trial.cost(first), trial.cost(then), trial.now, limit.1);
        trial.ask(first)?;
        let left = trial.model.remaining(now);
        prop_assert_eq!(trial.state.charge_up_to(&quota, now, then), left.min(then));
        prop_assert_eq!(trial.state.decide(&quota, now, 1).before.remaining, left - left.min(then));
    }
}
