//! What the script does, with the Rust twins of its algorithms: reads a call's arguments as `lua/frame.lua` tells them, and
//! makes its reply. That both give the same numbers is proven by the twin tests.

use staunch::algorithm::{Algorithm, Decision, Lease, Quota, State};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
struct Rule {
    algorithm: Algorithm,
    quota: Quota,
}

/// Units by counter, for what may or may not have been charged.
pub type Units = HashMap<Vec<u8>, u64>;

#[derive(Default)]
pub struct States {
    pub counters: HashMap<Vec<u8>, State>,
    /// What was admitted elsewhere and was to be charged, and found no room: as much may be held by others as leases.
    pub no_room: Units,
}

pub struct Frame {
    groups: Vec<Vec<Check>>,
}

/// One check as the call has it; what an operation does not have is 0.
struct Check {
    operation: u64,
    key: Vec<u8>,
    rule: Rule,
    is_enforced: bool,
    cost: u64,
    lease: Lease,
    back: u64,
    charged_at: u64,
}

/// The packed numbers of the argument, big-endian.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self, bytes: usize) -> u64 {
        let (number, rest) = self.0.split_at(bytes);
        self.0 = rest;
        number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn small(&mut self) -> usize {
        usize::try_from(self.next(2)).unwrap()
    }

    fn rule(&mut self) -> Rule {
        let algorithm = Algorithm::ALL[usize::try_from(self.next(1)).unwrap() - 1];
        Rule { algorithm, quota: Quota { units: self.next(7), period_us: self.next(7), burst: self.next(7) } }
    }

    /// And whether more of its group follow.
    fn check(&mut self, keys: &[Vec<u8>], rules: &[Rule]) -> (Check, bool) {
        let [operation, more, enforced] = [self.next(1), self.next(1), self.next(1)];
        let (key, rule) = (keys[self.small() - 1].clone(), rules[self.small() - 1]);
        let cost = match self.next(1) {
            255 => self.next(7),
            cost => cost,
        };
        let is_enforced = enforced == 1;
        let mut check =
            Check { operation, key, rule, is_enforced, cost, lease: Lease::default(), back: 0, charged_at: 0 };
        if operation == 5 {
            check.lease = Lease { units: self.next(7), hold_us: self.next(7) };
            check.back = self.next(7);
        }
        if operation == 3 || operation == 5 {
            check.charged_at = self.next(7);
        }
        (check, more == 1)
    }
}

impl Frame {
    /// Of `EVALSHA`, what follows the digest.
    pub fn read(arguments: &[Vec<u8>]) -> Self {
        let (keys, mut numbers) = (&arguments[1..arguments.len() - 1], Numbers(&arguments[arguments.len() - 1]));
        assert_eq!(numbers.next(1), 0, "the node's own time");
        let is_plain = numbers.next(1) == 1;
        let rules: Vec<Rule> = (0..numbers.small()).map(|_| numbers.rule()).collect();
        let mut groups = Vec::new();
        while !numbers.0.is_empty() {
            let mut group = Vec::new();
            loop {
                let (check, more) = numbers.check(keys, &rules);
                assert!(!is_plain || [1, 4].contains(&check.operation), "what a plain call has");
                group.push(check);
                if !more {
                    break;
                }
            }
            groups.push(group);
        }
        Self { groups }
    }

    /// What it may charge at the most, for whoever never learns whether it has: checks and leases.
    pub fn charges(&self) -> Units {
        let mut units = Units::new();
        for check in self.groups.iter().flatten().filter(|check| [1, 2, 5].contains(&check.operation)) {
            *units.entry(check.key.clone()).or_default() += check.cost;
        }
        units
    }

    /// Runs it; the reply's packed numbers.
    pub fn run(&self, states: &mut States, now: u64) -> Vec<u8> {
        let mut reply = Vec::new();
        for group in &self.groups {
            match group[0].operation {
                1 | 5 => reply.extend(decide(states, now, group)),
                _ => reply.extend(single(states, now, &group[0])),
            }
        }
        reply.insert(4, now);
        reply.iter().flat_map(|number| number.to_be_bytes().into_iter().skip(1)).collect()
    }
}

fn decide(states: &mut States, now: u64, group: &[Check]) -> Vec<u64> {
    let (mut looks, mut reply): (Vec<Decision>, _) = (Vec::new(), Vec::new());
    for check in group {
        let (quota, state) = (&check.rule.quota, state_of(states, check));
        if check.back > 0 {
            state.release(quota, now, check.back, check.charged_at);
        }
        looks.push(state.decide(quota, now, check.cost));
    }
    let passes = looks.iter().zip(group).all(|(look, check)| look.admitted || !check.is_enforced);
    for (check, look) in group.iter().zip(looks) {
        let (quota, state) = (&check.rule.quota, state_of(states, check));
        let mut numbers = told(&look);
        if passes && look.admitted {
            state.charge(quota, now, check.cost);
            numbers[0] = 3;
            let leased = state.lease(quota, now, check.lease);
            if leased > 0 {
                numbers[0] += 4 * leased;
                numbers[3] = state.decide(quota, now, 0).before.reset_us;
            }
        }
        reply.extend(numbers);
    }
    reply
}

fn single(states: &mut States, now: u64, check: &Check) -> [u64; 4] {
    let quota = &check.rule.quota;
    let state = state_of(states, check);
    if check.operation == 4 {
        return told(&state.decide(quota, now, check.cost));
    }
    let mut numbers = told(&state.decide(quota, now, 0));
    numbers[3] = 0;
    if check.operation == 2 {
        let charged = state.charge_up_to(quota, now, check.cost);
        (numbers[0], numbers[3]) = (if charged > 0 { 3 } else { 1 }, charged);
        *states.no_room.entry(check.key.clone()).or_default() += check.cost - charged;
    } else {
        state.release(quota, now, check.cost, check.charged_at);
    }
    numbers
}

/// A look's four numbers.
fn told(look: &Decision) -> [u64; 4] {
    let last = if look.admitted { look.after.reset_us } else { look.retry_after_us.unwrap_or(0) };
    [u64::from(look.admitted), look.before.remaining, look.before.reset_us, last]
}

fn state_of<'s>(states: &'s mut States, check: &Check) -> &'s mut State {
    states.counters.entry(check.key.clone()).or_insert_with(|| State::new(check.rule.algorithm))
}
