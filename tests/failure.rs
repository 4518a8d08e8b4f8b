//! The gateway while Redis fails: killed, frozen, cut off, emptied; what requests get, how long they take, how it heals.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "how long a request takes is told by the system's clock")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::client::{Connection, burst, request};
use support::gateway::Gateway;
use support::link::{BLACK_HOLE, Link, PASS};
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

/// Of one check; what a busy machine adds to a request is far below `SLACK`, ten seconds of waiting far above.
const TIMEOUT: &str = "400ms";
const SLACK: Duration = Duration::from_secs(4);

const POLICIES: &str = r#"
[policies.open]
on_store_failure = "open"
limits = [{ name = "l", key = "header:x-key", quota = "5/7d" }]
[policies.closed]
on_store_failure = "closed"
limits = [{ name = "l", key = "header:x-key", quota = "5/7d" }]
[policies.local]
limits = [{ name = "l", key = "header:x-key", quota = "5/7d" }]
[[routes]]
path = "/open"
upstream = "up"
policies = ["open"]
[[routes]]
path = "/closed"
upstream = "up"
policies = ["closed"]
[[routes]]
path = "/local"
upstream = "up"
policies = ["local"]
[[routes]]
path = "/both"
upstream = "up"
policies = ["open", "closed"]
[[routes]]
path = "/free"
upstream = "up"
"#;

fn store(urls: &[String]) -> String {
    let nodes: Vec<_> =
        urls.iter().enumerate().map(|(i, url)| format!("{{ name = \"n{i}\", url = \"{url}\" }}")).collect();
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [{}]\ntimeout = \"{TIMEOUT}\"\n\
         breaker = {{ failures = 3, retry_after = \"100ms\" }}\n",
        nodes.join(", ")
    )
}

fn gateway(urls: &[String], upstream: &Upstream) -> Gateway {
    Gateway::start(store(urls) + &upstream.table() + POLICIES)
}

fn is_up(gateway: &Gateway, shard: &str) -> bool {
    gateway.metric("staunch_store_up", &[&format!("shard=\"{shard}\"")]) > 0.5
}

/// Each on a fresh key, and none slower than the time-out allows.
fn statuses(gateway: &Gateway, key: &str, path: &str, count: usize) -> Vec<u16> {
    let mut client = Connection::open(gateway.port);
    let mut ask = || {
        let begun = staunch::clock::now();
        let answer = client.get(path, &[("x-key", key)]);
        assert!(begun.elapsed() < SLACK, "{path}: {:?}", begun.elapsed());
        if answer.status == 503 {
            assert!(answer.number("retry-after") >= 1);
            assert_eq!(answer.field("content-type"), Some("application/problem+json"));
        }
        answer.status
    };
    (0..count).map(|_| ask()).collect()
}

/// While the store answers, each policy admits one for this key.
fn before(gateway: &Gateway) {
    eventually("contact", || is_up(gateway, "n0"));
    for path in ["/open", "/closed", "/local"] {
        assert_eq!(statuses(gateway, "before", path, 1), [200], "{path}");
    }
}

