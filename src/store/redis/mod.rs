//! Counters on sharded Redis nodes.
//!
//! A key lives on one node (`ring`). All cores share each shard's breaker and health (`shard`, `breaker`); each core has its
//! own connection to each node and sends what gathers in one turn of its event loop in one call (`lane`, `batch`, `call`).
//! Beside the checks run the heartbeat and the probes (`watch`). A check ends within the timeout; what may have been applied
//! is never sent again, and the caller is told so.

use super::{Answers, Ask, Check, CounterKey, ErrorKind, StoreError};
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::clock::Micros;
use crate::units::Secret;
use across::Across;
use batch::{Job, Reply};
use lane::{Lane, Outcome};
use ring::Ring;
use shard::Shard;
use smallvec::SmallVec;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::oneshot;

mod across;
mod batch;
mod breaker;
mod call;
mod connect;
mod debts;
mod fault;
mod lane;
mod ring;
pub mod script;
mod shard;
mod watch;

pub use connect::url_problem;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub nodes: Vec<Node>,
    pub timeout: Duration,
    /// Failures in a row that open a shard's breaker.
    pub failures: u32,
    /// How long an open shard is left alone before the next probe.
    pub retry_after: Duration,
    pub key_prefix: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub url: Secret,
}

/// What all cores share: each shard's breaker and health, and how many gateways are alive.
#[derive(Debug)]
pub struct Shards {
    settings: Settings,
    gateway: String,
    ring: Ring,
    list: Vec<Arc<Shard>>,
    /// This gateway admits nothing more.
    leaving: AtomicBool,
}

/// A shard's state as `/status` and `/readyz` tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHealth {
    pub name: String,
    /// It answers. Before the first contact it is neither up nor degraded.
    pub up: bool,
    /// Its breaker is open: its keys are decided by `on_failure`.
    pub degraded: bool,
    /// The last error's kind and text, without secrets.
    pub last_error: Option<String>,
    /// How far its clock is ahead of this process's; `None` before the first heartbeat.
    pub clock_skew_us: Option<i64>,
}

/// This process among the gateways; the same after a reload.
static GATEWAY: LazyLock<String> = LazyLock::new(|| format!("{:032x}", fastrand::u128(..)));

