//! The script on a real node: what it does with keys as it finds them, with several groups in one call, and what it costs in
//! memory. That its numbers are right is for `twins.rs`.

mod support;

use proptest::prelude::*;
use redis::{Commands, Connection, RedisResult, Value};
use staunch::algorithm::{Algorithm, LARGEST, Quota, State};
use staunch::store::redis::script::{self, Call, Told};
use staunch::store::{Check, CounterKey};
use std::cell::RefCell;
use support::redis::RedisServer;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const NOW: u64 = 1_796_000_000 * SECOND;
const PREFIX: &str = "staunch";

fn connect(server: &RedisServer) -> Connection {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let _: String = redis::cmd("SCRIPT").arg("LOAD").arg(script::source()).query(&mut connection).unwrap();
    connection
}

fn check(algorithm: Algorithm, key: u128, units: u64) -> Check {
    let quota = Quota { units, period_us: HOUR, burst: units };
    Check { key: CounterKey(key), algorithm, quota, cost: 1, enforced: true }
}

fn key_of(check: &Check) -> Vec<u8> {
    script::key_text(PREFIX, check.key)
}

fn try_run(connection: &mut Connection, call: &Call<'_>) -> RedisResult<Vec<Told>> {
    let reply: Value = call.command().query(connection)?;
    Ok(call.read(&reply).expect("a reply of the script's shape"))
}

fn decide(connection: &mut Connection, now: u64, groups: &[&[Check]]) -> Vec<Told> {
    let mut call = Call::new(PREFIX).at(now);
    for group in groups {
        call.decide(group);
    }
    try_run(connection, &call).expect("the script runs")
}

#[test]
fn the_largest_quota_loses_no_digit() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let check = check(algorithm, key, LARGEST);
        let all = Check { cost: LARGEST - 1, ..check };
        // In one call: such a bucket is whole again, and its key gone, within a millisecond.
        let told = decide(&mut connection, NOW, &[&[check], &[all], &[check]]);
        assert_eq!(told[0].answer.decision.before.remaining, LARGEST, "{algorithm:?}");
        assert_eq!(told[0].answer.decision.after.remaining, LARGEST - 1, "{algorithm:?}");
        assert_eq!(told[0].answer.decision, State::new(algorithm).decide(&check.quota, NOW, 1));
        assert_eq!(told[1].answer.decision.after.remaining, 0, "{algorithm:?}");
        assert!(!told[2].answer.decision.admitted, "{algorithm:?}");
    }
}

#[test]
fn a_later_group_of_a_call_sees_what_an_earlier_one_charged() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let check = check(algorithm, key, 3);
        let told = decide(&mut connection, NOW, &[[check].as_slice(); 5]);
        let left: Vec<_> = told.iter().map(|told| told.answer.decision.before.remaining).collect();
        let charged: Vec<_> = told.iter().map(|told| told.answer.charged).collect();
        assert_eq!((left, charged), (vec![3, 2, 1, 0, 0], vec![true, true, true, false, false]), "{algorithm:?}");
    }
}

#[test]
fn a_full_call_answers_each_check_by_its_own_key_and_rule() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    let most = script::CHECKS_MAX as u64;
    let checks: Vec<Check> =
        (1..=most).map(|units| check(Algorithm::FixedWindow, units.into(), units * units)).collect();
    let (single, all): (Vec<&[Check]>, [&[Check]; 1]) = (checks.chunks(1).collect(), [&checks]);
    for (used, groups) in [(0, single.as_slice()), (1, &all)] {
        let told = decide(&mut connection, NOW, groups);
        let left: Vec<u64> = told.iter().map(|told| told.answer.decision.before.remaining).collect();
        assert_eq!(left, (1..=most).map(|units| units * units - used).collect::<Vec<_>>());
        assert!(told.iter().all(|told| told.answer.charged == (used == 0) && told.answer.at_us == NOW));
    }
}

#[test]
fn a_refusal_charges_no_limit_of_its_group() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).step_by(2).zip(Algorithm::ALL) {
        let (wide, narrow) = (check(algorithm, key, 10), check(algorithm, key + 1, 1));
        let told = decide(&mut connection, NOW, &[&[wide, narrow], &[wide, narrow], &[narrow, wide], &[wide]]);
        assert!(told[2].answer.decision.admitted && !told[2].answer.charged, "it had room, and was not charged");
        assert_eq!(told[6].answer.decision.before.remaining, 9, "{algorithm:?}");
    }
}

