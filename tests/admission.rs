//! How many requests reach the upstream: over sockets, over several gateways and nodes, whatever comes at once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::fmt::Write as _;
use support::client::{burst, request};
use support::gateway::{Gateway, Setup};
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"];

/// The period is so long that no window ends and no unit comes back while a test runs. The time-out is no test's concern.
fn shared(servers: &[RedisServer]) -> String {
    let nodes: Vec<String> =
        servers.iter().enumerate().map(|(i, s)| format!("{{ name = \"n{i}\", url = \"{}\" }}", s.url())).collect();
    format!(
        "[store]\nbackend = \"redis\"\non_failure = \"closed\"\n\
         [store.redis]\nnodes = [{}]\ntimeout = \"20s\"\n[log]\naccess = \"off\"\n",
        nodes.join(", ")
    )
}

/// A route `/ALGORITHM` for each algorithm, with a limit of `units` a week for each `x-key`.
fn by_algorithm(units: u64) -> String {
    ALGORITHMS.iter().fold(String::new(), |mut text, name| {
        write!(
            text,
            "[policies.{name}]\nlimits = [{{ name = \"l\", key = \"header:x-key\", algorithm = \"{name}\", quota = \"{units}/7d\" }}]\n\
             [[routes]]\npath = \"/{name}\"\nupstream = \"up\"\npolicies = [\"{name}\"]\n"
        )
        .unwrap();
        text
    })
}

fn gateways(count: usize, text: &str) -> Vec<Gateway> {
    (0..count).map(|_| Gateway::start(text)).collect()
}

fn ports(gateways: &[Gateway]) -> Vec<u16> {
    gateways.iter().map(|gateway| gateway.port).collect()
}

fn tally(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|seen| **seen == status).count()
}

/// Every algorithm: a thousand at once for one key, dealt out to the gateways.
fn exactly_the_limit_passes(ports: &[u16], upstream: &Upstream, limit: usize) {
    for algorithm in ALGORITHMS {
        let path = format!("/{algorithm}");
        let before = upstream.count(&path);
        let key = format!("key of {} for {algorithm}", ports.len());
        let statuses = burst(ports, &vec![request("GET", &path, &[("x-key", &key)]); 1000]);
        let passed = upstream.count(&path) - before;
        assert_eq!(passed, limit, "{algorithm}, {} gateways", ports.len());
        assert_eq!((tally(&statuses, 200), tally(&statuses, 429)), (limit, 1000 - limit), "{algorithm}");
    }
}

#[test]
fn of_a_thousand_at_once_exactly_the_limit_passes_in_memory() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(format!("[log]\naccess = \"off\"\n{}{}", upstream.table(), by_algorithm(137)));
    exactly_the_limit_passes(&[gateway.port], &upstream, 137);
}

#[test]
fn of_a_thousand_at_once_exactly_the_limit_passes_with_one_node_and_one_to_three_gateways() {
    one_to_three_gateways(&[RedisServer::start()]);
}

#[test]
fn of_a_thousand_at_once_exactly_the_limit_passes_with_three_nodes_and_one_to_three_gateways() {
    one_to_three_gateways(&[RedisServer::start(), RedisServer::start(), RedisServer::start()]);
}

fn one_to_three_gateways(servers: &[RedisServer]) {
    let upstream = Upstream::start();
    let gateways = gateways(3, &(shared(servers) + &upstream.table() + &by_algorithm(137)));
    let ports = ports(&gateways);
    for count in 1..=3 {
        exactly_the_limit_passes(&ports[..count], &upstream, 137);
    }
    let lives: Vec<_> = servers.iter().flat_map(RedisServer::lives).collect();
    assert!(lives.len() >= 12, "a counter for each burst, and the heartbeats: {}", lives.len());
    assert!(lives.iter().all(|(_, left)| *left > 0), "a key without expiry: {lives:?}");
}

