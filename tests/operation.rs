//! What an operator sees: metrics, status, the worst keys, counters, logs; and what nobody sees.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Connection, request};
use support::gateway::{Gateway, Setup, TOKEN};
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

const ROUTES: &str = r#"
[[policies.p.limits]]
name = "by-key"
key = "header:x-key"
quota = "2/7d"
exempt = ["staff-of-ours"]
overrides = { "crawler" = { quota = "0/1s" } }
[[policies.p.limits]]
name = "by-token"
key = "bearer"
quota = "1/7d"
mode = "shadow"
[policies.ip]
limits = [{ name = "by-ip", key = "client_ip", quota = "2/7d" }]
[[routes]]
name = "things"
path = "/things/*"
upstream = "up"
policies = ["p"]
[[routes]]
name = "addresses"
path = "/addresses"
upstream = "up"
policies = ["ip"]
[[routes]]
name = "gone"
path = "/gone"
upstream = "up"
"#;

const SECRETS: [&str; 5] =
    ["a-clients-own-key", "a-bearers-token", "a-query-value", "a-redis-password", "staff-of-ours-header"];

/// Every outcome a client can bring about has been seen once.
fn busy(format: &str) -> (Gateway, Upstream, RedisServer) {
    let (server, upstream) = (RedisServer::start_with(&["--requirepass", SECRETS[3]]), Upstream::start());
    upstream.on("/gone", support::upstream::Reply::Close);
    let text = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [{{ name = \"alive\", url = \"redis://:${{SECRET}}@127.0.0.1:{}\" }}]\n\
         timeout = \"20s\"\n{}{ROUTES}",
        server.port(),
        upstream.table()
    );
    let setup = Setup::new(text).variable("SECRET", SECRETS[3]).arguments(&["--log-format", format]);
    let gateway = setup.start();
    eventually("contact", || gateway.metric("staunch_store_up", &[]) > 0.5);
    let authorization = format!("Bearer {}", SECRETS[1]);
    let mut client = Connection::open(gateway.port);
    for key in [SECRETS[0], SECRETS[0], SECRETS[0], "staff-of-ours"] {
        let path = format!("/things/x?secret={}", SECRETS[2]);
        client.get(&path, &[("x-key", key), ("authorization", &authorization)]);
    }
    client.get("/things/without-any-key", &[]);
    for _ in 0..3 {
        client.get("/addresses", &[]);
    }
    client.get("/gone", &[]);
    client.get("/nowhere", &[]);
    client.get("/things/%2F", &[]);
    (gateway, upstream, server)
}

#[test]
fn every_metric_of_the_contract_is_there_and_counts_what_happened() {
    let (gateway, _upstream, _server) = busy("text");
    let names = [
        "staunch_requests_total",
        "staunch_request_duration_seconds_count",
        "staunch_upstream_duration_seconds_count",
        "staunch_decisions_total",
        "staunch_decision_duration_seconds_count",
        "staunch_store_requests_total",
        "staunch_store_duration_seconds_count",
        "staunch_store_up",
        "staunch_store_degraded",
        "staunch_hot_keys",
        "staunch_memory_keys",
        "staunch_config_last_reload_timestamp_seconds",
        "staunch_build_info",
        "staunch_connections_active",
        "staunch_connections_rejected_total",
    ];
    let page = gateway.metrics();
    for name in names {
        assert!(page.lines().any(|line| line.starts_with(name)), "no {name}");
    }
    assert_eq!(gateway.reload().status, 200);
    let close = |name: &str, labels: &[&str], expected: f64| {
        let seen = gateway.metric(name, labels);
        assert!((seen - expected).abs() < 0.5, "{name} {labels:?}: {seen}, not {expected}");
    };
    close("staunch_config_reloads_total", &["result=\"ok\""], 1.0);
    close("staunch_requests_total", &["route=\"things\"", "outcome=\"forwarded\""], 4.0);
    close("staunch_requests_total", &["route=\"things\"", "outcome=\"limited\""], 1.0);
    close("staunch_requests_total", &["route=\"addresses\"", "outcome=\"limited\""], 1.0);
    close("staunch_requests_total", &["route=\"gone\"", "outcome=\"upstream_error\""], 1.0);
    close("staunch_requests_total", &["outcome=\"no_route\""], 1.0);
    close("staunch_requests_total", &["outcome=\"bad_request\""], 1.0);
    close("staunch_requests_total", &[], 11.0);
    let decided = |limit, decision, expected| {
        let labels = [format!("limit=\"{limit}\""), format!("decision=\"{decision}\"")];
        close("staunch_decisions_total", &[&labels[0], &labels[1]], expected);
    };
    decided("by-key", "allowed", 2.0);
    decided("by-key", "limited", 1.0);
    decided("by-key", "exempt", 1.0);
    decided("by-key", "skipped", 1.0);
    decided("by-token", "allowed", 1.0);
    decided("by-token", "shadow_limited", 3.0);
    let _kept = Connection::open(gateway.port);
    eventually("one open connection", || (gateway.metric("staunch_connections_active", &[]) - 1.0).abs() < 0.5);
    close("staunch_store_up", &["shard=\"alive\""], 1.0);
    assert!(gateway.metric("staunch_store_requests_total", &["shard=\"alive\""]) >= 1.0);
}

#[test]
fn no_secret_and_no_clients_key_is_seen_anywhere() {
    for format in ["text", "json"] {
        let (mut gateway, _upstream, server) = busy(format);
        gateway.rewrite(&format!("{ROUTES}\n[upstreams.up]\nendpoints = [\"http://user:{}@nowhere\"]\n", SECRETS[3]));
        gateway.reload();
        let pages = ["/metrics", "/status", "/", "/top", "/readyz"];
        let mut told: String = pages.iter().map(|page| gateway.ask_admin(page).text()).collect();
        gateway.signal("-TERM");
        gateway.ends();
        eventually("the end of the log", || gateway.log().contains("stopped"));
        told += &gateway.log();
        for secret in SECRETS.iter().chain([&TOKEN]) {
            assert!(!told.contains(secret), "{secret} in {format}:\n{told}");
        }
        // The node holds digests only.
        let mut node = redis::Client::open(format!("redis://:{}@127.0.0.1:{}", SECRETS[3], server.port()))
            .unwrap()
            .get_connection()
            .unwrap();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut node).unwrap();
        assert!(!keys.is_empty());
        for key in keys {
            let shown = String::from_utf8_lossy(&key).into_owned();
            let octets: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut node).unwrap();
            let value = String::from_utf8_lossy(&octets).into_owned();
            for secret in &SECRETS {
                assert!(!shown.contains(secret) && !value.contains(secret), "{secret} in {shown}");
            }
        }
    }
}

