//! A Redis Cluster: learns who holds which slots, now and then and whenever a node or a failure says that this has changed.
//!
//! Each primary is a shard, named by the address that the cluster gives it. Until the cluster has answered for the first time
//! one nameless shard stands for all of it.

use super::ask::ask_all;
use super::slots::{Slots, View};
use super::target::Target;
use super::{Map, holds, most_agreed};
use crate::clock;
use crate::store::redis::Shards;
use crate::store::redis::connect::{Address, Entry};
use crate::store::redis::fault::Fault;
use crate::store::redis::shard::Shard;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// What the shard is called that stands for a cluster of which nothing is known yet.
pub const UNSEEN: &str = "cluster";

/// Nothing need go wrong for a map to be old: slots may have moved that nobody asked for.
const EVERY: Duration = Duration::from_secs(15);
/// Between two looks at least: while slots move, every one of them says that the map is old.
const PAUSE: Duration = Duration::from_millis(50);
/// Nodes asked at once: enough for one that is cut off to be outvoted, few enough for a cluster of a hundred.
const ASKED_MAX: usize = 7;
/// How long a node without slots is kept that another has sent calls to: it is about to take over its first.
const GUEST_FOR: Duration = Duration::from_secs(60);

pub async fn follow(shards: &Shards) {
    loop {
        match look(shards).await {
            Ok(view) => draw(shards, &view),
            Err(fault) => shards.map().shards.iter().for_each(|shard| shard.target.tell_unknown(fault.clone())),
        }
        sleep(PAUSE).await;
        let is_whole = shards.map().shards.iter().all(|shard| shard.breaker().is_up());
        let calm = if is_whole { EVERY } else { shards.retry_after() };
        let _ = timeout(calm, shards.stale().notified()).await;
    }
}

/// What most nodes say: some of those that hold slots, and some that are configured.
async fn look(shards: &Shards) -> Result<View, Fault> {
    let mut entries: Vec<Entry> = shards.entries().to_vec();
    let configured: Vec<_> = entries.iter().map(Entry::address).collect();
    let primaries = shards.map().shards.iter().filter_map(|shard| shard.target.address()).collect::<Vec<_>>();
    let others = primaries.iter().filter(|address| !configured.contains(&Some((*address).clone())));
    entries.extend(others.map(|address| shards.entry_to(address)));
    fastrand::shuffle(&mut entries);
    entries.truncate(ASKED_MAX);
    let answers = ask_all(&entries, redis::cmd("CLUSTER").arg("SLOTS"), shards.timeout()).await;
    let view = |(answer, entry): (Result<redis::Value, Fault>, &Entry)| {
        let host = entry.address().map(|address| address.host);
        View::read(&answer?, &host.unwrap_or_default())
    };
    most_agreed(answers.into_iter().zip(&entries).map(view).collect())
}

fn draw(shards: &Shards, view: &View) {
    shards.redraw(|before| {
        let mut list: Vec<Arc<Shard>> =
            view.primaries().into_iter().map(|address| shard_at(shards, before, address)).collect();
        let is_guest = |shard: &&Arc<Shard>| shard.adopted_at.is_some_and(|at| at.elapsed() < GUEST_FOR);
        let guests: Vec<_> =
            before.shards.iter().filter(is_guest).filter(|guest| !holds(&list, guest)).cloned().collect();
        list.extend(guests);
        let at = |address: &Address| list.iter().position(|shard| shard.target.address().as_ref() == Some(address));
        let slots = Slots::new(&shards.settings().key_prefix, view, |address| at(address).unwrap_or_default());
        Some(Map::slots(slots, list))
    });
}

fn shard_at(shards: &Shards, map: &Map, address: &Address) -> Arc<Shard> {
    let known = map.shards.iter().find(|shard| shard.target.address().as_ref() == Some(address));
    let new = || Arc::new(shards.new_shard(&address.to_string(), Target::fixed(shards.entry_to(address))));
    known.cloned().unwrap_or_else(new)
}

/// The shard at an address that a node has named, which may be no part of the map yet.
pub fn adopt(shards: &Shards, address: &Address) {
    shards.redraw(|before| {
        if before.shards.iter().any(|shard| shard.target.address().as_ref() == Some(address)) {
            return None;
        }
        let mut new = shards.new_shard(&address.to_string(), Target::fixed(shards.entry_to(address)));
        new.adopted_at = Some(clock::now());
        Some(before.with(Arc::new(new)))
    });
}