/// While it is away, what is configured happens, and everybody is told.
fn meanwhile(gateway: &Gateway, upstream: &Upstream) {
    assert_eq!(statuses(gateway, "away", "/open", 12), [200; 12]);
    assert_eq!(statuses(gateway, "away", "/closed", 6), [503; 6]);
    assert_eq!(statuses(gateway, "away", "/local", 7), [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(upstream.count("/closed"), 1, "what is refused reaches nobody");
    let uncounted = gateway.metric("staunch_uncounted_total", &["policy=\"open\""]);
    assert!(uncounted >= 12.0, "what was let through uncounted is");
    assert_eq!(statuses(gateway, "away", "/both", 3), [503; 3]);
    let after = gateway.metric("staunch_uncounted_total", &["policy=\"open\""]);
    assert!(after - uncounted < 0.5, "what was not let through is not");
    assert_eq!(statuses(gateway, "away", "/free", 1), [200]);
    eventually("what passes uncounted is marked in the log", || {
        let marked = |line: &&str| line.contains("path=/open") && line.contains("store=degraded");
        gateway.log().lines().filter(marked).count() == 12
    });
    let blamed =
        |line: &str| line.contains("path=/closed") && line.contains("status=503") && line.contains("policy=closed");
    eventually("a closed limit is named", || gateway.log().lines().filter(|line| blamed(line)).count() == 6);
    let local = ["policy=\"local\"", "source=\"local\"", "decision=\"limited\""];
    assert!(gateway.metric("staunch_decisions_total", &local) >= 2.0);
    assert!(!is_up(gateway, "n0"));
    assert!(gateway.metric("staunch_store_degraded", &["shard=\"n0\""]) > 0.5);
    assert!(gateway.metric("staunch_store_errors_total", &["shard=\"n0\""]) >= 3.0);
    let ready = gateway.ask_admin("/readyz");
    assert!(ready.status == 200 && ready.text().contains("degraded"), "{}", ready.text());
}

/// When it is back, everything is exact again, and what was admitted meanwhile is charged to it.
fn afterwards(gateway: &Gateway, server: &RedisServer) {
    eventually("recovery", || is_up(gateway, "n0"));
    eventually("readiness says so", || !gateway.ask_admin("/readyz").text().contains("degraded"));
    for path in ["/open", "/closed"] {
        assert_eq!(statuses(gateway, "after", path, 6), [200, 200, 200, 200, 200, 429], "{path}");
    }
    eventually("the debt is paid", || gateway.counter("local/l", "away").0 == 0);
    assert_eq!(statuses(gateway, "away", "/local", 2), [429, 429]);
    let lives = server.lives();
    assert!(lives.iter().all(|(_, left)| *left > 0), "a key without expiry: {lives:?}");
    assert!(!gateway.log().contains("panicked"));
}

#[test]
fn a_killed_node_leads_to_what_is_configured_and_heals_when_it_is_back_empty() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = gateway(&[server.url()], &upstream);
    before(&gateway);
    server.kill();
    meanwhile(&gateway, &upstream);
    server.restart();
    afterwards(&gateway, &server);
}

#[test]
fn a_frozen_node_leads_to_what_is_configured_within_the_timeout_and_heals() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = gateway(&[server.url()], &upstream);
    before(&gateway);
    server.stop();
    meanwhile(&gateway, &upstream);
    assert!(gateway.metric("staunch_store_errors_total", &["kind=\"timeout\""]) >= 3.0);
    server.cont();
    afterwards(&gateway, &server);
    assert_eq!(gateway.counter("closed/l", "before").0, 4, "it has kept what it knew");
}

#[test]
fn a_node_that_is_cut_off_without_a_word_leads_to_what_is_configured_and_heals() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let link = runtime.block_on(Link::to(server.address()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let carrying = std::thread::spawn(move || drop(runtime.block_on(ended)));
    let gateway = gateway(&[link.url()], &upstream);
    before(&gateway);
    link.set(BLACK_HOLE);
    meanwhile(&gateway, &upstream);
    link.set(PASS);
    afterwards(&gateway, &server);
    drop(end);
    carrying.join().unwrap();
}

#[test]
fn a_client_that_leaves_before_its_request_is_decided_is_not_told_as_forwarded() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = gateway(&[server.url()], &upstream);
    eventually("contact", || is_up(&gateway, "n0"));
    server.stop();
    eventually("a line of one that left in time", || {
        let mut client = Connection::open(gateway.port);
        client.send(request("GET", "/closed", &[("x-key", "leaving")]));
        client.leave();
        gateway.log().lines().any(|line| line.contains("status=499") && line.contains("outcome=unavailable"))
    });
    assert_eq!(upstream.hits().len(), 0);
    server.cont();
}

#[test]
fn many_at_once_wait_for_a_frozen_node_together_and_no_longer_than_one() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = gateway(&[server.url()], &upstream);
    eventually("contact", || is_up(&gateway, "n0"));
    server.stop();
    let begun = staunch::clock::now();
    let requests: Vec<_> = (0..300).map(|i| request("GET", "/closed", &[("x-key", &i.to_string())])).collect();
    assert_eq!(burst(&[gateway.port], &requests), [503; 300]);
    assert!(begun.elapsed() < 2 * SLACK, "{:?}: as if they had waited one after the other", begun.elapsed());
    server.cont();
    eventually("recovery", || is_up(&gateway, "n0"));
    assert_eq!(statuses(&gateway, "after", "/closed", 1), [200]);
}

#[test]
fn a_node_that_comes_back_empty_between_two_requests_counts_anew_without_an_error() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    let gateway = gateway(&[server.url()], &upstream);
    eventually("contact", || is_up(&gateway, "n0"));
    assert_eq!(statuses(&gateway, "k", "/closed", 6), [200, 200, 200, 200, 200, 429]);
    server.restart();
    eventually("recovery", || is_up(&gateway, "n0") && gateway.get_as("probe", "/closed").status == 200);
    assert_eq!(statuses(&gateway, "k", "/closed", 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn scripts_flushed_under_load_cost_no_request_and_miscount_none() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let text = store(&[server.url()]).replace(TIMEOUT, "20s") + &upstream.table() + &POLICIES.replace("5/7d", "500/7d");
    let gateway = Gateway::start(text);
    eventually("contact", || is_up(&gateway, "n0"));
    let over = AtomicBool::new(false);
    let (statuses, flushes) = std::thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let mut flushes = 0;
            let mut connection = server.ask();
            while !over.load(Ordering::SeqCst) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                flushes += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            flushes
        });
        let requests = vec![request("GET", "/closed", &[("x-key", "k")]); 1000];
        let statuses = burst(&[gateway.port], &requests);
        over.store(true, Ordering::SeqCst);
        (statuses, flushing.join().unwrap())
    });
    assert!(flushes > 0);
    let tally = |status| statuses.iter().filter(|seen| **seen == status).count();
    assert_eq!((tally(200), tally(429), upstream.count("/closed")), (500, 500, 500), "after {flushes} flushes");
    assert!(is_up(&gateway, "n0"), "a missing script is no failure of the node");
}

