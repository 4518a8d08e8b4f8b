//! A Redis that loses connections, or is shared in unusual ways; a store that is changed; and the memory store's bound.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use support::client::{Connection, burst, request};
use support::gateway::Gateway;
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

const ROUTES: &str = r#"
[policies.p]
on_store_failure = "closed"
limits = [{ name = "l", key = "header:x-key", algorithm = "ALGORITHM", quota = "QUOTA/7d" }]
[[routes]]
path = "/*"
upstream = "up"
policies = ["p"]
"#;

fn routes(algorithm: &str, quota: u64) -> String {
    ROUTES.replace("ALGORITHM", algorithm).replace("QUOTA", &quota.to_string())
}

fn store(server: &RedisServer) -> String {
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [{{ name = \"n\", url = \"{}\" }}]\ntimeout = \"2s\"\n\
         breaker = {{ failures = 3, retry_after = \"50ms\" }}\n",
        server.url()
    )
}

fn start(server: &RedisServer, upstream: &Upstream, quota: u64) -> Gateway {
    let gateway = Gateway::start(store(server) + &upstream.table() + &routes("fixed_window", quota));
    eventually("contact", || is_up(&gateway));
    gateway
}

fn is_up(gateway: &Gateway) -> bool {
    gateway.metric("staunch_store_up", &["shard=\"n\""]) > 0.5
}

fn command(server: &RedisServer, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.exec(&mut server.ask()).unwrap();
}

#[test]
fn connections_cut_under_load_admit_nobody_wrongly_and_come_back() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = start(&server, &upstream, 300);
    let over = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                command(&server, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let statuses: Vec<u16> = (0..4)
            .flat_map(|_| burst(&[gateway.port], &vec![request("GET", "/burst", &[("x-key", "k")]); 250]))
            .collect();
        over.store(true, Ordering::SeqCst);
        statuses
    });
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| [200, 429, 503].contains(status)), "{statuses:?}");
    assert!(admitted <= 300, "{admitted}");
    assert_eq!(upstream.count("/burst"), admitted);
    eventually("it heals", || is_up(&gateway) && gateway.get_as("fresh", "/").status == 200);
    let lives = server.lives();
    assert!(lives.iter().all(|(_, left)| *left > 0), "a key without expiry: {lives:?}");
}

#[test]
fn counters_in_redis_outlive_the_gateway_and_are_found_by_name_under_another_address() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"] {
        let text = store(&server) + &upstream.table() + &routes(algorithm, 6);
        for round in 0..3 {
            let text = if round == 1 { text.replace("127.0.0.1", "localhost") } else { text.clone() };
            let gateway = Gateway::start(text);
            eventually("contact", || is_up(&gateway));
            for _ in 0..2 {
                assert_eq!(gateway.get_as(algorithm, "/").status, 200, "{algorithm}, round {round}");
            }
            assert_eq!(gateway.counter("p/l", algorithm).0, 4 - 2 * round);
        }
    }
}

#[test]
fn two_installations_on_one_redis_do_not_share_and_every_key_bears_its_prefix() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let text = |prefix| {
        let store = store(&server).replace("\"redis\"\n", &format!("\"redis\"\nkey_prefix = \"{prefix}\"\n"));
        store + &upstream.table() + &routes("token_bucket", 3)
    };
    let gateways = [Gateway::start(text("one")), Gateway::start(text("two"))];
    for gateway in &gateways {
        eventually("contact", || is_up(gateway));
        let statuses: Vec<_> = (0..4).map(|_| gateway.get_as("k", "/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 429]);
    }
    let lives = server.lives();
    assert!(lives.len() >= 4, "two counters, two heartbeats: {lives:?}");
    assert!(lives.iter().all(|(key, _)| key.starts_with(b"one") || key.starts_with(b"two")), "{lives:?}");
}

#[test]
fn the_store_is_changed_by_a_reload_and_nothing_fails_on_the_way() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let memory = upstream.table() + &routes("fixed_window", 1_000_000);
    let redis = store(&server) + &memory;
    let gateway = Gateway::start(memory.as_str());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Connection::open(gateway.port);
            while !over.load(Ordering::SeqCst) {
                assert_eq!(client.get("/", &[("x-key", "k")]).status, 200);
            }
        });
        for text in [&redis, &memory, &redis, &memory, &redis] {
            gateway.rewrite(text);
            assert_eq!(gateway.reload().status, 200);
            assert_eq!(gateway.get_as("other", "/").status, 200);
        }
        over.store(true, Ordering::SeqCst);
    });
    eventually("contact", || is_up(&gateway));
    gateway.rewrite(&memory);
    assert_eq!(gateway.reload().status, 200);
    // Its counters stay, as counters do; nobody is alarmed by a shard that is no longer asked.
    assert!(!gateway.metrics().contains("staunch_store_up{"));
    assert!(!gateway.metrics().contains("staunch_store_degraded{"));
}

#[test]
fn a_flood_of_keys_stays_within_the_bound_and_frees_no_exhausted_one() {
    let upstream = Upstream::start();
    let store = "[store]\nmax_keys = 1000\n[log]\naccess = \"off\"\n";
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"] {
        let gateway = Gateway::start(format!("{store}{}{}", upstream.table(), routes(algorithm, 3)));
        let mut client = Connection::open(gateway.port);
        let statuses: Vec<_> = (0..4).map(|_| client.get("/", &[("x-key", "exhausted")]).status).collect();
        assert_eq!(statuses, [200, 200, 200, 429]);
        for i in 0..5000 {
            assert_eq!(
                client.get("/", &[("x-key", &format!("flood {i}"))]).status,
                200,
                "{algorithm}: a first request"
            );
        }
        assert_eq!(client.get("/", &[("x-key", "exhausted")]).status, 429, "{algorithm}");
        let kept = gateway.ask_admin("/status").json()["store"]["memory_keys"].as_u64().unwrap();
        assert!((500..=1000).contains(&kept), "{algorithm}: {kept}");
        eventually("the metric follows", || {
            let kept = gateway.metric("staunch_memory_keys", &[]);
            (500.0..=1000.0).contains(&kept)
        });
    }
}
