//! What the script does, with the Rust twins of its algorithms: reads a call's arguments as `lua/frame.lua` tells them, and
//! makes its reply. That both give the same numbers is proven by the twin tests.

use staunch::algorithm::{Algorithm, Decision, Lease, Quota, State};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
struct Rule {
    algorithm: Algorithm,
    quota: Quota,
    is_enforced: bool,
}

/// Units by counter, for what may or may not have been charged.
pub type Units = HashMap<Vec<u8>, u64>;

#[derive(Default)]
pub struct States {
    pub counters: HashMap<Vec<u8>, State>,
    /// What was admitted elsewhere and was to be charged, and found no room: as much may be held by others as leases.
    pub no_room: Units,
}

pub struct Frame<'a> {
    keys: &'a [Vec<u8>],
    rules: Vec<Rule>,
    groups: Vec<u64>,
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

impl<'a> Frame<'a> {
    /// Of `EVALSHA`, what follows the digest.
    pub fn read(arguments: &'a [Vec<u8>]) -> Self {
        let count = usize::try_from(number(&arguments[0])).unwrap();
        let (keys, rest) = arguments[1..].split_at(count);
        let numbers: Vec<u64> = rest.iter().map(|text| number(text)).collect();
        assert_eq!(numbers[0], 0, "the node's own time");
        let (rules, groups) = numbers[2..].split_at(5 * usize::try_from(numbers[1]).unwrap());
        let rule = |row: &[u64]| Rule {
            algorithm: Algorithm::ALL[usize::try_from(row[0]).unwrap() - 1],
            quota: Quota { units: row[1], period_us: row[2], burst: row[3] },
            is_enforced: row[4] == 1,
        };
        Self { keys, rules: rules.chunks(5).map(rule).collect(), groups: groups.to_vec() }
    }

    /// What it may charge at the most, for whoever never learns whether it has: checks and leases.
    pub fn charges(&self) -> Units {
        let mut units = Units::new();
        self.each(|operation, key, row| {
            if [1, 2, 5].contains(&operation) {
                *units.entry(key.to_vec()).or_default() += row[1];
            }
        });
        units
    }

    fn each(&self, mut see: impl FnMut(u64, &[u8], &[u64])) {
        let (mut at, mut key) = (0, 0);
        while at < self.groups.len() {
            let (operation, count) = (self.groups[at], self.groups[at + 1]);
            at += 2;
            for _ in 0..count {
                let width = width(operation);
                see(operation, &self.keys[key], &self.groups[at..at + width]);
                (at, key) = (at + width, key + 1);
            }
        }
    }

    /// Runs it; the reply's numbers.
    pub fn run(&self, states: &mut States, now: u64) -> Vec<i64> {
        let mut reply = vec![signed(now)];
        let (mut at, mut key) = (0, 0);
        while at < self.groups.len() {
            let (operation, count) = (self.groups[at], usize::try_from(self.groups[at + 1]).unwrap());
            let rows: Vec<&[u64]> =
                self.groups[at + 2..at + 2 + count * width(operation)].chunks(width(operation)).collect();
            let keys = &self.keys[key..key + count];
            match operation {
                1 | 5 => self.group(states, now, keys, &rows, &mut reply),
                _ => self.single(operation, states, now, (&keys[0], rows[0]), &mut reply),
            }
            at += 2 + count * width(operation);
            key += count;
        }
        reply
    }

    fn group(&self, states: &mut States, now: u64, keys: &[Vec<u8>], rows: &[&[u64]], reply: &mut Vec<i64>) {
        let rule = |row: &[u64]| self.rules[usize::try_from(row[0]).unwrap() - 1];
        let mut looks: Vec<Decision> = Vec::new();
        for (key, row) in keys.iter().zip(rows) {
            let (rule, state) = (rule(row), state_of(states, key, rule(row)));
            if let [_, _, _, _, back, charged_at] = **row
                && back > 0
            {
                state.release(&rule.quota, now, back, charged_at);
            }
            looks.push(state.decide(&rule.quota, now, row[1]));
        }
        let passes = looks.iter().zip(rows).all(|(look, row)| look.admitted || !rule(row).is_enforced);
        for ((key, row), look) in keys.iter().zip(rows).zip(looks) {
            let (rule, state) = (rule(row), state_of(states, key, rule(row)));
            let mut numbers =
                [i64::from(look.admitted), signed(look.before.remaining), signed(look.before.reset_us), 0];
            numbers[3] =
                if look.admitted { signed(look.after.reset_us) } else { look.retry_after_us.map_or(-1, signed) };
            if passes && look.admitted {
                state.charge(&rule.quota, now, row[1]);
                numbers[0] = 3;
                let lease = if row.len() > 2 { Lease { units: row[2], hold_us: row[3] } } else { Lease::default() };
                let leased = state.lease(&rule.quota, now, lease);
                if leased > 0 {
                    numbers[0] += 4 * signed(leased);
                    numbers[3] = signed(state.decide(&rule.quota, now, 0).before.reset_us);
                }
            }
            reply.extend(numbers);
        }
    }

    fn single(
        &self,
        operation: u64,
        states: &mut States,
        now: u64,
        (key, row): (&Vec<u8>, &[u64]),
        reply: &mut Vec<i64>,
    ) {
        let rule = self.rules[usize::try_from(row[0]).unwrap() - 1];
        let States { counters, no_room } = states;
        let state = counters.entry(key.clone()).or_insert_with(|| State::new(rule.algorithm));
        let look = state.decide(&rule.quota, now, if operation == 4 { row[1] } else { 0 });
        let mut numbers = [i64::from(look.admitted), signed(look.before.remaining), signed(look.before.reset_us), 0];
        match operation {
            2 => {
                let charged = state.charge_up_to(&rule.quota, now, row[1]);
                *no_room.entry(key.clone()).or_default() += row[1] - charged;
                (numbers[0], numbers[3]) = (if charged > 0 { 3 } else { 1 }, signed(charged));
            }
            3 => state.release(&rule.quota, now, row[1], row[2]),
            _ if look.admitted => numbers[3] = signed(look.after.reset_us),
            _ => numbers[3] = look.retry_after_us.map_or(-1, signed),
        }
        reply.extend(numbers);
    }
}

fn state_of<'s>(states: &'s mut States, key: &[u8], rule: Rule) -> &'s mut State {
    states.counters.entry(key.to_vec()).or_insert_with(|| State::new(rule.algorithm))
}

/// How many numbers a check of an operation has.
fn width(operation: u64) -> usize {
    match operation {
        3 => 3,
        5 => 6,
        _ => 2,
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}
