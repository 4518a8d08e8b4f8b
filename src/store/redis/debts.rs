//! What was admitted here while a shard was away, to be charged to it before it is asked again.

use super::call::{self, Order};
use super::connect::Link;
use super::fault::{Fault, Next};
use super::script::{Call, Told};
use crate::store::{Check, CounterKey};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Keys noted at most, for one shard: beyond them the shard would be asked for longer than it was away.
const MAX_KEYS: usize = 100_000;
/// Keys charged in one call.
const BATCH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Debts {
    /// The check, its cost being all that is owed.
    owed: Mutex<HashMap<CounterKey, Check>>,
    /// Units that found no room, or whose charging may have failed.
    lost: AtomicU64,
}

/// The shard that is to be paid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creditor<'a> {
    pub shard: &'a str,
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
        let mut owed = self.owed.lock();
        if owed.len() >= MAX_KEYS && !owed.contains_key(&check.key) {
            self.lost.fetch_add(check.cost, Ordering::Relaxed);
            return;
        }
        let debt = owed.entry(check.key).or_insert(Check { cost: 0, ..*check });
        let cost = debt.cost.saturating_add(check.cost).min(check.algorithm.capacity(&check.quota));
        *debt = Check { cost, ..*check };
    }

    /// Charges all that is owed by now, as far as the limits go. What a call that failed may have charged is not charged again; what
    /// has moved to another node goes on being owed, until the map says to whom.
    pub async fn pay(&self, link: &Link, to: &Creditor<'_>) -> Result<(), Fault> {
        let mut moved = Vec::new();
        // No more than is owed by now: while it is paid, traffic goes on to be admitted, and an end of it would never come.
        let mut batches = self.owed.lock().len().div_ceil(BATCH);
        let paid = loop {
            let batch = self.take(if batches == 0 { 0 } else { BATCH });
            if batch.is_empty() {
                break Ok(());
            }
            batches -= 1;
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
                            Next::Moved(_) | Next::Ask(_) => moved.extend_from_slice(checks),
                            Next::Again | Next::Nothing => {
                                checks.iter().for_each(|check| self.owe(check));
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
        moved.iter().for_each(|check| self.owe(check));
        paid?;
        self.tell_lost(to);
        Ok(())
    }

    fn tell_lost(&self, to: &Creditor<'_>) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(
                shard = to.shard,
                units = lost,
                "not all that was admitted while the shard was away could be charged to it"
            );
        }
    }

    fn take(&self, most: usize) -> Vec<Check> {
        let mut owed = self.owed.lock();
        let keys: Vec<CounterKey> = owed.keys().take(most).copied().collect();
        keys.iter().filter_map(|key| owed.remove(key)).collect()
    }

    /// What is owed on keys that have moved to another shard.
    pub fn take_if(&self, has_moved: impl Fn(CounterKey) -> bool) -> Vec<Check> {
        self.owed.lock().extract_if(|key, _| has_moved(*key)).map(|(_, check)| check).collect()
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
