//! What becomes of units that nobody spent: they go back when their lease ends, with the next question or on their own; all of
//! them before a reload, and when the process drains. What cannot be given back is counted.

use super::asking::Cache;
use super::{Due, Hot, Landfall};
use crate::clock;
use crate::store::{Check, Returned, Store};
use crate::telemetry::metrics;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

impl Cache {
    /// What an answer leaves to be done.
    pub(super) fn follow_up(&self, check: &Check, landfall: &Landfall) {
        metrics::lease_units_lost(landfall.lost);
        if landfall.needs_timer {
            spawn_local(self.clone().look_after(*check));
        }
        if landfall.surplus.units > 0 {
            self.bring_back(check, landfall.surplus);
        }
    }

    /// Gives units back off the request's path.
    pub(super) fn return_later(&self, check: &Check, back: Returned) {
        self.hot.departs();
        self.bring_back(check, back);
    }

    fn bring_back(&self, check: &Check, back: Returned) {
        let (cache, check) = (self.clone(), Check { cost: back.units, ..*check });
        spawn_local(async move {
            if cache.store.give_back(&check, back.charged_at).await.is_err() {
                metrics::lease_units_lost(check.cost);
            }
            cache.hot.freed(check.key, clock::now_us());
            cache.hot.arrived();
        });
    }

    /// Gives back what is left of a key's lease when it has ended, unless a question took it along.
    async fn look_after(self, check: Check) {
        loop {
            let now = clock::now_us();
            match self.hot.due(check.key, now) {
                Due::Nothing => return,
                Due::InFlight => sleep(Duration::from_micros(self.hot.ttl_us())).await,
                Due::At(at) => sleep(Duration::from_micros(at.saturating_sub(now))).await,
                Due::Now(held) => {
                    let back = held.returned();
                    let result = self.store.give_back(&Check { cost: back.units, ..check }, back.charged_at).await;
                    let landfall = self.hot.given_back(check.key, held, result, clock::now_us());
                    metrics::lease_units_lost(landfall.lost);
                    if !landfall.needs_timer {
                        return;
                    }
                }
            }
        }
    }
}

/// Gives back all that a cache holds, and closes it: before a reload takes effect, and when the process drains. Ends within
/// about two of the store's timeouts.
pub async fn release(hot: &Hot, store: &Rc<Store>) {
    let held = hot.close();
    for some in held.chunks(RELEASED_AT_ONCE) {
        let give_back = |(check, back): &(Check, Returned)| {
            let (store, check, charged_at) = (store.clone(), *check, back.charged_at);
            spawn_local(async move { (check.cost, store.give_back(&check, charged_at).await) })
        };
        let tasks: Vec<_> = some.iter().map(give_back).collect();
        for task in tasks {
            if let Ok((units, Err(_))) = task.await {
                metrics::lease_units_lost(units);
            }
        }
    }
    let landed = async {
        while hot.is_flying() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(store.timeout(), landed).await;
}

/// Below what a shard's queue holds.
const RELEASED_AT_ONCE: usize = 4096;
