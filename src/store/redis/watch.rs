//! What runs beside the checks: the first contact, the heartbeat, and the probes of open shards.
//!
//! Each shard is watched by a task of its own with a connection of its own, so that a stuck node delays no other. A
//! heartbeat is a probe as well: it writes, so a node that answers but cannot be written to (a demoted primary, a full
//! memory) stays open.

use super::Shards;
use super::connect::Link;
use super::debts::Creditor;
use super::fault::Fault;
use super::script;
use super::shard::Shard;
use crate::clock;
use crate::store::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
const ALIVE_MS: u64 = 15_000;

/// `KEYS[1]`: a sorted set of gateways by when each was last seen, in the node's milliseconds. `ARGV[1]`: this gateway;
/// `ARGV[2]`: ms for which one counts as alive. Replies with how many are alive, and the node's clock in whole seconds and
/// microseconds. The set expires with its last gateway; one seen in the future was seen by a clock that has stepped back.
/// `ARGV[3]`: 1 for a gateway that is leaving, which is taken out and counts for itself alone.
const HEARTBEAT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local leaving = tonumber(ARGV[3])
if leaving == 1 then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%d', now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now - ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('%d', now + ARGV[2]), '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCARD', KEYS[1]) + leaving, time[1], time[2]}
";

/// Watches every shard; ends only when dropped.
pub(super) async fn watch(shards: Arc<Shards>) {
    let mut tasks = JoinSet::new();
    for shard in shards.all() {
        tasks.spawn(watch_one(shards.clone(), shard.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

/// The last heartbeat to each shard, over connections of their own: later ones of `watch`, if it goes on, say the same. What
/// does not get it learns in `ALIVE_MS` at the latest.
pub(super) async fn leave(shards: &Arc<Shards>) {
    let mut tasks = JoinSet::new();
    for shard in shards.all().iter().filter(|shard| shard.breaker().is_up()) {
        let (shards, shard) = (shards.clone(), shard.clone());
        tasks.spawn(async move { timeout(shards.settings().timeout, trip(&shards, &shard, &mut None)).await });
    }
    while tasks.join_next().await.is_some() {}
}

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
async fn contact(shards: &Shards, shard: &Shard, link: &mut Option<Link>) -> bool {
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
async fn pay(shards: &Shards, shard: &Shard, link: Option<&Link>) -> Result<(), Fault> {
    let Some(link) = link else { return Ok(()) };
    let settings = shards.settings();
    let creditor = Creditor { shard: &shard.name, key_prefix: &settings.key_prefix, timeout: settings.timeout };
    shard.debts.pay(link, &creditor).await
}

async fn trip(shards: &Shards, shard: &Shard, link: &mut Option<Link>) -> Result<(), Fault> {
    let connection = match link.take().filter(|link| !link.ended()) {
        Some(live) => link.insert(live).connection(),
        None => link.insert(first(shard).await?).connection(),
    };
    let mut command = redis::cmd("EVAL");
    command
        .arg(HEARTBEAT)
        .arg(1)
        .arg(shards.heartbeat_key())
        .arg(shards.gateway())
        .arg(ALIVE_MS)
        .arg(u8::from(shards.is_leaving()));
    let sent_us = clock::wall_us();
    let (alive, seconds, micros): (u64, u64, u64) = query(connection, &command).await?;
    let ours_us = sent_us.midpoint(clock::wall_us());
    let theirs_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
    shard.heard(alive, theirs_us.cast_signed().wrapping_sub(ours_us.cast_signed()));
    Ok(())
}

/// Connects, and loads the script so that the first check need not.
async fn first(shard: &Shard) -> Result<Link, Fault> {
    let link = shard.target.connect().await?;
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script::source());
    query::<Value>(link.connection(), &load).await?;
    Ok(link)
}

async fn query<T: FromRedisValue>(mut connection: MultiplexedConnection, command: &redis::Cmd) -> Result<T, Fault> {
    command.query_async(&mut connection).await.map_err(|error| Fault::calling(&error))
}