#[test]
fn a_request_that_is_refused_is_found_in_the_log_by_the_id_that_its_client_gave_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.table() + ROUTES);
    for (id, kept) in [("id-of-the-first", true), ("id-of-the-third", true), ("an id, ill-formed", false)] {
        for _ in 0..3 {
            let mut client = Connection::open(gateway.port);
            client.send(request("GET", "/addresses", &[("x-request-id", id)]));
            client.answer();
        }
        let found = || {
            gateway.log().lines().any(|line| line.contains("status=429") && line.contains(&format!("request_id={id}")))
        };
        eventually("the line", || found() == kept);
    }
}

#[test]
fn metric_labels_hold_no_clients_address() {
    let (gateway, _upstream, _server) = busy("text");
    assert!(!gateway.metrics().contains("127.0.0.1"));
    let lines = gateway.metrics().lines().count();
    for i in 0..300 {
        gateway.get_as(&format!("yet another key {i}"), &format!("/things/{i}"));
    }
    assert_eq!(gateway.metrics().lines().count(), lines, "labels grow with clients");
}

#[test]
fn an_access_line_names_route_decision_and_limit() {
    let (gateway, _upstream, _server) = busy("text");
    eventually("all lines", || gateway.log().lines().filter(|line| line.contains(" access ")).count() == 11);
    let log = gateway.log();
    let refused: Vec<_> = log.lines().filter(|line| line.contains("outcome=limited")).collect();
    assert_eq!(refused.len(), 2);
    for part in [
        "client=127.0.0.1",
        "method=GET",
        "path=/things/x ",
        "route=things",
        "status=429",
        "policy=p",
        "limit=by-key",
        "decision=limited",
    ] {
        assert!(refused[0].contains(part), "{part} in {}", refused[0]);
    }
    assert!(refused[1].contains("limit=by-ip"), "{}", refused[1]);
    let named = |parts: &[&str]| log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    assert_eq!(named(&["route=things", "policy=p", "limit=by-key", "decision=allowed"]), 2, "{log}");
    // Where no limit counted in earnest, the shadow is what there is to tell.
    assert_eq!(named(&["route=things", "limit=by-token", "decision=shadow_limited"]), 1, "{log}");
    assert_eq!(named(&["path=/things/without-any-key", "limit=by-key", "decision=skipped"]), 1, "{log}");
    assert_eq!(named(&["store=degraded"]), 0);
    assert!(log.lines().any(|line| line.contains("outcome=no_route") && line.contains("status=404")));
}

