//! Hot keys in front of real nodes: leases and remembered refusals spare the store, and change no count.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Connection, burst, request};
use support::gateway::{Gateway, Setup};
use support::link::{DROP_REPLIES, Link};
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

/// Longer than any test: a lease stays until something else ends it.
const LONG: &str = "50s";

fn text(servers: &[&RedisServer], upstream: &Upstream, ttl: &str, limits: &[&str]) -> String {
    let nodes: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    format!(
        "[store]\nbackend = \"redis\"\non_failure = \"closed\"\n[store.redis]\nnodes = [{}]\ntimeout = \"2s\"\n\
         [hot_keys]\nttl = \"{ttl}\"\n[policies.p]\nlimits = [{}]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n{}",
        nodes.join(", "),
        limits.join(", "),
        upstream.table()
    )
}

fn limit(name: &str, quota: &str, more: &str) -> String {
    format!("{{ name = \"{name}\", key = \"header:x-key\", quota = \"{quota}\"{more} }}")
}

/// Statuses of so many requests, one after the other on one connection.
fn spend(gateway: &Gateway, key: &str, count: usize) -> Vec<u16> {
    let mut client = Connection::open(gateway.port);
    (0..count).map(|_| client.get("/", &[("x-key", key)]).status).collect()
}

fn admitted(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

fn script_calls(server: &RedisServer) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.ask()).unwrap();
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<u64>().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

fn decided_by(gateway: &Gateway, source: &str) -> f64 {
    gateway.metric("staunch_decisions_total", &[&format!("source=\"{source}\"")])
}

#[test]
fn two_gateways_admit_exactly_the_quota_and_ask_the_store_a_few_times() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    for algorithm in ["fixed_window", "sliding_window_counter", "token_bucket"] {
        let limit = limit(algorithm, "1000/7d", &format!(", algorithm = \"{algorithm}\""));
        let text = text(&[&server], &upstream, "200ms", &[&limit]);
        let gateways = [Gateway::start(text.clone()), Gateway::start(text)];
        let path = format!("/{algorithm}");
        let before = script_calls(&server);
        let ports = [gateways[0].port, gateways[1].port];
        let first = burst(&ports, &vec![request("GET", &path, &[("x-key", "k")]); 700]);
        assert_eq!(admitted(&first), 700, "{algorithm}: less than half an eighth is away at a time");
        let calls = script_calls(&server) - before;
        // About one for each gateway and ttl; how many ttls a burst takes is the machine's affair.
        assert!(calls <= 700 / 4, "{algorithm}: {calls} calls for 700 requests");
        // What one holds, the other may miss until the lease has ended; then the rest is there, and no more.
        let mut all = admitted(&first);
        eventually("the quota is used up", || {
            all += admitted(&spend(&gateways[0], "k", 50)) + admitted(&spend(&gateways[1], "k", 50));
            all >= 1000
        });
        assert_eq!((all, upstream.count(&path)), (1000, 700), "{algorithm}");
        assert_eq!(gateways[0].counter(&format!("p/{algorithm}"), "k").0, 0);
    }
}

#[test]
fn a_gateway_alone_ends_a_burst_exactly_on_the_quota_and_remembers_the_refusal() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let limit = limit("l", "300/7d", "");
    let gateway = Gateway::start(text(&[&server], &upstream, LONG, &[&limit]));
    assert_eq!(admitted(&burst(&[gateway.port], &vec![request("GET", "/", &[("x-key", "k")]); 500])), 300);
    let before = script_calls(&server);
    let mut client = Connection::open(gateway.port);
    let waits: Vec<u64> =
        (0..200).map(|_| client.get("/", &[("x-key", "k")]).json()["retry_after_ms"].as_u64().unwrap()).collect();
    assert_eq!(script_calls(&server), before, "two hundred refusals, and nobody asked");
    assert!(waits.is_sorted_by(|earlier, later| later <= earlier) && waits[199] < waits[0], "a wait shrinks with time");
    assert!(decided_by(&gateway, "denial_cache") >= 200.0 && decided_by(&gateway, "lease") > 0.0);
}

