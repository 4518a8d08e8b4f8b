//! The Rust transitions and the Lua script on a real Redis are twins: for the same schedule of times and costs both give
//! the same decisions, the same remaining and the same waits, to the microsecond; and every key has the expiry it needs.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, Value};
use staunch::algorithm::{Algorithm, LARGEST, Lease, Quota, State};
use staunch::store::redis::script::{self, Call, Told};
use staunch::store::{Answer, Ask, Check, CounterKey, Returned};
use std::cell::{Cell, RefCell};
use support::redis::RedisServer;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
const START: u64 = 1_796_000_000 * SECOND;
const PREFIX: &str = "staunch";

#[derive(Clone, Debug)]
enum Step {
    /// Lets time pass: a share of the first key's period in millionths, or a step back.
    Wait(i64),
    /// To the last promised instant, or a microsecond before it.
    Promised {
        early: bool,
    },
    /// Each cost in thousandths of the limit (0: one unit), and whether it is enforced.
    Decide(Vec<(u64, bool)>),
    /// A check with a lease: cost, units wanted, how long they are held (millionths of the period), and whether the last
    /// charge of the limit goes back with it.
    Lease(usize, [u64; 3], bool),
    ChargeUpTo(usize, u64),
    /// Gives back the charge made that many charges ago.
    GiveBack(usize),
    Reload(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = prop_oneof![4 => Just(0_u64), 2 => 1_u64..400, 1 => 400_u64..1100];
    let wait = prop_oneof![Just(0), 1_i64..10, 1_i64..100_000, 100_000_i64..2_500_000, -300_000_i64..0];
    let step = prop_oneof![
        4 => wait.prop_map(Step::Wait),
        3 => any::<bool>().prop_map(|early| Step::Promised { early }),
        8 => prop::collection::vec((cost.clone(), prop::bool::weighted(0.8)), 1..=3).prop_map(Step::Decide),
        4 => (0_usize..3, cost.clone(), cost.clone(), 0_u64..2_000_000, any::<bool>())
            .prop_map(|(key, cost, units, hold, back)| Step::Lease(key, [cost, units, hold], back)),
        1 => (0_usize..3, cost).prop_map(|(key, cost)| Step::ChargeUpTo(key, cost)),
        2 => (0_usize..4).prop_map(Step::GiveBack),
        1 => (0_usize..3, 500_u64..2000).prop_map(|(key, share)| Step::Reload(key, share)),
    ];
    prop::collection::vec(step, 1..40)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let units = prop_oneof![
        Just(1),
        2_u64..20,
        Just(60),
        Just(1000),
        Just(300_000),
        Just(1_000_000),
        Just(1_000_000_007),
        Just(LARGEST),
        1..LARGEST
    ];
    let period = prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        Just(DAY),
        Just(365 * DAY),
        2 * SECOND..10 * SECOND,
        Just(7),
        1_u64..1000
    ];
    (units, period, prop_oneof![2 => Just(None), 1 => Just(Some(1)), 1 => (1..2_000_000_000_u64).prop_map(Some)])
        .prop_map(|(units, period_us, burst)| Quota { units, period_us, burst: burst.unwrap_or(units) })
}

fn limits() -> impl Strategy<Value = Vec<(Algorithm, Quota)>> {
    let limit = (prop::sample::select(Algorithm::ALL.to_vec()), quotas()).prop_map(|(algorithm, quota)| {
        let burst = if algorithm == Algorithm::TokenBucket { quota.burst } else { quota.units };
        (algorithm, Quota { burst, ..quota })
    });
    prop::collection::vec(limit, 3)
}

/// Three limits, held twice: as Rust states and as keys of a Redis node.
struct Twins<'a> {
    connection: &'a mut Connection,
    limits: Vec<Check>,
    states: Vec<State>,
    now: u64,
    promised: Option<u64>,
    /// Charges so far: which limit, when, how much.
    charges: Vec<(usize, u64, u64)>,
    /// A key's short life ended before it could be prolonged: the schedule cannot go on.
    lost: bool,
}

