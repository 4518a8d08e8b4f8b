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

/// Rows of the reply are this wide.
const ROW: usize = 4;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(source()));

/// The whole script, as `SCRIPT LOAD` wants it.
#[must_use]
pub fn source() -> &'static str {
    concat!(
        include_str!("../../../lua/numbers.lua"),
        include_str!("../../../lua/fixed_window.lua"),
        include_str!("../../../lua/sliding_window_log.lua"),
        include_str!("../../../lua/sliding_window_counter.lua"),
        include_str!("../../../lua/token_bucket.lua"),
        include_str!("../../../lua/frame.lua"),
    )
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
    keys: Vec<CounterKey>,
    /// What many checks of a call have in common is sent once.
    rules: Vec<Rule>,
    groups: Vec<u64>,
    asked: Vec<Asked>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    algorithm: Algorithm,
    quota: Quota,
    enforced: bool,
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
        Self { prefix, time: 0, keys: Vec::new(), rules: Vec::new(), groups: Vec::new(), asked: Vec::new() }
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
        self.keys.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A group that is charged together or not at all. Its keys differ from each other.
    pub fn decide(&mut self, checks: &[Check]) {
        self.open(Operation::Decide, checks.len() as u64);
        for check in checks {
            self.push(Operation::Decide, check);
        }
    }

    /// The same with leases, and with what is given back.
    pub fn ask(&mut self, asks: &[Ask]) {
        let operation = if asks.iter().all(Ask::is_plain) { Operation::Decide } else { Operation::Lease };
        self.open(operation, asks.len() as u64);
        for Ask { check, lease, back } in asks {
            self.push(operation, check);
            if operation == Operation::Lease {
                self.groups.extend([lease.units, lease.hold_us, back.units, back.charged_at]);
            }
        }
    }

    pub fn charge_up_to(&mut self, check: &Check) {
        self.open(Operation::ChargeUpTo, 1);
        self.push(Operation::ChargeUpTo, check);
    }

    pub fn give_back(&mut self, check: &Check, charged_at: Micros) {
        self.open(Operation::GiveBack, 1);
        self.push(Operation::GiveBack, check);
        self.groups.push(charged_at);
    }

    /// Looks with the check's cost (which may be 0) and charges nothing.
    pub fn inspect(&mut self, check: &Check) {
        self.open(Operation::Inspect, 1);
        self.push(Operation::Inspect, check);
    }

    fn open(&mut self, operation: Operation, checks: u64) {
        self.groups.extend([operation as u64, checks]);
    }

    fn push(&mut self, operation: Operation, check: &Check) {
        let rule = Rule { algorithm: check.algorithm, quota: check.quota, enforced: check.enforced };
        let index = self.rules.iter().position(|known| *known == rule).unwrap_or_else(|| {
            self.rules.push(rule);
            self.rules.len() - 1
        });
        self.groups.extend([index as u64 + 1, check.cost]);
        self.keys.push(check.key);
        self.asked.push(Asked { operation, algorithm: check.algorithm, quota: check.quota, cost: check.cost });
    }

    /// The call as one command.
    #[must_use]
    pub fn command(&self) -> Cmd {
        let arguments = 5 + self.keys.len() + 5 * self.rules.len() + self.groups.len();
        let mut command = Cmd::with_capacity(arguments, 64 + 32 * self.keys.len() + 8 * arguments);
        command.arg("EVALSHA").arg(sha()).arg(self.keys.len());
        let mut text = Vec::with_capacity(self.prefix.len() + 1 + DIGITS);
        for key in &self.keys {
            text.clear();
            write_key(self.prefix, *key, &mut text);
            command.arg(text.as_slice());
        }
        command.arg(self.time).arg(self.rules.len());
        for rule in &self.rules {
            command.arg(algorithm_number(rule.algorithm));
            command.arg(rule.quota.units).arg(rule.quota.period_us).arg(rule.quota.burst);
            command.arg(u8::from(rule.enforced));
        }
        for number in &self.groups {
            command.arg(*number);
        }
        command
    }

    /// Reads the reply: one answer per check, in their order.
    ///
    /// # Errors
    /// When it is not a reply to this call.
    pub fn read(&self, reply: &Value) -> Result<Vec<Told>, Malformed> {
        let Value::Array(numbers) = reply else { return Err(Malformed) };
        let (at, rows) = numbers.split_first().ok_or(Malformed)?;
        if rows.len() != ROW * self.asked.len() {
            return Err(Malformed);
        }
        let at_us = whole(at)?;
        self.asked.iter().zip(rows.chunks_exact(ROW)).map(|(asked, row)| asked.read(at_us, row)).collect()
    }
}

impl Asked {
    fn read(self, at_us: Micros, row: &[Value]) -> Result<Told, Malformed> {
        let [flags, remaining, reset, last] = row else { return Err(Malformed) };
        let (flags, before) = (whole(flags)?, Standing { remaining: whole(remaining)?, reset_us: whole(reset)? });
        let (admitted, charged, leased) = (flags & 1 == 1, flags & 2 == 2, flags >> 2);
        let mut answer =
            Answer::new(Decision { admitted, before, after: before, retry_after_us: None }, charged, at_us);
        let mut units = 0;
        match self.operation {
            Operation::Decide | Operation::Lease | Operation::Inspect if admitted => {
                let remaining = before.remaining.checked_sub(self.cost).ok_or(Malformed)?;
                let reset_us = whole(last)?;
                answer.decision.after = Standing { remaining, reset_us };
                units = if charged { self.cost } else { 0 };
                if leased > 0 {
                    answer.leased = leased;
                    answer.lease_lasts_us = self.algorithm.lease_lasts_us(&self.quota, leased, reset_us);
                    answer.decision.after.reset_us = self.reset_without_lease(before.reset_us, reset_us);
                }
            }
            Operation::Decide | Operation::Lease | Operation::Inspect => {
                answer.decision.retry_after_us = whole(last).ok();
            }
            Operation::ChargeUpTo => units = whole(last)?,
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

/// The algorithm as the script numbers it: its place in `Algorithm::ALL`, from 1.
fn algorithm_number(algorithm: Algorithm) -> u8 {
    algorithm as u8 + 1
}

fn whole(value: &Value) -> Result<u64, Malformed> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| Malformed),
        _ => Err(Malformed),
    }
}
