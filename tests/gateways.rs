//! What gateways know of each other and of the nodes: who is alive, whose clock is right, which node has which key.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::fs;
use support::client::{Connection, request};
use support::gateway::{Gateway, Setup};
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

/// Ten a week for each key, on nodes named n0, n1, … in turn.
fn text(servers: &[&RedisServer], upstream: &Upstream, timeout: &str) -> String {
    let node = |(i, server): (usize, &&RedisServer)| format!("{{ name = \"n{i}\", url = \"{}\" }}", server.url());
    let nodes: Vec<_> = servers.iter().enumerate().map(node).collect();
    format!(
        "[store]\nbackend = \"redis\"\non_failure = \"local\"\n[store.redis]\nnodes = [{}]\ntimeout = \"{timeout}\"\n\
         [policies.p]\nlimits = [{{ name = \"l\", key = \"header:x-key\", quota = \"10/7d\" }}]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n{}",
        nodes.join(", "),
        upstream.table()
    )
}

fn admitted(gateway: &Gateway, key: &str, count: usize) -> usize {
    let mut client = Connection::open(gateway.port);
    (0..count).filter(|_| client.get("/", &[("x-key", key)]).status == 200).count()
}

fn alive(server: &RedisServer) -> u64 {
    redis::cmd("ZCARD").arg("staunch:gateways").query(&mut server.ask()).unwrap()
}

fn gateways_seen_by(gateway: &Gateway) -> u64 {
    gateway.ask_admin("/status").json()["store"]["gateways"].as_u64().unwrap()
}

#[test]
fn a_clock_that_differs_is_told_of_when_it_begins_and_when_it_ends_and_decides_nothing() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    fs::write(&clock, "+1h").unwrap();
    let gateway = Setup::new(text(&[&server], &upstream, "20s")).clock_by(&clock).start();
    let skew = || gateway.metric("staunch_store_clock_skew_seconds", &["shard=\"n0\""]);
    let warnings = || gateway.log().matches("clock differs").count();
    let agreements = || gateway.log().matches("clock agrees").count();
    let heartbeats = || {
        let told: String = redis::cmd("INFO").arg("commandstats").query(&mut server.ask()).unwrap();
        let calls = told.lines().find_map(|line| line.strip_prefix("cmdstat_zadd:calls=")).unwrap_or("0,");
        calls.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // Changed settings of the store are tried out at once.
    let measured_again = |timeout: &str| {
        let before = heartbeats();
        gateway.rewrite(&text(&[&server], &upstream, timeout));
        assert_eq!(gateway.reload().status, 200);
        eventually("a heartbeat", || heartbeats() > before);
    };

    eventually("the node is an hour behind", || (-3605.0..-3595.0).contains(&skew()));
    assert_eq!(admitted(&gateway, "k", 15), 10);
    measured_again("21s");
    measured_again("22s");
    eventually("a warning", || warnings() == 1);
    let shard = &gateway.ask_admin("/status").json()["store"]["shards"][0];
    assert!((-3_605_000..-3_595_000).contains(&shard["clock_skew_ms"].as_i64().unwrap()), "{shard}");
    assert_eq!(shard["state"], "up");

    fs::write(&clock, "+0").unwrap();
    measured_again("23s");
    eventually("the clock is right again", || skew().abs() < 1.0 && agreements() == 1);
    fs::write(&clock, "-30s").unwrap();
    measured_again("24s");
    eventually("another warning", || skew() > 25.0 && warnings() == 2);
    assert_eq!((agreements(), admitted(&gateway, "k", 5), admitted(&gateway, "other", 15)), (1, 0, 10));
}

#[test]
fn a_gateway_that_drains_is_no_longer_among_those_who_share_a_limit() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    let text = text(&[&server], &upstream, "5s");
    let mut going = Setup::new(text.as_str()).arguments(&["--drain", "10m"]).start();
    eventually("the first is there", || alive(&server) == 1);
    let staying = Gateway::start(text);
    eventually("both see two", || gateways_seen_by(&going) == 2 && gateways_seen_by(&staying) == 2);

    let gate = upstream.hold("/slow");
    let mut waiting = Connection::open(going.port);
    waiting.send(request("GET", "/slow", &[]));
    eventually("it is upstream", || upstream.count("/slow") == 1);
    going.signal("-TERM");
    eventually("it has left", || alive(&server) == 1);
    assert!(!going.has_ended());
    // Both go on with their heartbeats meanwhile; the one that leaves counts for itself as before.
    eventually("the other is told", || gateways_seen_by(&staying) == 1);
    assert_eq!((alive(&server), gateways_seen_by(&going)), (1, 2));

    server.kill();
    assert_eq!(admitted(&staying, "k", 15), 10, "the whole limit, and not a half");
    gate.notify_one();
    assert_eq!(waiting.answer().status, 200);
    assert!(going.ends().success());
}

#[test]
fn a_node_that_is_added_by_a_reload_takes_its_share_of_the_keys_and_no_other_counter_is_lost() {
    const KEYS: usize = 90;
    let (servers, upstream) = ([RedisServer::start(), RedisServer::start(), RedisServer::start()], Upstream::start());
    let [first, second, third] = &servers;
    let two = text(&[first, second], &upstream, "5s");
    let gateway = Gateway::start(two.as_str());
    let key = |i: usize| format!("key-{i}");
    for i in 0..KEYS {
        assert_eq!(admitted(&gateway, &key(i), 1 + i % 9), 1 + i % 9);
    }
    let before: Vec<_> = (0..KEYS).map(|i| gateway.counter("p/l", &key(i))).collect();
    // Their order changes nothing; the names say which is which.
    let added = format!("nodes = [{{ name = \"n2\", url = \"{}\" }}, ", third.url());
    gateway.rewrite(&two.replace("nodes = [", &added));
    assert_eq!(gateway.reload().status, 200);
    let mut moved = 0;
    for (i, (left, home)) in before.iter().enumerate() {
        let (left_now, home_now) = gateway.counter("p/l", &key(i));
        if home_now == *home {
            assert_eq!(left_now, *left, "{} stayed on {home}", key(i));
        } else {
            moved += 1;
            assert_eq!((left_now, home_now.as_str()), (10, "n2"), "{} was on {home}", key(i));
        }
        assert_eq!(admitted(&gateway, &key(i), 12) as u64, left_now, "{}", key(i));
    }
    // A third is due; the digests, and so the number, are the same on every run.
    assert!((KEYS / 5..KEYS / 2).contains(&moved), "{moved} of {KEYS} moved");
}
