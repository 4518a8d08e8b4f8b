//! Bytes a key: resident in the memory store, and in Redis (`used_memory`, expiry included), for each algorithm with one unit
//! used. `cargo bench --bench footprint`; `-- --quick` for a short look.
//!
//! On the allocator that the gateway runs on. Beside it the time of a new key in memory, and the slowest single decision while
//! the store grew, which is where the growth of a table would show.

#[path = "peer/mod.rs"]
mod peer;
#[path = "../tests/support/ports.rs"]
mod ports;
#[path = "../tests/support/redis.rs"]
#[allow(dead_code, reason = "the bench uses a part of the tests' support")]
mod server;

use peer::Peer;
use server::RedisServer;
use staunch::algorithm::{Algorithm, Quota};
use staunch::clock;
use staunch::store::memory::Memory;
use staunch::store::redis::{Client, Node, Settings, Shards, Topology};
use staunch::store::{Check, CounterKey};
use staunch::units::Secret;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use std::{env, fs};
use tokio::runtime::{Builder, LocalOptions};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A unit comes back in a quarter of an hour: no key expires meanwhile.
const QUOTA: Quota = Quota { units: 100, period_us: 86_400_000_000, burst: 100 };
/// Checks under way at a time while Redis is filled.
const WAITING: usize = 64;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(population) = arguments.iter().find_map(|argument| argument.parse::<usize>().ok()) {
        return measure(Algorithm::ALL[population % 10], population - population % 10);
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    println!("\n**Bytes a key in memory**\n\n| algorithm | keys | bytes a key | ns a new key | slowest, ms |");
    println!("|{}", " --- |".repeat(5));
    measure_each_alone(if quick { &[1_000_000] } else { &[1_000_000, 10_000_000] });
    println!("\n**Bytes a key in Redis**\n\n| algorithm | keys | bytes a key |\n|{}", " --- |".repeat(3));
    let keys = if quick { 100_000 } else { 1_000_000 };
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
        let bytes = runtime.block_on(bytes_in_redis(algorithm, keys));
        let name = algorithm.map_or("peers' lean bucket".to_owned(), |algorithm| format!("`{}`", algorithm.name()));
        println!("| {name} | {keys} | {bytes} |");
    }
}

/// In a process of its own, for what one population frees the next would reuse. The argument is the number of keys, with the
/// algorithm in its last digit.
fn measure_each_alone(populations: &[usize]) {
    for algorithm in 0..Algorithm::ALL.len() {
        for keys in populations {
            let program = env::current_exe().expect("this program has a path");
            let status = Command::new(program).arg((keys + algorithm).to_string()).status();
            assert!(status.expect("it starts again").success());
        }
    }
}

fn check(algorithm: Algorithm, key: u128) -> Check {
    Check { key: CounterKey(key), algorithm, quota: QUOTA, cost: 1, enforced: true }
}

fn measure(algorithm: Algorithm, keys: usize) {
    let before = resident_bytes();
    let memory = Memory::new(keys);
    let (start, mut slowest) = (clock::now(), Duration::ZERO);
    for _ in 0..keys {
        let asked = clock::now();
        let answers = memory.decide(&[check(algorithm, fastrand::u128(..))], clock::now_us());
        slowest = slowest.max(asked.elapsed());
        assert!(answers[0].charged);
    }
    let each = start.elapsed().as_nanos() / keys as u128;
    let bytes = resident_bytes().saturating_sub(before);
    assert_eq!(memory.len(), keys);
    let tenths = bytes * 10 / keys;
    let (whole, tenth, slowest_ms) = (tenths / 10, tenths % 10, slowest.as_millis());
    println!("| `{}` | {keys} | {whole}.{tenth} | {each} | {slowest_ms} |", algorithm.name());
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split_whitespace().nth(1).expect("resident is second").parse().expect("a number");
    pages * 4096
}

/// On a node of its own; without an algorithm, the peers'.
async fn bytes_in_redis(algorithm: Option<Algorithm>, keys: usize) -> usize {
    let server = RedisServer::start();
    let node = Node { name: "n0".to_owned(), url: Secret::new(server.url()) };
    let (timeout, retry_after) = (Duration::from_secs(10), Duration::from_secs(1));
    let (topology, key_prefix) = (Topology::Sharded, "staunch".to_owned());
    let settings = Settings { topology, nodes: vec![node], timeout, failures: 5, retry_after, key_prefix };
    let client = Client::new(Shards::new(settings));
    let opened = redis::Client::open(server.url()).expect("a URL");
    let peer = Peer::load(opened.get_multiplexed_async_connection().await.expect("the node is up")).await;
    // Scripts are loaded and connections made before the node is looked at for the first time.
    client.decide(&[check(Algorithm::FixedWindow, 0)]).await[0].expect("the node answers");
    let before = used_memory(&server);
    let fill = |client: Rc<Client>, peer: Peer| async move {
        for _ in 0..keys / WAITING {
            let key = fastrand::u128(..);
            match algorithm {
                Some(algorithm) => assert!(client.decide(&[check(algorithm, key)]).await[0].expect("answered").charged),
                None => assert!(peer.admits(CounterKey(key), &QUOTA).await),
            }
        }
    };
    let tasks: Vec<_> = (0..WAITING).map(|_| tokio::task::spawn_local(fill(client.clone(), peer.clone()))).collect();
    for task in tasks {
        task.await.expect("fills");
    }
    (used_memory(&server) - before) / (keys / WAITING * WAITING)
}

fn used_memory(server: &RedisServer) -> usize {
    let told: String = redis::cmd("INFO").arg("memory").query(&mut server.ask()).expect("the node answers");
    let used = told.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|bytes| bytes.trim().parse().ok()).expect("Redis tells it")
}