#[test]
fn a_client_that_visits_three_gateways_in_turn_has_one_budget() {
    let servers = [RedisServer::start()];
    let upstream = Upstream::start();
    let gateways = gateways(3, &(shared(&servers) + &upstream.table() + &by_algorithm(10)));
    for algorithm in ALGORITHMS {
        let path = format!("/{algorithm}");
        for visit in 0..18 {
            let answer = gateways[visit % 3].get_as("a visitor", &path);
            assert_eq!(answer.status, if visit < 10 { 200 } else { 429 }, "{algorithm}, visit {visit}");
            let left = answer.number("x-ratelimit-remaining");
            assert!(left <= 9_u64.saturating_sub(visit as u64), "{algorithm}: told {left} at visit {visit}");
        }
        assert_eq!(upstream.count(&path), 10);
    }
}

#[test]
fn of_two_first_requests_at_the_same_time_on_two_gateways_one_passes_and_never_none() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let upstream = Upstream::start();
    let gateways = gateways(2, &(shared(&servers) + &upstream.table() + &by_algorithm(1)));
    for algorithm in ALGORITHMS {
        let path = format!("/{algorithm}");
        let pairs = (0..400).map(|i| request("GET", &path, &[("x-key", &format!("newcomer {}", i / 2))]));
        let statuses = burst(&ports(&gateways), &pairs.collect::<Vec<_>>());
        for pair in statuses.chunks(2) {
            assert_eq!((tally(pair, 200), tally(pair, 429)), (1, 1), "{algorithm}: {statuses:?}");
        }
        assert_eq!(upstream.count(&path), 200, "{algorithm}");
    }
}

#[test]
fn gateways_whose_clocks_are_hours_apart_admit_what_one_would() {
    let servers = [RedisServer::start()];
    let upstream = Upstream::start();
    let text = shared(&servers) + &upstream.table() + &by_algorithm(100);
    let clocks = ["-1h", "+1h", "+0"];
    let gateways: Vec<_> = clocks.iter().map(|offset| Setup::new(text.as_str()).clock(offset).start()).collect();
    let told = |gateway: &Gateway| gateway.get("/").field("date").unwrap().to_owned();
    assert_ne!(told(&gateways[0])[..22], told(&gateways[1])[..22], "the clocks were not turned");
    for algorithm in ALGORITHMS {
        let path = format!("/{algorithm}");
        let statuses = burst(&ports(&gateways), &vec![request("GET", &path, &[("x-key", "at once")]); 300]);
        assert_eq!((tally(&statuses, 200), upstream.count(&path)), (100, 100), "{algorithm}");
        for visit in 0..150 {
            let answer = gateways[visit % 3].get_as("in turn", &path);
            assert_eq!(answer.status, if visit < 100 { 200 } else { 429 }, "{algorithm}, visit {visit}");
        }
    }
}

#[test]
fn a_first_request_is_never_refused() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let upstream = Upstream::start();
    let in_memory = Gateway::start(upstream.table() + &by_algorithm(1));
    let in_redis = Gateway::start(shared(&servers) + &upstream.table() + &by_algorithm(1));
    for port in [in_memory.port, in_redis.port] {
        for algorithm in ALGORITHMS {
            let path = format!("/{algorithm}");
            let fresh = (0..300).map(|i| request("GET", &path, &[("x-key", &format!("fresh {i}"))]));
            let statuses = burst(&[port], &fresh.collect::<Vec<_>>());
            assert_eq!(tally(&statuses, 200), 300, "{algorithm}");
        }
    }
}

const POLICIES: &str = r#"
[policies.shared]
limits = [{ name = "l", key = "header:x-key", quota = "4/7d" }]
[policies.apart]
limits = [{ name = "l", key = ["header:x-key", "route"], quota = "4/7d" }]
[policies.shadow]
limits = [
    { name = "shadow", key = "header:x-key", quota = "2/7d", mode = "shadow" },
    { name = "enforced", key = "header:x-key", quota = "5/7d" },
]
[policies.priced]
limits = [{ name = "l", key = "header:x-key", quota = "10/7d", cost = 4 }]

[[policies.exceptions.limits]]
name = "l"
key = "header:x-key"
quota = "2/7d"
exempt = ["staff"]
overrides = { "partner" = { quota = "6/7d" }, "crawler" = { quota = "0/1s" }, "ops" = "unlimited" }

