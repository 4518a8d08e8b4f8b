//! The one script that decides on a node: its source, its arguments, its reply. The convention is told in `lua/frame.lua`.
//!
//! A `Call` gathers any number of groups (a request's checks, a give back, …), becomes one `EVALSHA`, and reads the reply
//! into one `Told` per check, in the order they were added. Connections, retries and `NOSCRIPT` are the shard's.

use crate::algorithm::{Algorithm, Decision, Quota, Standing};
use crate::clock::Micros;
use crate::store::{Answer, Ask, Check, CounterKey};
use redis::{Cmd, Script, Value};
use std::sync::LazyLock;

/// Beyond this many checks Lua could not pass the keys on; a batch is far smaller.
pub const CHECKS_MAX: usize = 1000;

/// A packed number has this many bytes: it is a whole one up to 2^53.
const NUMBER: usize = 7;
/// Numbers that the reply has for each check.
const ROW: usize = 4;
/// A smaller cost takes one byte.
const LONG_COST: u8 = 255;

static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let algorithms = concat!(
        include_str!("../../../lua/fixed_window.lua"),
        include_str!("../../../lua/sliding_window_log.lua"),
        include_str!("../../../lua/sliding_window_counter.lua"),
        include_str!("../../../lua/token_bucket.lua"),
    );
    let frame = include_str!("../../../lua/frame.lua").replacen("-- (the algorithms)", algorithms, 1);
    format!("{}{frame}", include_str!("../../../lua/numbers.lua"))
});

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(source()));

/// The whole script, as `SCRIPT LOAD` wants it: the algorithms stand where the frame makes what its rules need.
#[must_use]
pub fn source() -> &'static str {
    &SOURCE
}

/// Its SHA-1 in hex, as `EVALSHA` wants it.
#[must_use]
pub fn sha() -> &'static str {
    SCRIPT.get_hash()
}

/// A counter's key: the prefix, a colon, and the digest as 22 digits in base 64. No client's value is in it.
#[must_use]
pub fn key_text(prefix: &str, key: CounterKey) -> Vec<u8> {
    let mut text = Vec::with_capacity(prefix.len() + 1 + DIGITS);
    write_key(prefix, key, &mut text);
    text
}

const DIGITS: usize = 22;

fn write_key(prefix: &str, CounterKey(digest): CounterKey, text: &mut Vec<u8>) {
    const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    text.extend_from_slice(prefix.as_bytes());
    text.push(b':');
    for position in (0..DIGITS).rev() {
        let digit = usize::try_from((digest >> (6 * position)) & 63).unwrap_or_default();
        text.push(ALPHABET[digit]);
    }
}

/// Groups that travel together in one script call.
#[derive(Debug)]
pub struct Call<'a> {
    prefix: &'a str,
    /// 0: the node's own clock.
    time: Micros,
    /// Each once.
    keys: Vec<CounterKey>,
    /// What many checks of a call have in common is sent once.
    rules: Vec<Rule>,
    /// The checks as the script reads them.
    packed: Vec<u8>,
    asked: Vec<Asked>,
    /// Nothing but checks and looks.
    is_plain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    algorithm: Algorithm,
    quota: Quota,
}

/// What is needed of a check to read its row.
#[derive(Clone, Copy, Debug)]
struct Asked {
    operation: Operation,
    algorithm: Algorithm,
    quota: Quota,
    cost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Decide = 1,
    ChargeUpTo = 2,
    GiveBack = 3,
    Inspect = 4,
    /// `Decide`, with what goes along with each check.
    Lease = 5,
}

/// The node's answer to one check. For `charge_up_to` and `give_back` the decision is the limit's standing before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub answer: Answer,
    /// Units taken: the cost or 0 for a decision, as many as fitted for `charge_up_to`.
    pub charged: u64,
}

/// The reply is not of the script's making.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the script's reply has another shape than its call")]
pub struct Malformed;