#[test]
fn a_shadow_limit_refuses_nobody_and_is_charged_while_it_has_room() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).step_by(2).zip(Algorithm::ALL) {
        let (enforced, shadow) = (check(algorithm, key, 2), Check { enforced: false, ..check(algorithm, key + 1, 1) });
        let told = decide(&mut connection, NOW, &[[shadow, enforced].as_slice(); 3]);
        let charged: Vec<_> = told.iter().map(|told| told.answer.charged).collect();
        assert_eq!(charged, [true, true, false, true, false, false], "{algorithm:?}");
    }
}

#[test]
fn without_a_given_time_the_nodes_clock_decides() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    let micros = |(seconds, micros): (u64, u64)| seconds * SECOND + micros;
    let before = micros(redis::cmd("TIME").query(&mut connection).unwrap());
    let told = decide(&mut connection, 0, &[&[check(Algorithm::TokenBucket, 1, 5)]]);
    let after = micros(redis::cmd("TIME").query(&mut connection).unwrap());
    assert!((before..=after).contains(&told[0].answer.at_us));
}

#[test]
fn a_refused_request_writes_nothing() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let check = check(algorithm, key, 2);
        decide(&mut connection, NOW, &[&[check], &[check]]);
        let (held, expires): (Vec<u8>, i64) = held(&mut connection, &check);
        assert!(!decide(&mut connection, NOW + SECOND, &[&[check]])[0].answer.charged);
        assert_eq!(self::held(&mut connection, &check), (held, expires), "{algorithm:?}");
    }
}

fn held(connection: &mut Connection, check: &Check) -> (Vec<u8>, i64) {
    let key = key_of(check);
    redis::pipe().cmd("DUMP").arg(&key).cmd("PEXPIRETIME").arg(&key).query(connection).unwrap()
}

#[test]
fn a_key_that_lost_its_expiry_gets_one_again_and_an_old_one_counts_as_none() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let check = check(algorithm, key, 5);
        decide(&mut connection, NOW, &[&[check]]);
        assert!(connection.persist::<_, bool>(key_of(&check)).unwrap());
        let told = decide(&mut connection, NOW + 1, &[&[check]]);
        assert_eq!(told[0].answer.decision.before.remaining, 4, "{algorithm:?}");
        assert!(connection.pttl::<_, i64>(key_of(&check)).unwrap() > 0, "{algorithm:?}");
        assert!(connection.persist::<_, bool>(key_of(&check)).unwrap());
        let told = decide(&mut connection, NOW + 3 * HOUR, &[&[check]]);
        assert_eq!(told[0].answer.decision.before.remaining, 5, "{algorithm:?}");
        assert!(connection.pttl::<_, i64>(key_of(&check)).unwrap() > 0, "{algorithm:?}");
    }
}

#[test]
fn a_limit_whose_algorithm_changed_starts_anew() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for old in Algorithm::ALL {
        for new in Algorithm::ALL {
            let (old, new) = (check(old, 7, 5), check(new, 7, 5));
            let told = decide(&mut connection, NOW, &[&[old], &[new], &[new]]);
            if old.algorithm != new.algorithm {
                assert_eq!(told[1].answer.decision.before.remaining, 5, "{old:?} {new:?}");
            }
            let told = decide(&mut connection, NOW, &[&[new]]);
            assert!(told[0].answer.decision.before.remaining <= 3, "{old:?} {new:?}");
            assert!(connection.pttl::<_, i64>(key_of(&new)).unwrap() > 0);
            let _: () = connection.del(key_of(&new)).unwrap();
        }
    }
}

#[test]
fn a_node_out_of_memory_errs_and_leaves_the_state_as_it_was() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let check = check(algorithm, key, 5);
        decide(&mut connection, NOW, &[&[check], &[check]]);
        let before = held(&mut connection, &check);
        let set = |connection: &mut Connection, bytes: &str| {
            redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query::<()>(connection).unwrap();
        };
        set(&mut connection, "1");
        let mut call = Call::new(PREFIX).at(NOW + SECOND);
        call.decide(&[check]);
        let error = try_run(&mut connection, &call).unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        set(&mut connection, "0");
        assert_eq!(held(&mut connection, &check), before, "{algorithm:?}");
    }
}

