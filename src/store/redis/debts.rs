//! What was admitted here while a shard was away, to be charged to it before it is asked again.

use super::call;
use super::connect::Link;
use super::fault::Fault;
use super::script::Call;
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

    /// Charges all that is owed, as far as the limits go. What a call that failed may have charged is not charged again.
    pub async fn pay(&self, link: &Link, to: &Creditor<'_>) -> Result<(), Fault> {
        loop {
            let batch = self.take(BATCH);
            if batch.is_empty() {
                break;
            }
            // Until the node has answered they count as lost, so that they are told of even if this is dropped midway.
            let units: u64 = batch.iter().map(|check| check.cost).sum();
            self.lost.fetch_add(units, Ordering::Relaxed);
            let paid = charge(link, to, &batch).await;
            let found = match &paid {
                Ok(charged) => (*charged).min(units),
                Err(fault) if fault.maybe_applied => 0,
                Err(_) => {
                    batch.iter().for_each(|check| self.owe(check));
                    units
                }
            };
            self.lost.fetch_sub(found, Ordering::Relaxed);
            paid?;
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(
                shard = to.shard,
                units = lost,
                "not all that was admitted while the shard was away could be charged to it"
            );
        }
        Ok(())
    }

    fn take(&self, most: usize) -> Vec<Check> {
        let mut owed = self.owed.lock();
        let keys: Vec<CounterKey> = owed.keys().take(most).copied().collect();
        keys.iter().filter_map(|key| owed.remove(key)).collect()
    }
}

/// Says how many units found room.
async fn charge(link: &Link, to: &Creditor<'_>, batch: &[Check]) -> Result<u64, Fault> {
    let mut call = Call::new(to.key_prefix);
    for check in batch {
        call.charge_up_to(check);
    }
    let rows = timeout(to.timeout, call::run(link.connection(), &call)).await.map_err(|_| Fault::late())??;
    Ok(rows.iter().map(|told| told.charged).sum())
}
