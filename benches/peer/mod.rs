//! How rate limiters usually ask Redis, as lean as it goes: a bucket as the time when it is full again (GCRA), one string of
//! state, the node's own clock, one `EVALSHA` for each check.

use redis::aio::MultiplexedConnection;
use staunch::algorithm::Quota;
use staunch::store::CounterKey;
use staunch::store::redis::script::key_text;

/// `KEYS[1]`: the bucket. `ARGV`: µs between two units; µs that a full bucket holds. Replies with admitted, what is left, and
/// µs until it would pass and until it is full.
const SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, depth = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or 0)
if full < now then full = now end
local after = full + interval
local wait = after - depth - now
if wait > 0 then return {0, 0, wait, full - now} end
redis.call('SET', KEYS[1], string.format('%d', after), 'PX', math.ceil((after - now) / 1000))
return {1, math.floor(-wait / interval), 0, after - now}
";

#[derive(Clone)]
pub struct Peer {
    connection: MultiplexedConnection,
    sha: String,
}

impl Peer {
    pub async fn load(mut connection: MultiplexedConnection) -> Self {
        let loaded = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await;
        Self { connection, sha: loaded.expect("the node takes the script") }
    }

    pub async fn admits(&self, key: CounterKey, quota: &Quota) -> bool {
        let interval = quota.period_us / quota.units;
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key_text("peer-rl", key)).arg(interval).arg(interval * quota.burst);
        let reply: (u64, u64, u64, u64) =
            command.query_async(&mut self.connection.clone()).await.expect("the node answers");
        reply.0 == 1
    }
}
