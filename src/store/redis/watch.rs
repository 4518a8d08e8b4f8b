//! What runs beside the checks: the first contact, the heartbeat, and the probes of open shards.
//!
//! Each shard is watched by a task of its own with a connection of its own, so that a stuck node delays no other. A
//! heartbeat is a probe as well: it writes, so a node that answers but cannot be written to (a demoted primary, a full
//! memory) stays open.

use super::connect::Link;
use super::debts::Creditor;
use super::fault::{Fault, Next};
use super::script;
use super::shard::Shard;
use super::{Settings, Shards};
use crate::clock;
use crate::store::ErrorKind;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
pub(super) const ALIVE_MS: u64 = 15_000;

/// `KEYS[1]`: a sorted set of gateways by when each was last seen, in the node's milliseconds. `ARGV[1]`: this gateway;
/// `ARGV[2]`: ms for which one counts as alive. Replies with how many are alive, and the node's clock in whole seconds and
/// microseconds. The set expires with its last gateway; one seen in the future was seen by a clock that has stepped back.
/// `ARGV[3]`: 1 for a gateway that is leaving, which is taken out and counts for itself alone. The last of the reply is 1 if
/// the node did not know this gateway.
const HEARTBEAT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local leaving, new = tonumber(ARGV[3]), 0
if leaving == 1 then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  new = redis.call('ZADD', KEYS[1], string.format('%d', now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now - ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('%d', now + ARGV[2]), '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCARD', KEYS[1]) + leaving, time[1], time[2], new}
";

/// Watches every shard of the map in force; ends only when dropped.
pub(super) async fn watch(shards: Arc<Shards>) {
    let mut tasks = JoinSet::new();
    let mut watched: Vec<(Arc<Shard>, AbortHandle)> = Vec::new();
    loop {
        let map = shards.map();
        watched.retain(|(shard, task)| {
            let stays = map.holds(shard);
            if !stays {
                task.abort();
            }
            stays
        });
        for shard in &map.shards {
            if !watched.iter().any(|(other, _)| Arc::ptr_eq(other, shard)) {
                watched.push((shard.clone(), tasks.spawn(watch_one(shards.clone(), shard.clone()))));
            }
        }
        while tasks.try_join_next().is_some() {}
        shards.redrawn.notified().await;
    }
}

/// The last heartbeat to each shard, over connections of their own: later ones of `watch`, if it goes on, say the same. What
/// does not get it learns in `ALIVE_MS` at the latest.
pub(super) async fn leave(shards: &Arc<Shards>) {
    let mut tasks = JoinSet::new();
    for shard in shards.map().shards.iter().filter(|shard| shard.breaker().is_up()) {
        let (shards, shard) = (shards.clone(), shard.clone());
        tasks.spawn(async move { timeout(shards.settings().timeout, trip(&shards, &shard, &mut None)).await });
    }
    while tasks.join_next().await.is_some() {}
    shards.map().shards.iter().for_each(|shard| shard.debts.abandon(&shard.name, &shard.metrics));
}

/// A connection, and the shard's era in which it was made.
type Known = (Link, u64);

async fn watch_one(shards: Arc<Shards>, shard: Arc<Shard>) {
    let mut link = None;
    loop {
        let answered = contact(&shards, &shard, &mut link).await;
        if answered && shard.breaker().is_up() {
            // The next heartbeat, or a change, whichever comes first.
            let _ = timeout(HEARTBEAT_EVERY, shard.changed.notified()).await;
        }
        if !(answered && shard.breaker().is_up()) {
            link = None;
            sleep(shards.settings().retry_after).await;
        }
    }
}

/// One heartbeat: at the start the first contact, while the shard is open its probe. Says whether it was answered.
async fn contact(shards: &Shards, shard: &Shard, link: &mut Option<Known>) -> bool {
    let missed_the_last = link.is_none();
    let result = timeout(shards.settings().timeout, trip(shards, shard, link)).await;
    let mut result = result.unwrap_or_else(|_| Err(Fault::before(ErrorKind::Timeout, "no answer within the timeout")));
    let breaker = shard.breaker();
    if result.is_ok() {
        result = pay(shards, shard, link.as_ref()).await;
    }
    match result {
        Ok(()) => {
            if !breaker.is_up() {
                shard.probed();
            } else if missed_the_last {
                shard.answered();
            }
            // Else it does not end a row of failed checks: it says nothing about the connections those use.
            true
        }
        // A failed one counts as a failed check does, so that a node's end is told of though nobody asks it anything.
        Err(fault) => {
            *link = None;
            if breaker.is_open() {
                shard.still_open(&fault)
            } else {
                shard.failed(&fault)
            }
            false
        }
    }
}

/// Charges what was admitted while the shard was away, before it is asked again: nobody uses the same units twice.
async fn pay(shards: &Shards, shard: &Shard, link: Option<&Known>) -> Result<(), Fault> {
    let Some((link, _)) = link else { return Ok(()) };
    let Settings { key_prefix, timeout, .. } = shards.settings();
    let creditor = Creditor {
        shard: &shard.name,
        metrics: &shard.metrics,
        key_prefix,
        timeout: *timeout,
        parts_keys: shards.map().parts_keys,
    };
    shard.debts.pay(link, &creditor).await
}

async fn trip(shards: &Shards, shard: &Shard, link: &mut Option<Known>) -> Result<(), Fault> {
    let era = shard.era();
    let (link, _) = match link.take().filter(|(link, made_at)| !link.ended() && *made_at == era) {
        Some(live) => link.insert(live),
        None => link.insert((first(shard).await?, era)),
    };
    let map = shards.map();
    let Some(key) = map.heartbeat_key(shard) else {
        return link.query::<Value>(&redis::cmd("PING")).await.map(drop);
    };
    let mut command = redis::cmd("EVAL");
    command.arg(HEARTBEAT).arg(1).arg(key).arg(shards.gateway()).arg(ALIVE_MS).arg(u8::from(shards.is_leaving()));
    let sent_us = clock::wall_us();
    let (alive, seconds, micros, is_new): (u64, u64, u64, bool) = match link.query(&command).await {
        // It answers; the map is old, or the slot is on its way to another node.
        Err(fault) if matches!(fault.next, Next::Moved(_) | Next::Ask(_)) && map.parts_keys => {
            shards.stale().notify_one();
            return Ok(());
        }
        other => other?,
    };
    let ours_us = sent_us.midpoint(clock::wall_us());
    let theirs_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
    shard.heard(alive, is_new, theirs_us.cast_signed().wrapping_sub(ours_us.cast_signed()));
    Ok(())
}

/// Connects, and loads the script so that the first check need not.
async fn first(shard: &Shard) -> Result<Link, Fault> {
    let link = shard.target.connect().await?;
    link.query::<Value>(redis::cmd("SCRIPT").arg("LOAD").arg(script::source())).await?;
    Ok(link)
}