[policies.skip]
limits = [{ name = "l", key = "header:x-key", quota = "2/7d", on_missing_key = "skip" }]
[policies.reject]
limits = [{ name = "l", key = "header:x-key", quota = "2/7d", on_missing_key = "reject" }]
[policies.by_address]
limits = [{ name = "l", key = "header:x-key", quota = "2/7d", on_missing_key = "client_ip" }]
[policies.together]
limits = [{ name = "l", key = "header:x-key", quota = "2/7d", on_missing_key = "shared" }]
"#;

fn one_gateway(routes: &[(&str, &str)]) -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    let routes = routes.iter().fold(String::new(), |text, (path, policy)| {
        text + &format!("[[routes]]\npath = \"{path}\"\nupstream = \"up\"\npolicies = [\"{policy}\"]\n")
    });
    (Gateway::start(upstream.table() + POLICIES + &routes), upstream)
}

fn statuses(gateway: &Gateway, key: &str, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.get_as(key, path).status).collect()
}

#[test]
fn two_routes_with_one_policy_share_its_counters_and_the_route_in_the_key_separates_them() {
    let routes = [("/a", "shared"), ("/b", "shared"), ("/c", "apart"), ("/d", "apart")];
    let (gateway, _upstream) = one_gateway(&routes);
    assert_eq!(statuses(&gateway, "k", "/a", 3), [200, 200, 200]);
    assert_eq!(statuses(&gateway, "k", "/b", 2), [200, 429]);
    assert_eq!(statuses(&gateway, "k", "/a", 1), [429]);
    assert_eq!(statuses(&gateway, "k", "/c", 5), [200, 200, 200, 200, 429]);
    assert_eq!(statuses(&gateway, "k", "/d", 5), [200, 200, 200, 200, 429], "each route its own");
}

#[test]
fn a_shadow_limit_counts_and_decides_nothing() {
    let (gateway, upstream) = one_gateway(&[("/s", "shadow")]);
    assert_eq!(statuses(&gateway, "k", "/s", 7), [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(upstream.count("/s"), 5);
    let answer = gateway.get_as("another", "/s");
    assert_eq!(answer.field("ratelimit-policy"), Some("\"enforced\";q=5;w=604800"), "a shadow is not shown");
    eventually("the shadow's refusals counted", || {
        gateway.metric("staunch_decisions_total", &["limit=\"shadow\"", "decision=\"shadow_limited\""]) >= 3.0
    });
}

#[test]
fn overrides_exempt_keys_and_costs_are_kept() {
    let (gateway, upstream) = one_gateway(&[("/x", "exceptions"), ("/p", "priced")]);
    assert_eq!(statuses(&gateway, "anyone", "/x", 3), [200, 200, 429]);
    assert_eq!(statuses(&gateway, "partner", "/x", 7), [200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&gateway, "crawler", "/x", 2), [429, 429]);
    assert_eq!(statuses(&gateway, "staff", "/x", 5), [200; 5]);
    assert_eq!(statuses(&gateway, "ops", "/x", 5), [200; 5]);
    let exempt = gateway.get_as("staff", "/x");
    assert_eq!(exempt.field("x-ratelimit-limit"), None, "there is no limit to show");
    assert_eq!(gateway.get_as("crawler", "/x").field("retry-after"), None, "no wait would help");
    assert_eq!(upstream.count("/x"), 2 + 6 + 5 + 5 + 1);
    let priced: Vec<_> = (0..3).map(|_| gateway.get_as("k", "/p")).collect();
    assert_eq!(priced.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(priced[1].number("x-ratelimit-remaining"), 2);
}

#[test]
fn a_missing_key_is_what_the_limit_says() {
    let routes = [("/skip", "skip"), ("/reject", "reject"), ("/address", "by_address"), ("/shared", "together")];
    let (gateway, upstream) = one_gateway(&routes);
    let without = |path: &str| -> Vec<u16> { (0..3).map(|_| gateway.get(path).status).collect() };
    assert_eq!(without("/skip"), [200, 200, 200]);
    assert_eq!(without("/reject"), [400, 400, 400]);
    assert_eq!(without("/address"), [200, 200, 429]);
    assert_eq!(without("/shared"), [200, 200, 429]);
    assert_eq!(statuses(&gateway, "", "/reject", 1), [400], "an empty value is a missing one");
    assert_eq!(statuses(&gateway, "127.0.0.1", "/address", 1), [200], "a value is never taken for an address");
    assert_eq!(upstream.count("/reject"), 0);
}