impl<'a> Twins<'a> {
    fn new(connection: &'a mut Connection, limits: &[(Algorithm, Quota)], first_key: u128) -> Self {
        let check = |(index, &(algorithm, quota)): (usize, &(Algorithm, Quota))| Check {
            key: CounterKey(first_key + index as u128),
            algorithm,
            quota,
            cost: 1,
            enforced: true,
        };
        Self {
            connection,
            limits: limits.iter().enumerate().map(check).collect(),
            states: limits.iter().map(|(algorithm, _)| State::new(*algorithm)).collect(),
            now: START,
            promised: None,
            charges: Vec::new(),
            lost: false,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Wait(millionths) => {
                let period = i128::from(self.limits[0].quota.period_us);
                let wait = i64::try_from(period * i128::from(*millionths) / 1_000_000).unwrap();
                self.now = self.now.saturating_add_signed(wait.max(-(365 * 86_400_000_000))).max(1);
            }
            Step::Promised { early } => {
                if let Some(promised) = self.promised {
                    self.now = promised.min(LARGEST / 2) - u64::from(*early);
                }
            }
            Step::Decide(costs) => self.decide(costs),
            Step::Lease(index, sizes, back) => self.lease(*index, *sizes, *back),
            Step::ChargeUpTo(index, cost) => self.charge_up_to(*index, *cost),
            Step::GiveBack(ago) => self.give_back(*ago),
            Step::Reload(index, share) => {
                let quota = &mut self.limits[*index].quota;
                quota.units = scale(quota.units, *share).clamp(1, LARGEST);
                quota.burst = scale(quota.burst, *share).clamp(1, LARGEST);
                if self.limits[*index].algorithm != Algorithm::TokenBucket {
                    self.limits[*index].quota.burst = self.limits[*index].quota.units;
                }
            }
        }
    }

    fn decide(&mut self, costs: &[(u64, bool)]) {
        let checks: Vec<Check> = self
            .limits
            .iter()
            .zip(costs)
            .map(|(limit, &(cost, enforced))| Check { cost: units(limit, cost), enforced, ..*limit })
            .collect();
        let decisions: Vec<_> = checks
            .iter()
            .zip(&self.states)
            .map(|(check, state)| state.decide(&check.quota, self.now, check.cost))
            .collect();
        let passes = checks.iter().zip(&decisions).all(|(check, decision)| decision.admitted || !check.enforced);
        let mut wanted = Vec::new();
        let mut written = Vec::new();
        for (index, (check, decision)) in checks.iter().zip(&decisions).enumerate() {
            let charged = passes && decision.admitted;
            if charged {
                self.states[index].charge(&check.quota, self.now, check.cost);
                self.charges.push((index, self.now, check.cost));
                written.push(index);
            }
            if let Some(wait) = decision.retry_after_us {
                self.promised = Some(self.now + wait);
            }
            let answer = Answer::new(*decision, charged, self.now);
            wanted.push(Told { answer, charged: if charged { check.cost } else { 0 } });
        }
        let mut call = Call::new(PREFIX).at(self.now);
        call.decide(&checks);
        let told = self.run(call, &written);
        assert_eq!(told[..wanted.len()], wanted, "{checks:?} at {}", self.now);
    }

    fn lease(&mut self, index: usize, [cost, wanted, hold]: [u64; 3], takes_back: bool) {
        let check = Check { cost: units(&self.limits[index], cost), ..self.limits[index] };
        let lease = Lease { units: units(&check, wanted), hold_us: scale(check.quota.period_us, hold / 1000) };
        let last = self.charges.iter().rev().find(|charge| takes_back && charge.0 == index);
        let back = last.map_or(Returned::default(), |&(_, charged_at, units)| Returned { units, charged_at });
        let (state, quota, now) = (&mut self.states[index], &check.quota, self.now);
        let before = state.clone();
        if back.units > 0 {
            state.release(quota, now, back.units, back.charged_at);
        }
        let decision = state.decide(quota, now, check.cost);
        let mut answer = Answer::new(decision, decision.admitted, now);
        if decision.admitted {
            state.charge(quota, now, check.cost);
            answer.leased = state.lease(quota, now, lease);
        }
        if answer.leased > 0 {
            let reset_us = state.decide(quota, now, 0).before.reset_us;
            answer.lease_lasts_us = check.algorithm.lease_lasts_us(quota, answer.leased, reset_us);
            assert!(check.algorithm.is_leased() && answer.leased <= decision.after.remaining / 8);
        }
        let kept = *state != before && state.whole_at(quota) > now;
        let mut call = Call::new(PREFIX).at(now);
        call.ask(&[Ask { check, lease, back }]);
        let written = [index];
        let mut told = self.run(call, if kept { &written } else { &[] })[0];
        if answer.leased > 0 && check.algorithm == Algorithm::TokenBucket {
            // The script tells the reset with the lease; without it is reckoned from two rounded waits.
            let without = told.answer.decision.after.reset_us;
            assert!(without.abs_diff(decision.after.reset_us) <= 1, "{without} {decision:?}");
            told.answer.decision.after.reset_us = decision.after.reset_us;
        }
        let charged = if decision.admitted { check.cost } else { 0 };
        assert_eq!(told, Told { answer, charged }, "{check:?} {lease:?} at {now}");
        self.charges.extend((charged > 0).then_some((index, now, charged + answer.leased)));
    }