#[test]
fn the_log_in_json_is_an_object_a_line() {
    let (gateway, _upstream, _server) = busy("json");
    eventually("all lines", || gateway.log().lines().filter(|line| line.contains("\"access\"")).count() == 11);
    let log = gateway.log();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()));
    let refused: Vec<_> = lines.iter().filter(|line| line["outcome"] == "limited").collect();
    assert_eq!(refused.len(), 2);
    assert_eq!(
        [
            &refused[0]["route"],
            &refused[0]["policy"],
            &refused[0]["limit"],
            &refused[0]["decision"],
            &refused[0]["path"]
        ],
        ["things", "p", "by-key", "limited", "/things/x"]
    );
    assert_eq!(refused[0]["status"], 429);
}

#[test]
fn access_lines_can_be_kept_to_refusals_or_left_out() {
    for (access, expected) in [("refused", 1), ("off", 0)] {
        let upstream = Upstream::start();
        let mut gateway = Gateway::start(format!("[log]\naccess = \"{access}\"\n{}{ROUTES}", upstream.table()));
        for _ in 0..3 {
            gateway.get_as("k", "/things/x");
        }
        gateway.signal("-TERM");
        gateway.ends();
        eventually("the end of the log", || gateway.log().contains("stopped"));
        let log = gateway.log();
        assert_eq!(log.lines().filter(|line| line.contains(" access ")).count(), expected, "{log}");
    }
}

#[test]
fn what_cannot_be_read_as_a_request_is_logged_and_counted_too() {
    let upstream = Upstream::start();
    let text = format!("{}{ROUTES}", upstream.table());
    let gateway = Setup::new(text).listener("header_timeout = \"50ms\"\n").start();
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(70_000));
    for (octets, status) in [("GET /\r\n\r\n", 400), ("GET / HTTP/1.1\r\n\r\n", 400), (&large, 431), ("GET / HT", 408)]
    {
        let mut client = Connection::open(gateway.port);
        client.send(octets);
        assert_eq!(client.answer().status, status);
    }
    assert!((gateway.metric("staunch_requests_total", &["route=\"\"", "outcome=\"bad_request\""]) - 4.0).abs() < 0.5);
    let logged = |status| gateway.log().matches(&format!(" status={status} outcome=bad_request ")).count();
    eventually("a line for each", || [400, 431, 408].map(logged) == [2, 1, 1]);
    assert_eq!(gateway.log().matches(" client=127.0.0.1 ").count(), 4);
}

#[test]
fn a_password_in_the_host_is_not_logged() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(format!("{}{ROUTES}", upstream.table()));
    for head in
        ["GET / HTTP/1.1\r\nhost: me:hush@shop\r\n\r\n", "GET http://me:hush@shop/ HTTP/1.1\r\nhost: shop\r\n\r\n"]
    {
        let mut client = Connection::open(gateway.port);
        client.send(head);
        assert_eq!(client.answer().status, 400);
    }
    eventually("both lines", || gateway.log().matches(" host=shop ").count() == 2);
    assert!(!gateway.log().contains("hush"));
}

