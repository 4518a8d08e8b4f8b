//! What every store must do, whatever it is made of: written once, run over each.
//!
//! No case turns a clock: the period is so long that nothing comes back while a case runs, and every case makes keys of
//! its own, so one store can serve them all at once. A store implements `Place`, and `contract!` makes a test of each case.
//! Several shards of Redis are not all-or-nothing by themselves (the limiter gives back): run it over one.

mod concurrent;
mod several;
mod single;

pub use concurrent::*;
pub use several::*;
pub use single::*;

use staunch::algorithm::{Algorithm, Decision, Quota};
use staunch::store::{Answer, Check, CounterKey};

/// A hundred days; no window of that length ends during a test run.
pub const PERIOD_US: u64 = 100 * 86_400 * 1_000_000;

/// A store under test; every thread opens it for itself.
pub trait Place: Sync {
    type Store: Store;
    fn open(&self) -> Self::Store;
}

pub trait Store {
    fn decide(&self, checks: &[Check]) -> Vec<Answer>;
    fn give_back(&self, check: &Check, charged_at: u64);
    fn charge_up_to(&self, check: &Check) -> u64;
    fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Decision;
    fn reset(&self, key: CounterKey) -> bool;

    fn remaining(&self, check: &Check) -> u64 {
        self.inspect(check.key, check.algorithm, &check.quota).before.remaining
    }

    /// Whether the request passes: no enforced check is refused. What was charged must agree.
    fn passes(&self, checks: &[Check]) -> bool {
        let answers = self.decide(checks);
        assert_eq!(answers.len(), checks.len());
        let passes = checks.iter().zip(&answers).all(|(check, answer)| answer.decision.admitted || !check.enforced);
        for (check, answer) in checks.iter().zip(&answers) {
            assert_eq!(answer.charged, passes && answer.decision.admitted, "{check:?}: {answer:?}");
        }
        passes
    }
}

pub fn fresh_key() -> CounterKey {
    CounterKey(fastrand::u128(..))
}

/// An enforced check of one unit on a key of its own.
pub fn check(algorithm: Algorithm, units: u64) -> Check {
    let quota = Quota { units, period_us: PERIOD_US, burst: units };
    Check { key: fresh_key(), algorithm, quota, cost: 1, enforced: true }
}

pub fn with_cost(check: &Check, cost: u64) -> Check {
    Check { cost, ..*check }
}

pub fn with_units(check: &Check, units: u64) -> Check {
    Check { quota: Quota { units, burst: units, ..check.quota }, ..*check }
}

pub fn shadow(check: &Check) -> Check {
    Check { enforced: false, ..*check }
}

/// One test for each case, over the place that the expression makes.
#[macro_export]
macro_rules! contract {
    ($place:expr) => {
        $crate::contract!($place;
            a_first_request_is_never_refused,
            exactly_the_quota_of_a_burst_passes,
            a_refusal_says_when_to_come_again,
            each_answer_shows_the_standing_before_and_after,
            a_cost_is_taken_whole_or_not_at_all,
            a_refused_request_changes_nothing,
            what_is_given_back_can_be_used_again,
            giving_back_to_a_key_that_is_not_there_gives_nothing,
            a_raised_quota_applies_to_what_was_used,
            a_lowered_quota_applies_to_what_was_used,
            another_algorithm_starts_anew,
            charging_what_fits_stops_at_the_quota,
            looking_charges_nothing,
            a_reset_key_is_whole_again,
            two_keys_never_interact,
            one_tier_refusing_charges_no_other,
            a_shadow_limit_refuses_nobody_and_hides_nobody,
            a_shadow_limit_of_a_refused_request_is_not_charged,
            a_key_that_comes_twice_is_charged_twice,
            the_order_of_the_checks_changes_nothing,
            eight_threads_get_exactly_the_quota,
            eight_threads_keep_all_tiers_consistent,
            eight_threads_give_back_what_they_took,
        );
    };
    ($place:expr; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                contract::$case(&$place);
            }
        )+
    };
}
