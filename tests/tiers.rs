//! Several limits on one request, each counter on another node: the refusal of one leaves the others as they were.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Connection, burst, request};
use support::gateway::Gateway;
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

const TIERS: [&str; 3] = ["a", "b", "c"];
/// A week: nothing comes back while a test runs.
const QUOTAS: [u64; 3] = [50, 60, 70];

fn text(servers: &[RedisServer], upstream: &Upstream, algorithm: &str) -> String {
    let nodes: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    let limits: Vec<_> = TIERS
        .iter()
        .zip(QUOTAS)
        .map(|(tier, quota)| {
            format!("{{ name = \"{tier}\", key = \"header:x-{tier}\", quota = \"{quota}/7d\", algorithm = \"{algorithm}\" }}")
        })
        .collect();
    format!(
        "[store]\nbackend = \"redis\"\non_failure = \"closed\"\n[store.redis]\nnodes = [{}]\ntimeout = \"20s\"\n\
         [policies.p]\nlimits = [{}]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n{}",
        nodes.join(", "),
        limits.join(", "),
        upstream.table()
    )
}

/// A value for each tier such that every counter is on a node of its own; others for each `name`.
fn values(gateway: &Gateway, name: &str) -> [String; 3] {
    let mut nodes = Vec::new();
    TIERS.map(|tier| {
        let fresh = (0..100).find_map(|i| {
            let value = format!("{name}-{i}");
            let (_, node) = gateway.counter(&format!("p/{tier}"), &value);
            (!nodes.contains(&node)).then_some((value, node))
        });
        let (value, node) = fresh.expect("each node has its share of a hundred keys");
        nodes.push(node);
        value
    })
}

fn left(gateway: &Gateway, values: &[String; 3]) -> [u64; 3] {
    [0, 1, 2].map(|i| gateway.counter(&format!("p/{}", TIERS[i]), &values[i]).0)
}

fn fields(values: &[String; 3]) -> [(&str, &str); 3] {
    [("x-a", &values[0]), ("x-b", &values[1]), ("x-c", &values[2])]
}

#[test]
fn each_of_three_tiers_on_three_shards_is_exhausted_and_the_others_keep_what_they_had() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let upstream = Upstream::start();
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"] {
        let gateway = Gateway::start(text(&servers, &upstream, algorithm));
        for tier in 0..3 {
            // The tier under test is used up alone (the others see other keys), and then refuses what the others admit.
            let target = values(&gateway, &format!("{algorithm}-{tier}"));
            let mut client = Connection::open(gateway.port);
            for i in 0..QUOTAS[tier] {
                let elsewhere = format!("filler-{algorithm}-{tier}-{i}");
                let mut fill = fields(&target).map(|(name, _)| (name, elsewhere.as_str()));
                fill[tier].1 = &target[tier];
                assert_eq!(client.get("/", &fill).status, 200, "{algorithm}");
            }
            let mut expected = QUOTAS;
            expected[tier] = 0;
            assert_eq!(left(&gateway, &target), expected);
            let path = format!("/{algorithm}/{tier}");
            let refused = burst(&[gateway.port], &vec![request("GET", &path, &fields(&target)); 100]);
            assert_eq!(refused, [429; 100]);
            assert_eq!(upstream.count(&path), 0);
            eventually("what was taken is given back", || left(&gateway, &target) == expected);
            // Settled: it stays, and all of what the others have left can be had.
            assert_eq!(left(&gateway, &target), expected, "{algorithm}, tier {tier}");
        }
    }
}

#[test]
fn a_burst_over_three_tiers_admits_no_more_than_the_smallest_and_charges_the_others_for_that_alone() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let upstream = Upstream::start();
    let gateways: Vec<_> = (0..2).map(|_| Gateway::start(text(&servers, &upstream, "fixed_window"))).collect();
    let target = values(&gateways[0], "burst");
    let requests = vec![request("GET", "/burst", &fields(&target)); 1000];
    let ports: Vec<_> = gateways.iter().map(|gateway| gateway.port).collect();
    let admitted = burst(&ports, &requests).iter().filter(|status| **status == 200).count();
    assert_eq!(upstream.count("/burst"), admitted);
    // While what a refused one took is on its way back others may be refused wrongly (all of them, where each gateway came
    // first on another shard), but nobody is admitted wrongly.
    assert!(admitted <= 50, "{admitted}");
    let used = admitted as u64;
    let expected = QUOTAS.map(|quota| quota - used);
    eventually("the tiers hold what was admitted, and no more", || left(&gateways[0], &target) == expected);
    for i in used..50 {
        let mut client = Connection::open(gateways[0].port);
        assert_eq!(client.get("/after", &fields(&target)).status, 200, "request {i} of 50");
    }
    assert_eq!(Connection::open(gateways[1].port).get("/after", &fields(&target)).status, 429);
}

#[test]
fn the_order_of_limits_changes_no_status_and_a_refusal_tells_all_that_refused() {
    let upstream = Upstream::start();
    let tiers = [
        "{ name = \"small\", key = \"header:x-key\", quota = \"2/7d\" }",
        "{ name = \"large\", key = \"header:x-key\", quota = \"5/7d\" }",
        "{ name = \"watch\", key = \"header:x-key\", quota = \"1/7d\", mode = \"shadow\" }",
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let limits = order.map(|i| tiers[i]).join(", ");
        let text = format!(
            "[policies.p]\nlimits = [{limits}]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n{}",
            upstream.table()
        );
        let gateway = Gateway::start(text);
        let answers: Vec<_> = (0..6).map(|_| gateway.get_as("k", "/")).collect();
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 200, 429, 429, 429, 429], "{limits}");
        let last = answers.last().unwrap();
        assert_eq!(last.json()["violated-policies"], serde_json::json!(["small"]));
        assert_eq!((last.number("x-ratelimit-limit"), last.number("x-ratelimit-remaining")), (2, 0));
        assert_eq!(gateway.counter("p/large", "k").0, 3, "a refusal drains no other tier");
    }
}

#[test]
fn a_tier_whose_shard_is_away_closes_the_request_and_the_others_keep_what_they_had() {
    let (mut servers, upstream) =
        ([RedisServer::start(), RedisServer::start(), RedisServer::start()], Upstream::start());
    let gateway = Gateway::start(text(&servers, &upstream, "token_bucket").replace("20s", "2s"));
    let target = values(&gateway, "away");
    let (_, home) = gateway.counter("p/b", &target[1]);
    let away = servers.iter().position(|server| server.url().ends_with(&home[home.len() - 5..])).unwrap();
    servers[away].kill();
    let statuses = burst(&[gateway.port], &vec![request("GET", "/closed", &fields(&target)); 50]);
    assert_eq!(statuses, [503; 50]);
    assert_eq!(upstream.count("/closed"), 0);
    let others = || [0, 2].map(|i| gateway.counter(&format!("p/{}", TIERS[i]), &target[i]).0);
    eventually("what was taken is given back", || others() == [QUOTAS[0], QUOTAS[2]]);
    servers[away].restart();
    eventually("recovery", || Connection::open(gateway.port).get("/again", &fields(&target)).status == 200);
    let used = upstream.count("/again") as u64;
    eventually("all count again", || left(&gateway, &target) == QUOTAS.map(|quota| quota - used));
}