impl Shards {
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        Self::of_gateway(settings, GATEWAY.clone(), None)
    }

    /// After a reload: nodes that stayed the same keep their breaker, their health and what is owed to them.
    #[must_use]
    pub fn reloaded(settings: Settings, before: &Self) -> Arc<Self> {
        Self::of_gateway(settings, before.gateway.clone(), Some(before))
    }

    /// As the gateway of the given name, unique among all that share the nodes.
    #[must_use]
    pub fn of_gateway(settings: Settings, gateway: String, before: Option<&Self>) -> Arc<Self> {
        let ring = Ring::new(settings.nodes.iter().map(|node| node.name.as_str()));
        let shard = |node| {
            let kept = before.filter(|before| {
                (before.settings.failures, &before.settings.key_prefix) == (settings.failures, &settings.key_prefix)
            });
            let kept =
                kept.and_then(|before| before.list.iter().zip(&before.settings.nodes).find(|(_, old)| *old == node));
            kept.map_or_else(|| Arc::new(Shard::new(node, settings.failures)), |(shard, _)| shard.clone())
        };
        let list = settings.nodes.iter().map(shard).collect();
        let leaving = AtomicBool::new(before.is_some_and(Self::is_leaving));
        Arc::new(Self { settings, gateway, ring, list, leaving })
    }

    #[must_use]
    pub fn health(&self) -> Vec<ShardHealth> {
        let health = |shard: &Arc<Shard>| ShardHealth {
            name: shard.name.clone(),
            up: shard.breaker().is_up(),
            degraded: shard.breaker().is_open(),
            last_error: shard.last_error(),
            clock_skew_us: shard.clock_skew_us(),
        };
        self.list.iter().map(health).collect()
    }

    /// Which shard holds a key: the highest hash of (node name, key).
    #[must_use]
    pub fn shard_of(&self, key: CounterKey) -> usize {
        self.ring.shard_of(key)
    }

    #[must_use]
    pub fn name_of(&self, shard: usize) -> &str {
        &self.list[shard].name
    }

    /// Gateways last seen alive, this one included; at least 1. Shards that are down keep what they said last.
    #[must_use]
    pub fn gateways(&self) -> u64 {
        self.list.iter().map(|shard| shard.gateways()).max().unwrap_or(1).max(1)
    }

    /// Counts how often the shard answered again after failures, whether they had opened its breaker or not; the limiter
    /// compares it to know when to charge what was admitted meanwhile.
    #[must_use]
    pub fn recoveries(&self, shard: usize) -> u64 {
        self.list[shard].breaker().recoveries()
    }

    /// The shard's breaker is open: a check would fail at once.
    #[must_use]
    pub fn is_open(&self, shard: usize) -> bool {
        self.list[shard].breaker().is_open()
    }

    /// Probes open shards, writes the heartbeat and reads the others', until dropped. Runs once per process, on the control thread.
    pub async fn maintain(self: Arc<Self>) {
        watch::watch(self).await;
    }

    /// Tells the shards that this gateway is going, so that the others divide what is `local` among those who stay. Ends
    /// within the timeout.
    pub async fn leave(self: &Arc<Self>) {
        self.leaving.store(true, Ordering::Relaxed);
        watch::leave(self).await;
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Notes what was admitted here while the shard was away; it is charged there before the shard is asked again.
    pub fn owe(&self, shard: usize, check: &Check) {
        self.list[shard].debts.owe(check);
    }

    /// How long a check may take in all.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// When a shard that is away is asked again, at the latest.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.settings.retry_after
    }

    /// Takes the shards that `next` does not have off the metrics page, after a reload.
    pub fn retire(&self, next: Option<&Self>) {
        let stays =
            |shard: &Arc<Shard>| next.is_some_and(|next| next.list.iter().any(|other| other.name == shard.name));
        self.list.iter().filter(|shard| !stays(shard)).for_each(|shard| shard.metrics.retire());
    }

    fn all(&self) -> &[Arc<Shard>] {
        &self.list
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn heartbeat_key(&self) -> String {
        format!("{}:gateways", self.settings.key_prefix)
    }
}

/// One core's connections to the shards.
pub struct Client {
    shards: Arc<Shards>,
    lanes: Vec<Rc<Lane>>,
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
        let prefix: Arc<str> = shards.settings.key_prefix.as_str().into();
        let lane = |(index, shard): (usize, &Arc<Shard>)| {
            Lane::new(index, shard.clone(), shards.settings.timeout, prefix.clone())
        };
        let lanes = shards.list.iter().enumerate().map(lane).collect();
        Rc::new(Self { shards, lanes })
    }

    /// One call per shard, all at the same time; each shard's group is all or nothing. Ends within the timeout.
    pub async fn decide(&self, checks: &[Check]) -> Answers {
        let asks: SmallVec<[Ask; 4]> = checks.iter().map(|check| Ask::from(*check)).collect();
        self.ask(&asks).await
    }

    /// The same with leases. What comes back with a check is taken even where its group is refused.
    pub async fn ask(&self, asks: &[Ask]) -> Answers {
        let homes: SmallVec<[usize; 4]> = asks.iter().map(|ask| self.shards.shard_of(ask.check.key)).collect();
        let Some(first) = homes.first() else { return Answers::new() };
        if homes.iter().all(|home| home == first) {
            let asked = self.lanes[*first].ask(Job::Decide(asks.into()));
            return spread(answer(asked, *first).await, asks.len());
        }
        // In a box: what waits for several shards is large, and its room would be part of every idle connection.
        Box::pin(Across::ask(&self.lanes, asks, &homes).answers(&homes)).await
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
        command.arg(script::key_text(&self.shards.settings.key_prefix, key));
        let deleted: u64 = self.lanes[self.shards.shard_of(key)].command(&command).await?;
        Ok(deleted > 0)
    }

    async fn job(&self, key: CounterKey, job: Job) -> Outcome {
        let shard = self.shards.shard_of(key);
        answer(self.lanes[shard].ask(job), shard).await
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