#[test]
fn keys_are_small() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    let bytes = |connection: &mut Connection, check: &Check| -> usize {
        redis::cmd("MEMORY").arg("USAGE").arg(key_of(check)).arg("SAMPLES").arg(0).query(connection).unwrap()
    };
    for (key, algorithm, most) in
        [(1, Algorithm::FixedWindow, 145), (2, Algorithm::TokenBucket, 145), (3, Algorithm::SlidingWindowCounter, 145)]
    {
        let check = check(algorithm, key, 3600);
        decide(&mut connection, NOW, &[&[check]]);
        decide(&mut connection, NOW + SECOND / 3, &[&[check]]);
        let bytes = bytes(&mut connection, &check);
        println!("{}: {bytes} bytes", algorithm.name());
        assert!(bytes <= most, "{algorithm:?}: {bytes}");
    }
    let log = check(Algorithm::SlidingWindowLog, 4, 10_000);
    for second in 0..100 {
        decide(&mut connection, NOW + second * SECOND, &[[log].as_slice(); 100]);
    }
    let each = bytes(&mut connection, &log) / 10_000;
    println!("{}: {each} bytes a unit", log.algorithm.name());
    assert!(each <= 13, "{each}");
    let bulk = Check { cost: 1_000_000, ..check(Algorithm::SlidingWindowLog, 5, 1_000_000) };
    decide(&mut connection, NOW, &[&[bulk]]);
    assert!(bytes(&mut connection, &bulk) < 300, "one entry for one charge");
}

/// What a stranger may have left under our key.
#[derive(Clone, Debug)]
enum Foreign {
    Text(Vec<u8>),
    List(Vec<String>),
    Hash,
}

fn foreign() -> impl Strategy<Value = Foreign> {
    let element = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (-9_i64..9).prop_map(|number| number.to_string()),
        (NOW - HOUR..NOW + HOUR).prop_map(|time| time.to_string()),
        (NOW - HOUR..NOW + HOUR).prop_map(|time| format!("-{time}")),
        prop::sample::select(vec!["nan", "inf", "-inf", "1e300", "0.5", "", "x", "0x7", "-0"]).prop_map(String::from),
    ];
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..30).prop_map(Foreign::Text),
        (prop::sample::select(b"bcf".to_vec()), prop::collection::vec(any::<u8>(), 11..24)).prop_map(
            |(tag, mut text)| {
                text.insert(0, tag);
                Foreign::Text(text)
            }
        ),
        prop::collection::vec(element, 1..20).prop_map(Foreign::List),
        Just(Foreign::Hash),
    ]
}

#[test]
fn a_strangers_value_under_our_key_is_never_an_error() {
    let server = RedisServer::start();
    let connection = RefCell::new(connect(&server));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..Default::default()
    });
    let all = (foreign(), prop::sample::select(Algorithm::ALL.to_vec()));
    runner
        .run(&all, |(foreign, algorithm)| {
            let connection = &mut *connection.borrow_mut();
            let check = check(algorithm, 1, 5);
            let key = key_of(&check);
            let _: () = connection.del(&key).unwrap();
            let _: () = match &foreign {
                Foreign::Text(text) => connection.set(&key, text).unwrap(),
                Foreign::List(elements) => connection.rpush(&key, elements).unwrap(),
                Foreign::Hash => connection.hset(&key, "field", 1).unwrap(),
            };
            let mut call = Call::new(PREFIX).at(NOW);
            call.inspect(&check);
            call.give_back(&check, NOW - SECOND);
            call.decide(&[check]);
            call.charge_up_to(&Check { cost: 3, ..check });
            let told = try_run(connection, &call).map_err(|error| TestCaseError::fail(error.to_string()))?;
            if told[2].answer.charged {
                prop_assert!(connection.pttl::<_, i64>(&key).unwrap() > 0);
            }
            if matches!(&foreign, Foreign::Hash) {
                prop_assert_eq!(told[3].charged, 3, "it counted as none and was replaced");
            }
            Ok(())
        })
        .unwrap();
}
