//! What a check costs on a Redis node: CPU of the client and of the node, and how long it takes, with 1, 64 and 400 waiting at
//! once. Uniform keys, a bucket or a window each, beside the peers' way: a lean script with one string of state, one `EVALSHA` for
//! each check over the redis crate's multiplexed connection. Our own script called that way stands between the two.
//!
//! `cargo bench --bench store`; `-- --quick` for a short look. CPU is told as a ratio too: it holds between the rows of one
//! run. Rounds are interleaved, and medians told.

#![allow(clippy::disallowed_methods, reason = "a bench measures time; no limit runs on its clock")]

#[path = "peer/mod.rs"]
mod peer;
#[path = "../tests/support/ports.rs"]
mod ports;
#[path = "../tests/support/redis.rs"]
#[allow(dead_code, reason = "the bench uses a part of the tests' support")]
mod server;

use peer::Peer;
use redis::Value;
use redis::aio::MultiplexedConnection;
use server::RedisServer;
use staunch::algorithm::{Algorithm, Quota};
use staunch::store::redis::script::{Call, source};
use staunch::store::redis::{Client, Node, Settings, Shards, Topology};
use staunch::store::{Check, CounterKey};
use staunch::units::Secret;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, LocalOptions};

const KEYS: u128 = 100_000;
/// So far from used up that nobody is refused, and so slow that a key is there when it is asked for: a unit of a bucket comes back
/// in 86 s. With an hour's quota it was 3.6 s, and each way's keys were expired at the cost of the next one.
const QUOTA: Quota = Quota { units: 1000, period_us: 86_400_000_000, burst: 1000 };

#[derive(Clone)]
enum Way {
    Peer(Peer),
    OneCallEach(MultiplexedConnection),
    Together(Rc<Client>, Algorithm),
}

/// What one run came to, for each check.
#[derive(Clone, Copy)]
struct Cost {
    checks_per_second: f64,
    latency_us: f64,
    client_us: f64,
    node_us: f64,
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, run_for) = if quick { (1, Duration::from_millis(500)) } else { (5, Duration::from_millis(1500)) };
    let server = RedisServer::start();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    println!("\n**A check on one node, {KEYS} keys uniformly**\n");
    println!(
        "| waiting | way | checks/s | p50, µs | client CPU, µs | node CPU, µs | client, peers = 1 | node, peers = 1 |"
    );
    println!("|{}", " --- |".repeat(8));
    runtime.block_on(async {
        let (connection, client) = (connect(&server).await, client(&server));
        let ways = [
            ("peers: a lean script, an EVALSHA each", Way::Peer(Peer::load(connection.clone()).await)),
            ("our script, an EVALSHA each", Way::OneCallEach(connection.clone())),
            ("Staunch, `token_bucket`", Way::Together(client.clone(), Algorithm::TokenBucket)),
            ("Staunch, `sliding_window_counter`", Way::Together(client, Algorithm::SlidingWindowCounter)),
        ];
        for waiting in [1, 64, 400] {
            let mut costs = [const { Vec::new() }; 4];
            // The first round warms up.
            for round in 0..=rounds {
                for (costs, (_, way)) in costs.iter_mut().zip(&ways) {
                    let cost = run(way, waiting, run_for, &connection).await;
                    costs.extend((round > 0).then_some(cost));
                }
            }
            for (told, (name, _)) in costs.iter().zip(&ways) {
                tell(name, waiting, told, &costs[0]);
            }
        }
    });
    println!(
        "\nWanted with 64 waiting: node at most 0.55 × the peers', client at most 0.6 ×; with one, no latency added."
    );
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let opened = redis::Client::open(server.url()).expect("a URL");
    let connection = opened.get_multiplexed_async_connection().await.expect("the node is up");
    redis::cmd("SCRIPT").arg("LOAD").arg(source()).exec_async(&mut connection.clone()).await.expect("loads");
    connection
}

