//! Questions on their way to the store. Those of one shard travel together and land together; a slow shard's keys hold up
//! nobody who waits for another's.

use super::asking::Cache;
use super::attempt::Leaving;
use super::{Hot, Landfall};
use crate::clock;
use crate::store::{Answer, Ask, Check, ErrorKind, Returned, StoreError};
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

/// What leaves together, and what came of it.
pub(super) type Flight = SmallVec<[(Check, Leaving); 4]>;
pub(super) type Flown = SmallVec<[(Result<Answer, StoreError>, Landfall); 4]>;

impl Cache {
    /// Asks the store. What carries units travels in a task of its own, for a client that leaves midway must not take them
    /// along; so do several shards' questions, each on its own.
    pub(super) async fn fly(&self, flight: Flight) -> Flown {
        let homes: SmallVec<[usize; 4]> = flight.iter().map(|(check, _)| self.store.shard_of(check.key)).collect();
        let Some(first) = homes.first() else { return Flown::new() };
        if homes.iter().all(|home| home == first) && !flight.iter().any(|(_, leaving)| leaving.carries()) {
            return self.clone().fly_now(flight).await;
        }
        let mut groups: SmallVec<[(usize, oneshot::Receiver<Granted>); 4]> = SmallVec::new();
        for (at, home) in homes.iter().enumerate() {
            if !homes[..at].contains(home) {
                let group = flight.iter().zip(&homes).filter(|(_, other)| *other == home).map(|(member, _)| *member);
                groups.push((*home, self.send(group.collect())));
            }
        }
        let mut granted: SmallVec<[(usize, Granted); 4]> = SmallVec::new();
        for (home, receiver) in groups {
            granted.extend(receiver.await.ok().map(|group| (home, group)));
        }
        let mut landed: SmallVec<[(usize, Flown); 4]> =
            granted.into_iter().map(|(home, group)| (home, group.take())).collect();
        let mut next = |home: usize| {
            let group = landed.iter_mut().find(|(other, _)| *other == home).map(|(_, group)| group);
            group.filter(|group| !group.is_empty()).map_or_else(|| vanished(home), |group| group.remove(0))
        };
        homes.iter().map(|home| next(*home)).collect()
    }

    fn send(&self, flight: Flight) -> oneshot::Receiver<Granted> {
        let (sender, receiver) = oneshot::channel();
        let cache = self.clone();
        spawn_local(async move {
            let flown = cache.clone().fly_now(flight.clone()).await;
            drop(sender.send(Granted { cache, flight, flown }));
        });
        receiver
    }

    async fn fly_now(self, flight: Flight) -> Flown {
        let asks: SmallVec<[Ask; 4]> = flight.iter().map(|(check, leaving)| leaving.ask(check)).collect();
        let mut aloft = Aloft { hot: self.hot.clone(), flight };
        let answers = self.store.ask(&asks).await;
        let (flight, now) = (std::mem::take(&mut aloft.flight), clock::now_us());
        let land = |((check, leaving), mut result): ((Check, Leaving), Result<Answer, StoreError>)| {
            let landfall = self.hot.land(&check, &leaving, &result, now);
            if let Ok(answer) = &mut result {
                answer.decision.before.remaining += landfall.held;
                answer.decision.after.remaining += landfall.held;
            }
            self.follow_up(&check, &landfall);
            (result, landfall)
        };
        flight.into_iter().zip(answers).map(land).collect()
    }
}

/// What the store said, until whoever asked takes it. If they have gone, nobody will be served for what was charged.
struct Granted {
    cache: Cache,
    flight: Flight,
    flown: Flown,
}

impl Granted {
    fn take(mut self) -> Flown {
        std::mem::take(&mut self.flown)
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        for ((check, _), (result, _)) in self.flight.iter().zip(&self.flown) {
            if let Ok(answer) = result
                && answer.charged
                && tokio::runtime::Handle::try_current().is_ok()
            {
                self.cache.return_later(check, Returned { units: check.cost, charged_at: answer.at_us });
            }
        }
    }
}

/// Only a runtime that is shutting down drops a task.
fn vanished(shard: usize) -> (Result<Answer, StoreError>, Landfall) {
    (Err(StoreError { kind: ErrorKind::Other, shard, maybe_applied: true }), Landfall::default())
}

/// Questions on their way; if they are dropped, those who wait for them are told.
struct Aloft {
    hot: Arc<Hot>,
    flight: Flight,
}

impl Drop for Aloft {
    fn drop(&mut self) {
        for (check, leaving) in self.flight.iter().filter(|(_, leaving)| leaving.is_awaited) {
            self.hot.abandon(check.key, leaving);
        }
    }
}
