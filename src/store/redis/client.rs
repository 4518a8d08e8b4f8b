//! One core's way to the counters.

use super::across::Across;
use super::batch::{Job, Reply};
use super::lane::Outcome;
use super::routes::Routes;
use super::script;
use super::{Answers, Ask, Check, CounterKey, ErrorKind, Shards, StoreError};
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::clock::Micros;
use smallvec::SmallVec;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// One core's connections to the shards.
pub struct Client {
    shards: Arc<Shards>,
    routes: Rc<Routes>,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects lazily; call it inside the core's runtime.
    #[must_use]
    pub fn new(shards: Arc<Shards>) -> Rc<Self> {
        let routes = Routes::new(shards.clone());
        Rc::new(Self { shards, routes })
    }

    /// One call per shard, all at the same time; each shard's group is all or nothing. Ends within the timeout.
    pub async fn decide(&self, checks: &[Check]) -> Answers {
        let asks: SmallVec<[Ask; 4]> = checks.iter().map(|check| Ask::from(*check)).collect();
        self.ask(&asks).await
    }

    /// The same with leases. What comes back with a check is taken even where its group is refused.
    pub async fn ask(&self, asks: &[Ask]) -> Answers {
        let lanes = self.routes.lanes();
        let homes: SmallVec<[usize; 4]> = asks.iter().map(|ask| lanes.map.home_of(ask.check.key)).collect();
        let Some(first) = homes.first() else { return Answers::new() };
        if homes.iter().all(|home| home == first) && (asks.len() == 1 || !lanes.map.parts_keys) {
            let asked = lanes.list[*first].ask(Job::Decide(asks.into()));
            return spread(answer(asked, *first).await, asks.len());
        }
        // In a box: what waits for several shards is large, and its room would be part of every idle connection.
        Box::pin(Across::ask(&lanes, asks, &homes).answers()).await
    }

    /// Which shard holds a key at the moment, as `Shards::shard_of`.
    #[must_use]
    pub fn shard_of(&self, key: CounterKey) -> usize {
        self.routes.lanes().map.home_of(key)
    }

    /// Gives back what was charged at `charged_at` (the shard's clock).
    pub async fn give_back(&self, check: &Check, charged_at: Micros) -> Result<(), StoreError> {
        self.job(check.key, Job::GiveBack { check: *check, charged_at }).await.map(|_| ())
    }

    /// Charges as much of the check's cost as fits.
    pub async fn charge_up_to(&self, check: &Check) -> Result<u64, StoreError> {
        match self.job(check.key, Job::ChargeUpTo(*check)).await? {
            Reply::Charged(units) => Ok(units),
            _ => Err(self.confused(check.key)),
        }
    }

    /// Looks at one counter without charging it.
    pub async fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Result<Decision, StoreError> {
        let check = Check { key, algorithm, quota: *quota, cost: 1, enforced: true };
        match self.job(key, Job::Inspect(check)).await? {
            Reply::Inspected(decision) => Ok(decision),
            _ => Err(self.confused(key)),
        }
    }

    /// Forgets one counter; says whether it was there.
    pub async fn reset(&self, key: CounterKey) -> Result<bool, StoreError> {
        let mut command = redis::cmd("DEL");
        command.arg(script::key_text(&self.shards.settings().key_prefix, key));
        let deleted: u64 = self.routes.command(key, &command).await?;
        Ok(deleted > 0)
    }

    async fn job(&self, key: CounterKey, job: Job) -> Outcome {
        let lanes = self.routes.lanes();
        let shard = lanes.map.home_of(key);
        answer(lanes.list[shard].ask(job), shard).await
    }

    /// A reply to another question than was asked: `batch` does not let it happen.
    fn confused(&self, key: CounterKey) -> StoreError {
        StoreError { kind: ErrorKind::Other, shard: self.shards.shard_of(key), maybe_applied: true }
    }
}

/// The lane answers every job; only a runtime that is shutting down drops one.
async fn answer(asked: oneshot::Receiver<Outcome>, shard: usize) -> Outcome {
    asked.await.unwrap_or(Err(StoreError { kind: ErrorKind::Other, shard, maybe_applied: true }))
}

fn spread(outcome: Outcome, count: usize) -> Answers {
    match outcome {
        Ok(Reply::Decided(answers)) => answers.into_iter().map(Ok).collect(),
        Ok(_) => SmallVec::new(),
        Err(error) => SmallVec::from_elem(Err(error), count),
    }
}