#[test]
fn remaining_falls_by_one_from_answer_to_answer_whoever_answers() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    for algorithm in ["fixed_window", "sliding_window_counter", "token_bucket", "sliding_window_log"] {
        let limit = limit(algorithm, "100/7d", &format!(", algorithm = \"{algorithm}\""));
        let gateway = Gateway::start(text(&[&server], &upstream, LONG, &[&limit]));
        let mut client = Connection::open(gateway.port);
        let told: Vec<u64> =
            (0..101).map(|_| client.get("/", &[("x-key", "k")]).number("x-ratelimit-remaining")).collect();
        assert_eq!(told, (0..100).rev().chain([0]).collect::<Vec<u64>>(), "{algorithm}");
        let leased = decided_by(&gateway, "lease");
        assert_eq!(leased > 0.0, algorithm != "sliding_window_log", "{algorithm}: a log is never leased");
    }
}

#[test]
fn a_lease_goes_back_by_itself_on_reload_and_on_drain() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let limit = limit("l", "1000/7d", "");
    let other = Gateway::start(text(&[&server], &upstream, LONG, &[&limit]));
    let left = |key: &str| other.counter("p/l", key).0;
    let long = text(&[&server], &upstream, LONG, &[&limit]);
    let mut gateway = Gateway::start(long.clone());

    assert_eq!(admitted(&spend(&gateway, "reload", 12)), 12);
    assert!(left("reload") < 988, "a part is leased");
    assert_eq!(gateway.counter("p/l", "reload").0, 988, "what a gateway holds it does not count as used");
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(left("reload"), 988, "it is back when the reload is answered");

    assert_eq!(admitted(&spend(&gateway, "drain", 12)), 12);
    assert!(left("drain") < 988);
    gateway.signal("-TERM");
    assert!(gateway.ends().success());
    assert_eq!(left("drain"), 988);

    let short = Gateway::start(text(&[&server], &upstream, "300ms", &[&limit]));
    assert_eq!(admitted(&spend(&short, "ttl", 12)), 12);
    eventually("it goes back when it ends", || left("ttl") == 988);
    assert_eq!(short.metric("staunch_lease_units_lost_total", &[]), 0.0);
}

#[test]
fn a_refusal_by_one_tier_leaves_the_lease_of_the_other_as_it_was() {
    let (servers, upstream) = ([RedisServer::start(), RedisServer::start()], Upstream::start());
    let shared = "{ name = \"shared\", key = \"global\", quota = \"1000/7d\" }";
    let own = limit("own", "1/7d", "");
    let gateway = Gateway::start(text(&[&servers[0], &servers[1]], &upstream, LONG, &[shared, &own]));
    let asked = |key: &str| Connection::open(gateway.port).get("/", &[("x-key", key)]).status;
    for client in 0..40 {
        // The second of each client is refused by its own limit: by the store or by memory, for all the shared lease has.
        let key = format!("client-{client}");
        assert_eq!([asked(&key), asked(&key), asked(&key)], [200, 429, 429]);
    }
    assert!(decided_by(&gateway, "lease") > 0.0);
    eventually("forty were admitted, and forty are used", || gateway.counter("p/shared", "").0 == 960);
}

#[test]
fn a_shadow_limit_is_counted_alike_where_the_cache_answers() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let enforced = limit("enforced", "20/7d", "");
    let shadow = limit("shadow", "5/7d", ", mode = \"shadow\"");
    for (ttl, cached) in [("0ms", false), (LONG, true)] {
        server.ask();
        let _: () = redis::cmd("FLUSHALL").query(&mut server.ask()).unwrap();
        let gateway = Gateway::start(text(&[&server], &upstream, ttl, &[&enforced, &shadow]));
        assert_eq!(admitted(&spend(&gateway, "k", 30)), 20);
        let count = |limit: &str, decision: &str| {
            let labels = [format!("limit=\"{limit}\""), format!("decision=\"{decision}\"")];
            gateway.metric("staunch_decisions_total", &[&labels[0], &labels[1]])
        };
        assert_eq!((count("enforced", "allowed"), count("enforced", "limited")), (20.0, 10.0), "ttl {ttl}");
        assert_eq!((count("shadow", "allowed"), count("shadow", "shadow_limited")), (5.0, 25.0), "ttl {ttl}");
        assert_eq!(decided_by(&gateway, "store") == 60.0, !cached);
    }
}