#[test]
fn the_status_page_tells_what_there_is() {
    let (gateway, upstream, _server) = busy("text");
    let status = gateway.ask_admin("/status").json();
    assert_eq!((status["state"].as_str(), status["store"]["backend"].as_str()), (Some("ready"), Some("redis")));
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["configuration"]["file"], gateway.file.to_str().unwrap());
    assert!(status["configuration"]["hash"].is_string() && status["configuration"]["loaded_at"].is_string());
    assert_eq!(status["listeners"][0]["address"], format!("127.0.0.1:{}", gateway.port));
    let shard = &status["store"]["shards"][0];
    assert_eq!((shard["name"].as_str(), shard["state"].as_str()), (Some("alive"), Some("up")));
    let endpoint = &status["upstreams"][0]["endpoints"][0];
    assert_eq!(endpoint["address"], format!("127.0.0.1:{}", upstream.port));
    let limits = status["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 3);
    let by_key = limits.iter().find(|limit| limit["limit"] == "by-key").unwrap();
    assert_eq!((by_key["quota"].as_str(), by_key["mode"].as_str()), (Some("2/7d"), Some("enforce")));
    assert_eq!((by_key["totals"]["allowed"].as_u64(), by_key["totals"]["limited"].as_u64()), (Some(2), Some(1)));
    let page = gateway.ask_admin("/");
    assert!(page.status == 200 && page.field("content-type").unwrap().starts_with("text/html"));
    assert_eq!((gateway.ask_admin("/healthz").status, gateway.ask_admin("/readyz").status), (200, 200));
    assert_eq!(gateway.ask_admin("/nothing").status, 404);
}

#[test]
fn the_keys_refused_most_are_told_and_those_that_may_be_secret_are_not() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.table() + ROUTES);
    let mut client = Connection::open(gateway.port);
    for _ in 0..12 {
        client.get("/addresses", &[]);
    }
    for _ in 0..7 {
        client.get("/things/x", &[("x-key", SECRETS[0])]);
    }
    for _ in 0..30 {
        assert_eq!(client.get("/things/x", &[("x-key", "crawler")]).status, 429);
    }
    let top = gateway.ask_admin("/top").json();
    let (always, keys) = top["keys"].as_array().unwrap().split_first().unwrap();
    assert_eq!((always["limit"].as_str(), always["refusals"].as_u64()), (Some("by-key"), Some(30)), "{top}");
    let told = |limit: &str| keys.iter().find(|key| key["limit"] == limit).unwrap();
    assert_eq!((told("by-ip")["key"].as_str(), told("by-ip")["refusals"].as_u64()), (Some("127.0.0.1"), Some(10)));
    assert_eq!(told("by-key")["refusals"].as_u64(), Some(5));
    assert!(told("by-key")["key"].as_str().unwrap().starts_with('#'), "{top}");
    assert_eq!(keys[0]["limit"], "by-ip", "worst first");
}

#[test]
fn a_counter_is_shown_and_reset_by_those_who_may() {
    let server = RedisServer::start();
    let redis =
        format!("[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntimeout = \"20s\"\n", server.url());
    for store in ["", redis.as_str()] {
        let upstream = Upstream::start();
        let gateway = Gateway::start(format!("{store}{}{ROUTES}", upstream.table()));
        let key = "a key/with ä & = %";
        let encoded = "a%20key/with%20%C3%A4%20%26%20%3D%20%25";
        assert_eq!(gateway.counter("p/by-key", encoded).0, 2);
        for expected in [200, 200, 429] {
            assert_eq!(gateway.get_as(key, "/things/x").status, expected);
        }
        assert_eq!(gateway.counter("p/by-key", encoded).0, 0);
        let delete = |authorization: &str| {
            let mut admin = Connection::open(gateway.admin);
            let path = format!("/limits/p/by-key?key={encoded}");
            admin.send(request("DELETE", &path, &[("authorization", authorization)]));
            admin.answer().status
        };
        assert_eq!((delete("Bearer wrong"), delete("")), (401, 401));
        assert_eq!(gateway.get_as(key, "/things/x").status, 429);
        assert_eq!(delete(&format!("Bearer {TOKEN}")), 200);
        assert_eq!(gateway.counter("p/by-key", encoded).0, 2);
        assert_eq!(gateway.get_as(key, "/things/x").status, 200);
        assert_eq!(gateway.ask_admin("/limits/p/nothing?key=k").status, 404);
    }
}

#[test]
fn counters_that_a_full_store_forgot_are_counted_and_told() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(format!("[store]\nmax_keys = 1\n{}{ROUTES}", upstream.table()));
    gateway.get_as("first", "/things/x");
    assert!(gateway.metric("staunch_memory_evictions_total", &[]) < 0.5);
    gateway.get_as("second", "/things/x");
    eventually("the eviction is counted", || gateway.metric("staunch_memory_evictions_total", &[]) > 0.5);
    eventually("and told", || gateway.log().contains("store.max_keys is too small"));
}
