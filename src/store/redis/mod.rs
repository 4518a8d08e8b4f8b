//! Counters on Redis: independent nodes, a cluster, or a primary that sentinels watch over.
//!
//! A key lives on one shard (`topology`). All cores share each shard's breaker and health (`shard`, `breaker`); each core has
//! its own connection to each node and sends what gathers in one turn of its event loop in one write (`client`, `routes`,
//! `lane`, `batch`, `call`). Beside the checks run the heartbeat and the probes (`watch`), and what follows the topology. A
//! check ends within the timeout; what may have been applied is never sent again, and the caller is told so.

use super::{Answers, Ask, Check, CounterKey, ErrorKind, StoreError};
use crate::units::Secret;
use arc_swap::ArcSwap;
use connect::{Address, Entry};
use fault::Fault;
use parking_lot::Mutex;
use shard::Shard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::Notify;
use topology::target::Target;
use topology::{Map, cluster};

mod across;
mod batch;
mod breaker;
mod call;
mod client;
mod connect;
mod debts;
mod fault;
mod lane;
mod routes;
pub mod script;
mod shard;
mod topology;
mod watch;

pub use client::Client;
pub use connect::url_problem;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub topology: Topology,
    /// At least one. Of a cluster some of its nodes, with sentinels those; they are entered alike.
    pub nodes: Vec<Node>,
    pub timeout: Duration,
    /// Failures in a row that open a shard's breaker.
    pub failures: u32,
    /// How long an open shard is left alone before the next probe.
    pub retry_after: Duration,
    pub key_prefix: String,
}

/// How the nodes belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Not at all: each is a shard, and the names say which keys it holds.
    Sharded,
    /// They are a Redis Cluster: each primary is a shard.
    Cluster,
    /// They are sentinels: the primary of this name is the one shard.
    Sentinel { master: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub url: Secret,
}

