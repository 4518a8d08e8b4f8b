//! What the tests of the Redis store ask with: a core to run on, shards, checks, and what the metrics say.

use super::redis::RedisServer;
use staunch::algorithm::{Algorithm, Quota};
use staunch::store::redis::{Client, Node, Settings, Shards, Topology};
use staunch::store::{Answer, Check, CounterKey, StoreError};
use staunch::telemetry::metrics;
use staunch::units::Secret;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};

pub const FAILURES: u32 = 3;
/// What failures are waited for, and successes on a busy machine still meet.
pub const TIMEOUT: Duration = Duration::from_millis(200);

/// Runs a test as a core runs: one thread, tasks that need not be `Send`.
pub fn on_a_core<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(future)
}

/// Nodes by name and URL.
pub fn settings(nodes: &[(&str, String)]) -> Settings {
    let node = |(name, url): &(&str, String)| Node { name: (*name).to_owned(), url: Secret::new(url.clone()) };
    Settings {
        topology: Topology::Sharded,
        nodes: nodes.iter().map(node).collect(),
        timeout: TIMEOUT,
        failures: FAILURES,
        retry_after: Duration::from_millis(20),
        key_prefix: "staunch".to_owned(),
    }
}

/// Of another topology than sharded, with a timeout that a busy machine meets.
pub fn settings_of(topology: Topology, nodes: &[RedisServer]) -> Settings {
    let names: Vec<String> = (0..nodes.len()).map(|i| format!("n{i}")).collect();
    let nodes: Vec<_> = names.iter().map(String::as_str).zip(nodes.iter().map(RedisServer::url)).collect();
    Settings { topology, timeout: Duration::from_secs(5), ..settings(&nodes) }
}

/// Several gateways on the same nodes, each with what tends it; call it inside a runtime.
pub async fn gateways(settings: &Settings, count: usize) -> Vec<Arc<Shards>> {
    let one = |i| Shards::of_gateway(settings.clone(), format!("gateway-{i}"), None);
    let gateways: Vec<_> = (0..count).map(one).collect();
    for gateway in &gateways {
        tokio::spawn(gateway.clone().maintain());
        until(|| gateway.health().iter().all(|shard| shard.up)).await;
    }
    gateways
}

pub fn shards(nodes: &[(&str, String)]) -> Arc<Shards> {
    Shards::new(settings(nodes))
}

/// A check on a limit of `units` an hour.
pub fn check(key: u128, algorithm: Algorithm, units: u64) -> Check {
    let quota = Quota { units, period_us: 3_600_000_000, burst: units };
    Check { key: CounterKey(key), algorithm, quota, cost: 1, enforced: true }
}

/// The n-th key that lies on the given shard.
pub fn key_on(shards: &Shards, shard: usize, nth: usize) -> u128 {
    (0..1_000_000).filter(|key| shards.shard_of(CounterKey(*key)) == shard).nth(nth).expect("each shard has its share")
}

pub async fn ask(client: &Client, check: Check) -> Result<Answer, StoreError> {
    client.decide(&[check]).await[0]
}

pub async fn left(client: &Client, check: Check) -> u64 {
    client.inspect(check.key, check.algorithm, &check.quota).await.expect("the node answers").before.remaining
}

/// Waits for a state that a task beside the test brings about, as long as it takes.
pub async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn is_up(shards: &Shards) -> bool {
    shards.health()[0].up
}

pub fn is_degraded(shards: &Shards) -> bool {
    shards.health()[0].degraded
}

/// A counter or gauge as the page shows it; 0 if it is not there.
pub fn metric(name: &str, labels: &str) -> u64 {
    let page = metrics::render();
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{{labels}}}")));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}