fn client(server: &RedisServer) -> Rc<Client> {
    let node = Node { name: "n0".to_owned(), url: Secret::new(server.url()) };
    let (timeout, retry_after) = (Duration::from_secs(10), Duration::from_secs(1));
    let (topology, key_prefix) = (Topology::Sharded, "staunch".to_owned());
    let settings = Settings { topology, nodes: vec![node], timeout, failures: 5, retry_after, key_prefix };
    Client::new(Shards::new(settings))
}

impl Way {
    async fn ask(&self) {
        let key = CounterKey(fastrand::u128(..KEYS));
        let check = |algorithm| Check { key, algorithm, quota: QUOTA, cost: 1, enforced: true };
        match self {
            Self::Peer(peer) => assert!(peer.admits(key, &QUOTA).await),
            Self::OneCallEach(connection) => {
                let mut call = Call::new("staunch");
                call.decide(&[check(Algorithm::TokenBucket)]);
                let reply: Value = call.command().query_async(&mut connection.clone()).await.expect("the node answers");
                assert!(call.read(&reply).expect("a reply of the script")[0].answer.charged);
            }
            Self::Together(client, algorithm) => {
                // Keys of its own for each algorithm: another's state would be replaced.
                let check = check(*algorithm);
                let key = CounterKey(check.key.0 + KEYS * *algorithm as u128);
                assert!(client.decide(&[Check { key, ..check }]).await[0].expect("the node answers").charged);
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "some 10^5 checks")]
async fn run(way: &Way, waiting: usize, run_for: Duration, node: &MultiplexedConnection) -> Cost {
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(1 << 20)));
    let (node_before, client_before, begun) = (node_cpu_us(node.clone()).await, thread_cpu_us(), Instant::now());
    let ask_until_the_end = |way: Way, latencies: Rc<RefCell<Vec<u128>>>| async move {
        let mut asked = Instant::now();
        while begun.elapsed() < run_for {
            way.ask().await;
            let answered = Instant::now();
            latencies.borrow_mut().push((answered - asked).as_nanos());
            asked = answered;
        }
    };
    let tasks: Vec<_> =
        (0..waiting).map(|_| tokio::task::spawn_local(ask_until_the_end(way.clone(), latencies.clone()))).collect();
    for task in tasks {
        task.await.expect("asks");
    }
    let (client_us, took) = (thread_cpu_us() - client_before, begun.elapsed());
    let node_us = node_cpu_us(node.clone()).await - node_before;
    let mut latencies = latencies.take();
    latencies.sort_unstable();
    let checks = latencies.len() as f64;
    Cost {
        checks_per_second: checks / took.as_secs_f64(),
        latency_us: latencies[latencies.len() / 2] as f64 / 1000.0,
        client_us: client_us / checks,
        node_us: node_us / checks,
    }
}

fn tell(name: &str, waiting: usize, costs: &[Cost], peers: &[Cost]) {
    let of = |value: fn(&Cost) -> f64| median(costs.iter().map(value).collect());
    let ratio = |value: fn(&Cost) -> f64| median(costs.iter().zip(peers).map(|(a, b)| value(a) / value(b)).collect());
    let (rate, latency) = (of(|cost| cost.checks_per_second), of(|cost| cost.latency_us));
    let (client, node) = (of(|cost| cost.client_us), of(|cost| cost.node_us));
    let (client_ratio, node_ratio) = (ratio(|cost| cost.client_us), ratio(|cost| cost.node_us));
    println!(
        "| {waiting} | {name} | {rate:.0} | {latency:.0} | {client:.2} | {node:.2} | {client_ratio:.2} | {node_ratio:.2} |"
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU of this thread, which runs the client and nothing else.
fn thread_cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).expect("a number") / 1000.0
}

async fn node_cpu_us(mut node: MultiplexedConnection) -> f64 {
    let text: String = redis::cmd("INFO").arg("cpu").query_async(&mut node).await.expect("the node answers");
    let value = |line: &str| line.split_once(':').and_then(|(_, seconds)| seconds.parse::<f64>().ok());
    let main = ["used_cpu_sys:", "used_cpu_user:"];
    text.lines().filter(|line| main.iter().any(|name| line.starts_with(name))).filter_map(value).sum::<f64>() * 1e6
}