#[test]
fn one_shard_of_three_is_away_and_its_keys_alone_are_touched() {
    let (mut servers, upstream) =
        ([RedisServer::start(), RedisServer::start(), RedisServer::start()], Upstream::start());
    let gateway = gateway(&servers.each_ref().map(RedisServer::url), &upstream);
    eventually("contact", || (0..3).all(|i| is_up(&gateway, &format!("n{i}"))));
    let keys: Vec<_> = (0..30).map(|i| format!("key-{i}")).collect();
    let homes: Vec<_> = keys.iter().map(|key| gateway.counter("closed/l", key).1).collect();
    servers[1].kill();
    for (key, home) in keys.iter().zip(&homes) {
        let expected: &[u16] = if home == "n1" { &[503; 6] } else { &[200, 200, 200, 200, 200, 429] };
        assert_eq!(statuses(&gateway, key, "/closed", 6), expected, "{key} on {home}");
    }
    for name in ["n0", "n1", "n2"] {
        assert!(homes.iter().any(|home| home == name), "no key on {name}");
        assert_eq!(is_up(&gateway, name), name != "n1");
    }
    servers[1].restart();
    eventually("recovery", || is_up(&gateway, "n1"));
    let moved = keys.iter().zip(&homes).find(|(_, home)| *home == "n1").unwrap().0;
    assert_eq!(statuses(&gateway, moved, "/closed", 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn started_with_every_node_down_it_serves_says_so_and_heals() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    server.kill();
    let gateway = gateway(&[server.url()], &upstream);
    assert_eq!(statuses(&gateway, "k", "/open", 8), [200; 8]);
    assert_eq!(statuses(&gateway, "k", "/closed", 2), [503; 2]);
    assert_eq!(statuses(&gateway, "k", "/local", 6), [200, 200, 200, 200, 200, 429]);
    eventually("it says so", || gateway.ask_admin("/readyz").text().contains("degraded"));
    server.restart();
    eventually("healing", || is_up(&gateway, "n0"));
    assert_eq!(statuses(&gateway, "k", "/closed", 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn wrong_credentials_are_named_and_never_open_anything() {
    let (server, upstream) = (RedisServer::start_with(&["--requirepass", "right"]), Upstream::start());
    let url = format!("redis://:a-wrong-password@127.0.0.1:{}", server.port());
    let gateway = gateway(&[url], &upstream);
    assert_eq!(statuses(&gateway, "k", "/closed", 3), [503; 3]);
    eventually("the kind is named", || gateway.metric("staunch_store_errors_total", &["kind=\"auth\""]) >= 1.0);
    assert!(!is_up(&gateway, "n0"));
    let told = gateway.log() + &gateway.metrics() + &gateway.ask_admin("/status").text();
    assert!(!told.contains("a-wrong-password"));
    eventually("the log names it", || gateway.log().contains("authentication failed"));
}

#[test]
fn two_gateways_share_a_limit_while_the_store_is_away() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    let text = store(&[server.url()]) + &upstream.table() + &POLICIES.replace("5/7d", "10/7d");
    let gateways = [Gateway::start(text.as_str()), Gateway::start(text.as_str())];
    // The first to start hears of the other with its second heartbeat.
    eventually("two heartbeats of each", || {
        let told: String = redis::cmd("INFO").arg("commandstats").query(&mut server.ask()).unwrap();
        let calls = told.lines().find_map(|line| line.strip_prefix("cmdstat_zadd:calls=")).unwrap_or_default();
        calls.split(',').next().is_some_and(|calls| calls.parse::<u32>().is_ok_and(|calls| calls >= 4))
    });
    server.kill();
    for gateway in &gateways {
        let seen = statuses(gateway, "k", "/local", 8);
        assert_eq!(seen.iter().filter(|status| **status == 200).count(), 5, "half of ten each: {seen:?}");
    }
    assert_eq!(upstream.count("/local"), 10);
    server.restart();
    eventually("recovery", || gateways.iter().all(|gateway| is_up(gateway, "n0")));
    assert_eq!(gateways[0].counter("local/l", "k").0, 0, "what both admitted is charged to the whole limit");
}