impl<'a> Call<'a> {
    #[must_use]
    pub fn new(prefix: &'a str) -> Self {
        let (keys, rules, packed, asked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { prefix, time: 0, keys, rules, packed, asked, is_plain: true }
    }

    /// Decides at a given time (> 0) instead of the node's, for tests.
    #[must_use]
    pub fn at(mut self, now: Micros) -> Self {
        self.time = now;
        self
    }

    /// The checks added so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// A group that is charged together or not at all. Its keys differ from each other.
    pub fn decide(&mut self, checks: &[Check]) {
        for (check, following) in checks.iter().zip((0..checks.len()).rev()) {
            self.push(Operation::Decide, following > 0, check);
        }
    }

    /// The same with leases, and with what is given back.
    pub fn ask(&mut self, asks: &[Ask]) {
        let operation = if asks.iter().all(Ask::is_plain) { Operation::Decide } else { Operation::Lease };
        for (Ask { check, lease, back }, following) in asks.iter().zip((0..asks.len()).rev()) {
            self.push(operation, following > 0, check);
            if operation == Operation::Lease {
                for number in [lease.units, lease.hold_us, back.units, back.charged_at] {
                    pack(&mut self.packed, number);
                }
            }
        }
    }

    pub fn charge_up_to(&mut self, check: &Check) {
        self.push(Operation::ChargeUpTo, false, check);
    }

    pub fn give_back(&mut self, check: &Check, charged_at: Micros) {
        self.push(Operation::GiveBack, false, check);
        pack(&mut self.packed, charged_at);
    }

    /// Looks with the check's cost (which may be 0) and charges nothing.
    pub fn inspect(&mut self, check: &Check) {
        self.push(Operation::Inspect, false, check);
    }

    /// `more`: others of the same group come after this one.
    fn push(&mut self, operation: Operation, more: bool, check: &Check) {
        self.is_plain &= matches!(operation, Operation::Decide | Operation::Inspect);
        let rule = Rule { algorithm: check.algorithm, quota: check.quota };
        self.packed.extend([operation as u8, u8::from(more), u8::from(check.enforced)]);
        pack_small(&mut self.packed, 1 + index_of(&mut self.keys, check.key));
        pack_small(&mut self.packed, 1 + index_of(&mut self.rules, rule));
        match u8::try_from(check.cost) {
            Ok(cost) if cost < LONG_COST => self.packed.push(cost),
            _ => {
                self.packed.push(LONG_COST);
                pack(&mut self.packed, check.cost);
            }
        }
        self.asked.push(Asked { operation, algorithm: check.algorithm, quota: check.quota, cost: check.cost });
    }

    /// The call as one command.
    #[must_use]
    pub fn command(&self) -> Cmd {
        let arguments = 4 + self.keys.len();
        let mut command =
            Cmd::with_capacity(arguments, 128 + 32 * (self.keys.len() + self.rules.len()) + self.packed.len());
        command.arg("EVALSHA").arg(sha()).arg(self.keys.len());
        let mut text = Vec::with_capacity(self.prefix.len() + 1 + DIGITS);
        for key in &self.keys {
            text.clear();
            write_key(self.prefix, *key, &mut text);
            command.arg(text.as_slice());
        }
        text.clear();
        self.pack(&mut text);
        command.arg(text);
        command
    }

    /// The argument, as `lua/frame.lua` tells it.
    fn pack(&self, text: &mut Vec<u8>) {
        text.extend([u8::from(self.time > 0), u8::from(self.is_plain)]);
        pack_small(text, self.rules.len());
        if self.time > 0 {
            pack(text, self.time);
        }
        for Rule { algorithm, quota } in &self.rules {
            text.push(algorithm_number(*algorithm));
            for number in [quota.units, quota.period_us, quota.burst] {
                pack(text, number);
            }
        }
        text.extend_from_slice(&self.packed);
    }

    /// Reads the reply: one answer per check, in their order.
    ///
    /// # Errors
    /// When it is not a reply to this call.
    pub fn read(&self, reply: &Value) -> Result<Vec<Told>, Malformed> {
        let Value::BulkString(packed) = reply else { return Err(Malformed) };
        let (numbers, []) = packed.as_chunks::<NUMBER>() else { return Err(Malformed) };
        if numbers.len() != ROW * self.asked.len() + 1 {
            return Err(Malformed);
        }
        let (first, [at, others @ ..]) = numbers.split_at(ROW) else { return Err(Malformed) };
        let (at_us, rows) = (unpack(at), first.as_chunks().0.iter().chain(others.as_chunks().0));
        self.asked.iter().zip(rows).map(|(asked, row)| asked.read(at_us, row.map(|number| unpack(&number)))).collect()
    }
}

impl Asked {
    fn read(self, at_us: Micros, [flags, remaining, reset_us, last]: [u64; ROW]) -> Result<Told, Malformed> {
        let before = Standing { remaining, reset_us };
        let (admitted, charged, leased) = (flags & 1 == 1, flags & 2 == 2, flags >> 2);
        let mut answer =
            Answer::new(Decision { admitted, before, after: before, retry_after_us: None }, charged, at_us);
        let mut units = 0;
        match self.operation {
            Operation::Decide | Operation::Lease | Operation::Inspect if admitted => {
                let remaining = before.remaining.checked_sub(self.cost).ok_or(Malformed)?;
                answer.decision.after = Standing { remaining, reset_us: last };
                units = if charged { self.cost } else { 0 };
                if leased > 0 {
                    answer.leased = leased;
                    answer.lease_lasts_us = self.algorithm.lease_lasts_us(&self.quota, leased, last);
                    answer.decision.after.reset_us = self.reset_without_lease(before.reset_us, last);
                }
            }
            Operation::Decide | Operation::Lease | Operation::Inspect => {
                answer.decision.retry_after_us = Some(last).filter(|wait| *wait > 0);
            }
            Operation::ChargeUpTo => units = last,
            Operation::GiveBack => {}
        }
        Ok(Told { answer, charged: units })
    }

    /// What the client is told counts only what was used. A window ends when it ends; a bucket refills by the unit.
    fn reset_without_lease(self, before_us: u64, with_lease_us: u64) -> u64 {
        if self.algorithm == Algorithm::TokenBucket {
            with_lease_us.min(before_us.saturating_add(self.quota.refill_us(self.cost)))
        } else {
            with_lease_us
        }
    }
}

/// Its place in the list, where it is put if it is not there yet. The lists are as short as a call.
fn index_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

/// A whole number up to 2^53.
fn pack(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(&number.to_be_bytes()[8 - NUMBER..]);
}

fn unpack(packed: &[u8; NUMBER]) -> u64 {
    packed.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// What counts a call's checks or rules, in two bytes: there are fewer than `CHECKS_MAX`.
fn pack_small(text: &mut Vec<u8>, number: usize) {
    text.extend_from_slice(&u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes());
}

/// The algorithm as the script numbers it: its place in `Algorithm::ALL`, from 1.
fn algorithm_number(algorithm: Algorithm) -> u8 {
    algorithm as u8 + 1
}