/// What all cores share: which shard holds which key, each one's breaker and health, and how many gateways are alive.
#[derive(Debug)]
pub struct Shards {
    settings: Settings,
    gateway: String,
    /// This gateway admits nothing more.
    leaving: AtomicBool,
    /// How the configured nodes are entered.
    entries: Vec<Entry>,
    map: ArcSwap<Map>,
    /// How often another map was put in force: what a core compares on every check.
    drawn: AtomicU64,
    /// Only one at a time draws a new map.
    drawing: Mutex<()>,
    /// Told when there is a new map.
    redrawn: Notify,
    /// Told when something suggests that the map is old.
    stale: Arc<Notify>,
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
        let entries: Vec<Entry> = settings.nodes.iter().map(|node| Entry::new(&node.url)).collect();
        let leaving = AtomicBool::new(before.is_some_and(Self::is_leaving));
        let gateways = before.map_or(0, Self::gateways);
        let before = before.filter(|before| before.keeps_state_under(&settings));
        let stale = before.map_or_else(Arc::default, |before| before.stale.clone());
        let new = |name: &str, target| Arc::new(Shard::new(name, target, settings.failures, stale.clone()));
        // What nodes have told stays true where one of them is still asked.
        let told = before.filter(|before| before.settings.nodes.iter().any(|node| settings.nodes.contains(node)));
        let told = told.map(|before| (*before.map()).clone());
        let map = match &settings.topology {
            Topology::Sharded => {
                let shard = |(node, entry): (&Node, &Entry)| {
                    let nodes = before.map(|before| before.settings.nodes.iter().position(|old| old == node));
                    let kept = nodes.flatten().zip(before).map(|(at, before)| before.map().shards[at].clone());
                    kept.unwrap_or_else(|| new(&node.name, Target::fixed(entry.clone())))
                };
                Map::ring(settings.nodes.iter().zip(&entries).map(shard).collect(), &settings.key_prefix)
            }
            Topology::Cluster => {
                told.unwrap_or_else(|| Map::unseen(new(cluster::UNSEEN, Target::told()), &settings.key_prefix))
            }
            Topology::Sentinel { master } => {
                told.unwrap_or_else(|| Map::ring(vec![new(master, Target::told())], &settings.key_prefix))
            }
        };
        for shard in &map.shards {
            shard.breaker().opens_after(settings.failures);
            shard.assume_gateways(gateways);
        }
        let (map, drawn) = (ArcSwap::from_pointee(map), AtomicU64::new(0));
        Arc::new(Self {
            settings,
            gateway,
            leaving,
            entries,
            map,
            drawn,
            drawing: Mutex::new(()),
            redrawn: Notify::new(),
            stale,
        })
    }

    /// Whether a shard's state says the same under other settings.
    fn keeps_state_under(&self, next: &Settings) -> bool {
        let of = |settings: &Settings| (settings.topology.clone(), settings.key_prefix.clone());
        of(&self.settings) == of(next)
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
        self.map.load().shards.iter().map(health).collect()
    }

    /// Which shard holds a key at the moment, an index into `health`.
    #[must_use]
    pub fn shard_of(&self, key: CounterKey) -> usize {
        self.map.load().home_of(key)
    }

    /// Its name.
    #[must_use]
    pub fn home_of(&self, key: CounterKey) -> String {
        let map = self.map.load();
        map.shards[map.home_of(key)].name.clone()
    }

    /// Gateways last seen alive, this one included; at least 1. Shards that are down keep what they said last.
    #[must_use]
    pub fn gateways(&self) -> u64 {
        self.map.load().shards.iter().map(|shard| shard.gateways()).max().unwrap_or(1).max(1)
    }

    /// Counts how often the shard answered again after failures, whether they had opened its breaker or not; the limiter
    /// compares it to know when to charge what was admitted meanwhile.
    #[must_use]
    pub fn recoveries(&self, shard: usize) -> u64 {
        self.map.load().shards[shard].breaker().recoveries()
    }

    /// The shard's breaker is open: a check would fail at once.
    #[must_use]
    pub fn is_open(&self, shard: usize) -> bool {
        self.map.load().shards[shard].breaker().is_open()
    }

    /// Follows the topology, probes open shards, writes the heartbeat and reads the others', until dropped. Runs once per
    /// process, on the control thread.
    pub async fn maintain(self: Arc<Self>) {
        tokio::join!(topology::follow(&self), watch::watch(self.clone()));
    }

    /// Tells the shards that this gateway is going, so that the others divide what is `local` among those who stay; what is
    /// still owed to them will not be paid, and is told of. Ends within the timeout.
    pub async fn leave(self: &Arc<Self>) {
        self.leaving.store(true, Ordering::Relaxed);
        watch::leave(self).await;
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Notes what was admitted here while the key's shard was away; it is charged there before the shard is asked again.
    pub fn owe(&self, check: &Check) {
        let map = self.map.load();
        map.shards[map.home_of(check.key)].debts.owe(check);
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

    /// After a reload: tells of what is owed to shards that `next` does not go on with, and takes those that it does not have
    /// off the metrics page.
    pub fn retire(&self, next: Option<&Self>) {
        let next = next.map(Self::map);
        let goes_on = |shard: &Arc<Shard>| next.iter().any(|next| next.holds(shard));
        for shard in self.map().shards.iter().filter(|shard| !goes_on(shard)) {
            shard.debts.abandon(&shard.name, &shard.metrics);
        }
        let stays =
            |shard: &Arc<Shard>| next.iter().flat_map(|next| &next.shards).any(|other| other.name == shard.name);
        self.map().shards.iter().filter(|shard| !stays(shard)).for_each(|shard| shard.metrics.retire());
    }

    /// Puts another map in force, if `draw` makes one. Who leaves it hands over what is owed to it.
    fn redraw(&self, draw: impl FnOnce(&Map) -> Option<Map>) {
        let _one_at_a_time = self.drawing.lock();
        let before = self.map();
        let Some(after) = draw(&before).filter(|after| *after != *before) else { return };
        self.map.store(Arc::new(after));
        self.drawn.fetch_add(1, Ordering::Release);
        let after = self.map();
        for shard in before.shards.iter().filter(|shard| !after.holds(shard)) {
            shard.target.tell_unknown(Fault::passing(ErrorKind::Other, "the cluster has just been seen"));
            shard.metrics.retire();
            tracing::info!(shard = shard.name, "store shard has left");
        }
        for shard in after.shards.iter().filter(|shard| !before.holds(shard)) {
            tracing::info!(shard = shard.name, "store shard has joined");
        }
        for shard in &before.shards {
            for debt in shard.debts.take_if(|key| !Arc::ptr_eq(&after.shards[after.home_of(key)], shard)) {
                let home = &after.shards[after.home_of(debt.key())];
                home.debts.restore(debt);
                home.changed.notify_one();
            }
        }
        self.redrawn.notify_one();
    }

    fn new_shard(&self, name: &str, target: Target) -> Shard {
        Shard::new(name, target, self.settings.failures, self.stale.clone())
    }

    /// Nodes that others name are entered as the configured ones are.
    fn entry_to(&self, address: &Address) -> Entry {
        let configured = self.entries.iter().find(|entry| entry.address().as_ref() == Some(address));
        configured.map_or_else(|| self.entries[0].at(address), Clone::clone)
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn stale(&self) -> &Notify {
        &self.stale
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }
}