#[test]
fn a_lease_in_hand_is_spent_while_its_shard_is_away_and_then_the_failure_action_holds() {
    let (mut server, upstream) = (RedisServer::start(), Upstream::start());
    let limit = limit("l", "1000/7d", "");
    let gateway = Gateway::start(text(&[&server], &upstream, LONG, &[&limit]));
    // Asks 1, 2, 4, 8, 16: the last one leases as many as were used before it.
    assert_eq!(admitted(&spend(&gateway, "k", 16)), 16);
    server.kill();
    let after = spend(&gateway, "k", 30);
    let spent = after.iter().take_while(|status| **status == 200).count();
    assert_eq!(spent, 15, "{after:?}");
    assert!(after[spent..].iter().all(|status| *status == 503), "{after:?}");
}

#[test]
fn a_lease_whose_reply_was_lost_is_counted() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let link = runtime.block_on(Link::to(server.address()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let carrying = std::thread::spawn(move || drop(runtime.block_on(ended)));
    let limit = limit("l", "1000/7d", "");
    let text = text(&[&server], &upstream, LONG, &[&limit]);
    let other = Gateway::start(text.as_str());
    // One core: it has its connection when the replies begin to be lost.
    let gateway = Setup::new(text.replace(&server.url(), &link.url())).arguments(&["--workers", "1"]).start();
    assert_eq!(admitted(&spend(&gateway, "k", 12)), 12);
    link.set(DROP_REPLIES);
    // What is in hand is spent; then one is charged, with a lease, and nobody hears of it.
    let mut client = Connection::open(gateway.port);
    let mut spent = 12;
    while client.get("/", &[("x-key", "k")]).status == 200 {
        spent += 1;
    }
    let missing = 1000 - spent - 1 - other.counter("p/l", "k").0;
    assert!(missing > 0);
    assert_eq!(gateway.metric("staunch_lease_units_lost_total", &[]).to_string(), missing.to_string());
    drop(end);
    carrying.join().unwrap();
}

#[test]
fn while_its_shard_is_away_a_key_goes_on_from_what_its_gateway_knows_of_it() {
    let upstream = Upstream::start();
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"] {
        let mut server = RedisServer::start();
        let limit = limit("l", "10/7d", &format!(", algorithm = \"{algorithm}\""));
        let text = text(&[&server], &upstream, LONG, &[&limit]).replace("\"closed\"", "\"local\"");
        let gateway = Gateway::start(text);
        assert_eq!(admitted(&spend(&gateway, "k", 7)), 7);
        assert_eq!(admitted(&spend(&gateway, "used up", 12)), 10);
        server.kill();
        assert_eq!(admitted(&spend(&gateway, "k", 12)), 3, "{algorithm}");
        assert_eq!(admitted(&spend(&gateway, "used up", 3)), 0, "{algorithm}");
        assert_eq!(admitted(&spend(&gateway, "unknown", 12)), 10, "{algorithm}");
        assert!(decided_by(&gateway, "local") > 0.0);
    }
}

#[test]
fn a_cache_of_one_key_refuses_and_admits_as_one_of_many() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let limit = limit("l", "20/7d", "");
    let text = text(&[&server], &upstream, LONG, &[&limit]).replace("[policies.p]", "capacity = 1\n[policies.p]");
    let gateway = Gateway::start(text);
    for key in ["a", "b", "c"] {
        assert_eq!(admitted(&spend(&gateway, key, 30)), 20, "{key}");
    }
    assert!(gateway.metric("staunch_hot_keys", &[]) <= 1.0);
}