    fn charge_up_to(&mut self, index: usize, cost: u64) {
        let check = Check { cost: units(&self.limits[index], cost), ..self.limits[index] };
        let mut call = Call::new(PREFIX).at(self.now);
        call.charge_up_to(&check);
        let wanted = self.states[index].charge_up_to(&check.quota, self.now, check.cost);
        let written = [index];
        let told = self.run(call, if wanted > 0 { &written } else { &[] });
        assert_eq!(told[0].charged, wanted, "{check:?} at {}", self.now);
    }

    fn give_back(&mut self, ago: usize) {
        let Some(&(index, charged_at, cost)) = self.charges.iter().rev().nth(ago) else { return };
        let check = Check { cost, ..self.limits[index] };
        let mut call = Call::new(PREFIX).at(self.now);
        call.give_back(&check, charged_at);
        let before = self.states[index].clone();
        self.states[index].release(&check.quota, self.now, cost, charged_at);
        let state = &self.states[index];
        let written = [index];
        let kept = *state != before && state.whole_at(&check.quota) > self.now;
        self.run(call, if kept { &written } else { &[] });
    }

    /// Runs the call with a look at all three limits behind it, which must agree, and holds the expiry of what was written.
    fn run(&mut self, mut call: Call<'_>, written: &[usize]) -> Vec<Told> {
        let before = call.len();
        for limit in &self.limits {
            call.inspect(&Check { cost: 0, ..*limit });
        }
        let keys: Vec<Vec<u8>> = self.limits.iter().map(|limit| script::key_text(PREFIX, limit.key)).collect();
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME").add_command(call.command());
        for key in &keys {
            pipe.cmd("PEXPIRETIME").arg(key);
        }
        pipe.cmd("TIME");
        for key in &keys {
            // The schedule's time is not the node's: hold the key until the next step.
            pipe.cmd("PEXPIRE").arg(key).arg(3_600_000);
        }
        let replies: Vec<Value> = pipe.query(self.connection).expect("the script runs");
        let told = call.read(&replies[1]).expect("a reply of the script's shape");
        for (limit, (state, told)) in self.limits.iter().zip(self.states.iter().zip(&told[before..])) {
            assert_eq!(
                told.answer.decision,
                state.decide(&limit.quota, self.now, 0),
                "{limit:?} {state:?} at {}",
                self.now
            );
        }
        let (earliest, latest) = (micros(&replies[0]), micros(&replies[5]));
        self.lost = false;
        for index in 0..keys.len() {
            let expires: i64 = redis::from_redis_value(replies[2 + index].clone()).unwrap();
            assert_ne!(expires, -1, "no key is without expiry");
            if written.contains(&index) {
                let life = self.states[index].whole_at(&self.limits[index].quota).saturating_sub(self.now);
                let is_short = life < SECOND;
                self.lost |= is_short && replies[6 + index] != Value::Int(1);
                // A string's is an instant, a list's a time to live from the node's millisecond.
                let (first, last) = (earliest / 1000 + life.div_ceil(1000), (latest + life).div_ceil(1000));
                assert!(
                    (first..=last).contains(&u64::try_from(expires).unwrap_or(0)) || (is_short && expires == -2),
                    "{:?}: expires at {expires}, not {first}",
                    self.limits[index],
                );
            }
        }
        told
    }
}

fn scale(units: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(units) * u128::from(thousandths) / 1000).unwrap()
}

fn units(limit: &Check, thousandths: u64) -> u64 {
    let capacity = if limit.algorithm == Algorithm::TokenBucket { limit.quota.burst } else { limit.quota.units };
    scale(capacity, thousandths).clamp(1, LARGEST)
}

fn micros(time: &Value) -> u64 {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time.clone()).unwrap();
    seconds * SECOND + micros
}

fn connect(server: &RedisServer) -> Connection {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script::source()).query(&mut connection).unwrap();
    assert_eq!(sha, script::sha());
    connection
}

#[test]
fn rust_and_lua_give_the_same_numbers_for_every_schedule() {
    let server = RedisServer::start();
    let connection = RefCell::new(connect(&server));
    let next_key = Cell::new(1_u128 << 100);
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    runner
        .run(&(limits(), steps()), |(limits, steps)| {
            next_key.set(next_key.get() + 3);
            let mut connection = connection.borrow_mut();
            let mut twins = Twins::new(&mut connection, &limits, next_key.get());
            for step in &steps {
                twins.take(step);
                if twins.lost {
                    break;
                }
            }
            Ok(())
        })
        .unwrap();
}
