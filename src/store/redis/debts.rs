//! What was admitted here while a shard was away, to be charged to it before it is asked again.

use super::call::{self, Order};
use super::connect::Link;
use super::fault::{Fault, Next};
use super::script::{Call, Told};
use crate::algorithm::State;
use crate::clock::{self, Micros};
use crate::store::{Check, CounterKey};
use crate::telemetry::metrics::ShardMetrics;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Keys noted at most, for one shard: beyond them the shard would be asked for longer than it was away.
const MAX_KEYS: usize = 100_000;
/// Keys charged in one call.
const BATCH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Debts {
    owed: Mutex<HashMap<CounterKey, Debt>>,
    /// Units that found no room, or whose charging may have failed.
    lost: AtomicU64,
}

/// What is owed on one key: what was admitted here as the limit itself counts it, so that it grows old as it would have there.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    check: Check,
    admitted: State,
}

impl Debt {
    fn new(check: &Check) -> Self {
        Self { check: *check, admitted: State::new(check.algorithm) }
    }

    pub fn key(&self) -> CounterKey {
        self.check.key
    }

    fn add(&mut self, check: &Check, now: Micros) {
        self.check = *check;
        // What is more than the limit finds no room there.
        self.admitted.charge_up_to(&check.quota, now, check.cost);
    }

    /// What still counts of it: a window that is over owes nothing.
    fn due(&self, now: Micros) -> Check {
        let Check { algorithm, quota, .. } = self.check;
        let left = self.admitted.decide(&quota, now, 0).before.remaining;
        Check { cost: algorithm.capacity(&quota).saturating_sub(left), ..self.check }
    }
}

/// The shard that is to be paid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creditor<'a> {
    pub shard: &'a str,
    pub metrics: &'a ShardMetrics,
    pub key_prefix: &'a str,
    /// For one call.
    pub timeout: Duration,
    /// Whether each key needs a script call of its own.
    pub parts_keys: bool,
}

impl Debts {
    pub fn is_empty(&self) -> bool {
        self.owed.lock().is_empty()
    }

    /// Notes a check that was admitted here and not charged there.
    pub fn owe(&self, check: &Check) {
        self.note(Debt::new(check), Some(check));
    }

    /// Takes over what was owed before.
    pub fn restore(&self, debt: Debt) {
        self.note(debt, None);
    }

    fn note(&self, debt: Debt, more: Option<&Check>) {
        let (key, now) = (debt.check.key, clock::now_us());
        let mut owed = self.owed.lock();
        let has_room = owed.len() < MAX_KEYS;
        match owed.entry(key) {
            Entry::Occupied(entry) => {
                let due = debt.due(now);
                entry.into_mut().add(more.unwrap_or(&due), now);
            }
            Entry::Vacant(place) if has_room => {
                let debt = place.insert(debt);
                more.into_iter().for_each(|check| debt.add(check, now));
            }
            Entry::Vacant(_) => {
                let units = more.map_or_else(|| debt.due(now).cost, |check| check.cost);
                self.lost.fetch_add(units, Ordering::Relaxed);
            }
        }
    }

    /// Nobody will be paid any more: the shard is gone, or this gateway is going.
    pub fn abandon(&self, shard: &str, metrics: &ShardMetrics) {
        let now = clock::now_us();
        let due: u64 = self.owed.lock().drain().map(|(_, debt)| debt.due(now).cost).sum();
        self.lost.fetch_add(due, Ordering::Relaxed);
        self.tell_lost(shard, metrics);
    }

    /// Charges all that is owed by now, as far as the limits go. What a call that failed may have charged is not charged again; what
    /// has moved to another node goes on being owed, until the map says to whom.
    pub async fn pay(&self, link: &Link, to: &Creditor<'_>) -> Result<(), Fault> {
        let mut moved = Vec::new();
        // No more than is owed by now: while it is paid, traffic goes on to be admitted, and an end of it would never come.
        let mut batches = self.owed.lock().len().div_ceil(BATCH);
        let paid = loop {
            let debts = self.take(if batches == 0 { 0 } else { BATCH });
            if debts.is_empty() {
                break Ok(());
            }
            batches -= 1;
            let now = clock::now_us();
            let batch: Vec<Check> = debts.iter().map(|debt| debt.due(now)).filter(|due| due.cost > 0).collect();
            if batch.is_empty() {
                continue;
            }
            let debts_of = |checks: &[Check]| {
                let is_one = |debt: &&Debt| checks.iter().any(|check| check.key == debt.key());
                debts.iter().filter(is_one).cloned().collect::<Vec<_>>()
            };
            // Until the node has answered they count as lost, so that they are told of even if this is dropped midway.
            let units: u64 = batch.iter().map(|check| check.cost).sum();
            self.lost.fetch_add(units, Ordering::Relaxed);
            let mut failed = None;
            for (checks, result) in charge(link, to, &batch).await {
                let units: u64 = checks.iter().map(|check| check.cost).sum();
                let found = match result {
                    Ok(charged) => charged.min(units),
                    Err(fault) if fault.maybe_applied => {
                        failed = Some(fault);
                        0
                    }
                    Err(fault) => {
                        match fault.next {
                            Next::Moved(_) | Next::Ask(_) => moved.extend(debts_of(checks)),
                            Next::Again | Next::Nothing => {
                                debts_of(checks).into_iter().for_each(|debt| self.restore(debt));
                                failed = Some(fault);
                            }
                        }
                        units
                    }
                };
                self.lost.fetch_sub(found, Ordering::Relaxed);
            }
            if let Some(fault) = failed {
                break Err(fault);
            }
        };
        moved.into_iter().for_each(|debt| self.restore(debt));
        paid?;
        self.tell_lost(to.shard, to.metrics);
        Ok(())
    }

    fn tell_lost(&self, shard: &str, metrics: &ShardMetrics) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            metrics.uncharged.inc_by(lost);
            tracing::warn!(
                shard,
                units = lost,
                "not all that was admitted while the shard was away could be charged to it"
            );
        }
    }

    fn take(&self, most: usize) -> Vec<Debt> {
        let mut owed = self.owed.lock();
        let keys: Vec<CounterKey> = owed.keys().take(most).copied().collect();
        keys.iter().filter_map(|key| owed.remove(key)).collect()
    }

    /// What is owed on keys that have moved to another shard.
    pub fn take_if(&self, has_moved: impl Fn(CounterKey) -> bool) -> Vec<Debt> {
        self.owed.lock().extract_if(|key, _| has_moved(*key)).map(|(_, debt)| debt).collect()
    }
}

/// Says how many units found room, for the checks of each script call.
async fn charge<'c>(link: &Link, to: &Creditor<'_>, batch: &'c [Check]) -> Vec<(&'c [Check], Result<u64, Fault>)> {
    let parts: Vec<&[Check]> = batch.chunks(if to.parts_keys { 1 } else { batch.len() }).collect();
    let order = |checks: &&[Check]| {
        let mut call = Call::new(to.key_prefix);
        checks.iter().for_each(|check| call.charge_up_to(check));
        Order { call, asking: false }
    };
    let orders: Vec<Order<'_>> = parts.iter().map(order).collect();
    let results = match timeout(to.timeout, call::run(link.connection(), &orders)).await {
        Ok(results) => results,
        Err(_) => parts.iter().map(|_| Err(Fault::late())).collect(),
    };
    let charged = |rows: Vec<Told>| rows.iter().map(|told| told.charged).sum();
    parts.into_iter().zip(results).map(|(checks, result)| (checks, result.map(charged))).collect()
}
