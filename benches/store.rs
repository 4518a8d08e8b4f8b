//! What a check costs on a Redis node: CPU of the client and of the node, with 1, 50 and 400 waiting at once, beside one
//! script call for each check over the redis crate's multiplexed connection. Uniform keys, a token bucket each.
//!
//! `cargo bench --bench store`. Figures are µs of CPU a check; they hold between the rows of one run.

#![allow(clippy::disallowed_methods, reason = "a bench measures time; no limit runs on its clock")]

#[path = "../tests/support/ports.rs"]
mod ports;
#[path = "../tests/support/redis.rs"]
#[allow(dead_code, reason = "the bench uses a part of the tests' support")]
mod server;

use redis::Value;
use redis::aio::MultiplexedConnection;
use server::RedisServer;
use staunch::algorithm::{Algorithm, Quota};
use staunch::store::redis::script::{Call, source};
use staunch::store::redis::{Client, Node, Settings, Shards};
use staunch::store::{Check, CounterKey};
use staunch::units::Secret;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, LocalOptions};

const KEYS: u128 = 100_000;
const RUN: Duration = Duration::from_millis(1500);

fn check() -> Check {
    let quota = Quota { units: 1_000_000, period_us: 60_000_000, burst: 1_000_000 };
    let key = CounterKey(fastrand::u128(..KEYS));
    Check { key, algorithm: Algorithm::TokenBucket, quota, cost: 1, enforced: true }
}

fn main() {
    let server = RedisServer::start();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    println!("{:<14} {:>8} {:>12} {:>14} {:>12}", "way", "waiting", "checks/s", "client µs", "node µs");
    runtime.block_on(async {
        let node = Node { name: "n0".to_owned(), url: Secret::new(server.url()) };
        let (timeout, retry_after) = (Duration::from_secs(10), Duration::from_secs(1));
        let settings =
            Settings { nodes: vec![node], timeout, failures: 5, retry_after, key_prefix: "staunch".to_owned() };
        let client = Client::new(Shards::new(settings));
        let opened = redis::Client::open(server.url()).expect("a URL");
        let connection = opened.get_multiplexed_async_connection().await.expect("the node is up");
        redis::cmd("SCRIPT").arg("LOAD").arg(source()).exec_async(&mut connection.clone()).await.expect("loads");
        for waiting in [1, 50, 400] {
            let (mine, client) = (connection.clone(), client.clone());
            run("one call each", waiting, &connection, move || one_call_each(mine.clone())).await;
            run("together", waiting, &connection, move || together(client.clone())).await;
        }
    });
}

async fn together(client: Rc<Client>) {
    assert!(client.decide(&[check()]).await[0].expect("the node answers").charged);
}

async fn one_call_each(mut connection: MultiplexedConnection) {
    let mut call = Call::new("staunch");
    call.decide(&[check()]);
    let reply: Value = call.command().query_async(&mut connection).await.expect("the node answers");
    assert!(call.read(&reply).expect("a reply of the script")[0].answer.charged);
}

async fn run<F: Future<Output = ()> + 'static>(
    way: &str,
    waiting: usize,
    node: &MultiplexedConnection,
    ask: impl Fn() -> F + Clone + 'static,
) {
    for round in 0..2 {
        let (count, end) = (Rc::new(Cell::new(0_u32)), Instant::now() + RUN);
        let (node_before, client_before) = (node_cpu_us(node.clone()).await, thread_cpu_us());
        let ask_until = |ask: Box<dyn Fn() -> F>, count: Rc<Cell<u32>>| async move {
            while Instant::now() < end {
                ask().await;
                count.set(count.get() + 1);
            }
        };
        let tasks: Vec<_> =
            (0..waiting).map(|_| tokio::task::spawn_local(ask_until(Box::new(ask.clone()), count.clone()))).collect();
        for task in tasks {
            task.await.expect("asks");
        }
        let checks = f64::from(count.get());
        let client_us = (thread_cpu_us() - client_before) / checks;
        let node_us = (node_cpu_us(node.clone()).await - node_before) / checks;
        // The first round warms up.
        if round == 1 {
            println!("{way:<14} {waiting:>8} {:>12.0} {client_us:>14.2} {node_us:>12.2}", checks / RUN.as_secs_f64());
        }
    }
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
