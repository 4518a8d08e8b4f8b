//! Which endpoint takes a request: real endpoints that die, hang, fail and come back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use serde_json::Value;
use support::client::{self, Connection, request};
use support::gateway::{Gateway, Setup};
use support::ports;
use support::upstream::{Reply, Upstream};
use support::wait::eventually;

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
/// Checked so often that a test need not wait.
const HEALTH: &str = "health = { path = \"/healthz\", interval = \"20ms\", unhealthy_after = 2, healthy_after = 2 }\n";
/// Out until the test is over.
const FOR_GOOD: &str = "ejection = { failures = 3, base_time = \"1h\", max_time = \"1h\" }\nretries = 0\n";

fn text(ports: &[u16], keys: &str) -> String {
    let urls: Vec<String> = ports.iter().map(|port| format!("\"http://127.0.0.1:{port}\"")).collect();
    format!("[upstreams.up]\nendpoints = [{}]\n{keys}\n{ROUTE}", urls.join(", "))
}

/// Served on two cores, so that what one finds has to hold for the other.
fn start(ports: &[u16], keys: &str) -> Gateway {
    Setup::new(text(ports, keys)).arguments(&["--workers", "2"]).start()
}

fn answers(upstream: &Upstream, path: &str, status: &str) {
    upstream.on(path, Reply::Bytes(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")));
}

/// What `/status` says of an endpoint.
fn endpoint(gateway: &Gateway, index: usize) -> Value {
    gateway.ask_admin("/status").json()["upstreams"][0]["endpoints"][index].clone()
}

fn state(gateway: &Gateway, index: usize) -> String {
    endpoint(gateway, index)["state"].as_str().unwrap().to_owned()
}

fn becomes(gateway: &Gateway, index: usize, wanted: &str) {
    eventually(wanted, || state(gateway, index) == wanted);
}

fn statuses(gateway: &Gateway, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.get(path).status).collect()
}

fn total(gateway: &Gateway, name: &str, label: &str) -> u64 {
    let value = gateway.metric(name, &[label]);
    format!("{value}").parse().unwrap()
}

#[test]
fn an_endpoint_whose_checks_fail_gets_no_request_and_without_any_other_the_answer_is_503() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gateway = start(&[one.port, other.port], HEALTH);
    answers(&one, "/healthz", "500 Internal Server Error");
    becomes(&gateway, 0, "unhealthy");
    assert_eq!(statuses(&gateway, "/x", 20), [200; 20]);
    assert_eq!((one.count("/x"), other.count("/x")), (0, 20));
    assert_eq!(total(&gateway, "staunch_upstream_up", "upstream=\"up\""), 1);
    assert_eq!(endpoint(&gateway, 0)["last_error"], "health check: answered 500");

    let connections = one.connections();
    answers(&other, "/healthz", "404 Not Found");
    becomes(&gateway, 1, "unhealthy");
    let answer = gateway.get("/x");
    assert_eq!((answer.status, answer.number("retry-after"), answer.json()["status"].as_u64()), (503, 1, Some(503)));
    assert_eq!((one.count("/x"), other.count("/x")), (0, 20));
    assert!(one.connections() > connections, "checks go on");

    answers(&one, "/healthz", "302 Found");
    becomes(&gateway, 0, "healthy");
    assert_eq!(gateway.get("/x").status, 200);
    assert_eq!(one.count("/x"), 1);
    assert_eq!(endpoint(&gateway, 0)["last_error"], Value::Null);
    for said in ["endpoint is unhealthy", "endpoint is healthy again"] {
        eventually(said, || gateway.log().contains(said));
    }
}

#[test]
fn a_check_is_a_get_of_its_own_connection_that_says_who_asks() {
    let upstream = Upstream::start();
    let gateway = start(&[upstream.port], HEALTH);
    eventually("checks", || upstream.count("/healthz") >= 3);
    let hits: Vec<_> = upstream.hits().into_iter().filter(|hit| hit.path() == "/healthz").collect();
    let host = format!("127.0.0.1:{}", upstream.port);
    for hit in &hits {
        assert_eq!(
            (hit.method.as_str(), hit.field("host"), hit.field("connection")),
            ("GET", Some(&*host), Some("close"))
        );
        assert!(hit.field("user-agent").unwrap().starts_with("staunch/"));
    }
    assert!(hits.windows(2).all(|pair| pair[0].connection != pair[1].connection));
    assert_eq!(total(&gateway, "staunch_upstream_duration_seconds_count", "upstream=\"up\""), 0, "no request was sent");
}

#[test]
fn an_endpoint_that_hangs_or_is_gone_is_unhealthy_until_it_is_back() {
    let (hanging, gone) = (Upstream::start(), Upstream::start());
    let port = gone.port;
    let health = HEALTH.replace("path", "timeout = \"50ms\", status = 204, path");
    answers(&hanging, "/healthz", "204 No Content");
    answers(&gone, "/healthz", "204 No Content");
    let gateway = start(&[hanging.port, port], &health);
    let gate = hanging.hold("/healthz");
    drop(gone);
    becomes(&gateway, 0, "unhealthy");
    becomes(&gateway, 1, "unhealthy");
    assert_eq!(gateway.get("/x").status, 503);
    assert!(endpoint(&gateway, 1)["last_error"].as_str().unwrap().contains("no connection"));
    let back = Upstream::start_on(port);
    assert_eq!(gateway.get("/x").status, 503, "200 is not what was asked for");
    answers(&back, "/healthz", "204 No Content");
    becomes(&gateway, 1, "healthy");
    assert_eq!(gateway.get("/x").status, 200);
    drop(gate);
}

#[test]
fn failures_in_a_row_eject_an_endpoint_and_the_others_take_its_turns() {
    let up = Upstream::start();
    let (dead, silent, failing) = (ports::free(), Upstream::start(), Upstream::start());
    silent.on("/x", Reply::Close);
    answers(&failing, "/x", "503 Service Unavailable");
    for (port, status) in [(dead, 502), (silent.port, 502), (failing.port, 503)] {
        let gateway = start(&[port, up.port], FOR_GOOD);
        let mut seen = statuses(&gateway, "/x", 40);
        seen.sort_unstable();
        let expected = [vec![200; 37], vec![status; 3]].concat();
        assert_eq!(seen, expected);
        assert_eq!((state(&gateway, 0), state(&gateway, 1)), ("ejected".to_owned(), "healthy".to_owned()));
        assert_eq!(total(&gateway, "staunch_upstream_ejections_total", &format!(":{port}\"")), 1);
        assert_eq!(total(&gateway, "staunch_upstream_up", &format!(":{port}\"")), 0);
        eventually("it is said", || gateway.log().contains("endpoint ejected"));
    }
}

#[test]
fn an_answer_of_500_ejects_nobody() {
    let (one, other) = (Upstream::start(), Upstream::start());
    answers(&one, "/x", "500 Internal Server Error");
    let gateway = start(&[one.port, other.port], FOR_GOOD);
    let failed = statuses(&gateway, "/x", 40).into_iter().filter(|status| *status == 500).count();
    assert_eq!((failed, state(&gateway, 0).as_str()), (20, "healthy"));
}

#[test]
fn an_ejection_ends_by_itself() {
    let (up, port) = (Upstream::start(), ports::free());
    let keys = "ejection = { failures = 2, base_time = \"100ms\", max_time = \"200ms\" }\nslow_start = \"50ms\"\n";
    let gateway = start(&[port, up.port], keys);
    statuses(&gateway, "/x", 8);
    let back = Upstream::start_on(port);
    eventually("requests at the endpoint that is back", || {
        assert_eq!(gateway.get("/x").status, 200);
        back.count("/x") > 0
    });
    becomes(&gateway, 0, "healthy");
    eventually("it is said", || gateway.log().contains("endpoint is tried again"));
}

#[test]
fn what_comes_back_gets_its_requests_little_by_little() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gateway = start(&[one.port, other.port], &format!("slow_start = \"1h\"\n{HEALTH}"));
    answers(&one, "/healthz", "500 Internal Server Error");
    becomes(&gateway, 0, "unhealthy");
    answers(&one, "/healthz", "200 OK");
    becomes(&gateway, 0, "healthy");
    statuses(&gateway, "/x", 400);
    // A twentieth of its weight is due, 19 of 400; 63 would be ten standard deviations more.
    assert!((1..63).contains(&one.count("/x")), "{}", one.count("/x"));
}

#[test]
fn a_single_endpoint_and_a_last_one_are_tried_however_they_fail() {
    for count in [1, 2, 3] {
        let ports: Vec<u16> = (0..count).map(|_| ports::free()).collect();
        let gateway = start(&ports, FOR_GOOD);
        assert_eq!(statuses(&gateway, "/x", 30), [502; 30], "{count}");
        let ejected = (0..count).filter(|index| state(&gateway, *index) == "ejected").count();
        assert_eq!(ejected, [0, 1, 2][count - 1]);
        let _back: Vec<Upstream> = ports.iter().map(|port| Upstream::start_on(*port)).collect();
        assert_eq!(gateway.get("/x").status, 200, "{count}");
    }
}

#[test]
fn the_endpoint_with_fewer_requests_is_taken_whichever_core_counts_them() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gates = [one.hold("/slow"), other.hold("/slow")];
    let gateway = start(&[one.port, other.port], "balance = \"least_requests\"\n");
    let mut waiting = Connection::open(gateway.port);
    waiting.send(request("GET", "/slow", &[]));
    eventually("the slow request", || one.count("/slow") + other.count("/slow") == 1);
    assert_eq!(statuses(&gateway, "/x", 20), [200; 20]);
    let (busy, idle) = if one.count("/slow") == 1 { (&one, &other) } else { (&other, &one) };
    assert_eq!((busy.count("/x"), idle.count("/x")), (0, 20));
    gates.iter().for_each(|gate| gate.notify_one());
    assert_eq!(waiting.answer().status, 200);
    let requests = || (0..2).map(|index| endpoint(&gateway, index)["requests"].as_u64().unwrap()).sum::<u64>();
    eventually("no request counted", || requests() == 0);
}

#[test]
fn a_request_counts_until_its_body_has_ended_or_its_client_has_left() {
    let upstream = Upstream::start();
    let gateway = start(&[upstream.port], "balance = \"least_requests\"\n");
    let feed = upstream.stream("/stream");
    let requests = || endpoint(&gateway, 0)["requests"].as_u64().unwrap();
    let mut client = Connection::open(gateway.port);
    client.send(request("GET", "/stream", &[]));
    assert_eq!(client.head().status, 200);
    assert_eq!(requests(), 1);
    drop(feed);
    assert_eq!(client.chunk(), None);
    eventually("the body's end", || requests() == 0);
    let gate = upstream.hold("/slow");
    client.send(request("GET", "/slow", &[]));
    eventually("the request", || requests() == 1);
    drop(client);
    eventually("the client's end", || requests() == 0);
    drop(gate);
}

#[test]
fn a_key_keeps_its_endpoint_and_moves_only_when_that_is_out() {
    let endpoints: Vec<Upstream> = (0..3).map(|_| Upstream::start()).collect();
    let ports: Vec<u16> = endpoints.iter().map(|upstream| upstream.port).collect();
    let keys = format!("balance = \"consistent_hash\"\n{HEALTH}");
    let policy =
        "policies = [\"p\"]\n[policies.p]\nlimits = [{ name = \"l\", key = \"header:x-key\", quota = \"1000/1h\" }]\n";
    let gateway = Setup::new(text(&ports, &keys) + policy).arguments(&["--workers", "2"]).start();
    let home = |key: usize| {
        let path = format!("/{key}");
        assert_eq!(gateway.get_as(&format!("k{key}"), &path).status, 200);
        let took = endpoints.iter().position(|upstream| upstream.count(&path) > 0).unwrap();
        endpoints.iter().for_each(|upstream| upstream.forget());
        took
    };
    let homes: Vec<usize> = (0..40).map(home).collect();
    assert!((0..3).all(|index| homes.contains(&index)), "{homes:?}");
    assert_eq!((0..40).map(home).collect::<Vec<_>>(), homes);

    answers(&endpoints[1], "/healthz", "500 Internal Server Error");
    becomes(&gateway, 1, "unhealthy");
    for (key, before) in homes.iter().enumerate() {
        let now = home(key);
        assert!(now != 1 && (*before == 1 || now == *before), "key {key}: {before}, then {now}");
    }
    answers(&endpoints[1], "/healthz", "200 OK");
    becomes(&gateway, 1, "healthy");
    assert_eq!((0..40).map(home).collect::<Vec<_>>(), homes);

    assert_eq!(statuses(&gateway, "/keyless", 30), [200; 30]);
    assert!(endpoints.iter().all(|upstream| upstream.count("/keyless") == 10), "without a key they take turns");
}

#[test]
fn a_retry_goes_to_another_endpoint() {
    let (up, dead) = (Upstream::start(), ports::free());
    let gateway = start(&[dead, up.port, dead], "ejection = { failures = 0 }\nretries = 2\n");
    assert_eq!(statuses(&gateway, "/x", 20), [200; 20]);
    assert!(total(&gateway, "staunch_upstream_retries_total", "result=\"sent\"") > 0);
}

#[test]
fn retries_have_a_budget() {
    let upstream = Upstream::start();
    upstream.on("/closes", Reply::Close);
    let gateway = start(&[upstream.port], "retry_budget = \"0%\"\n");
    assert_eq!(statuses(&gateway, "/closes", 150), [502; 150]);
    let retries = |result: &str| total(&gateway, "staunch_upstream_retries_total", &format!("result=\"{result}\""));
    assert!(retries("sent") >= 100 && retries("over_budget") > 0);
    assert_eq!(retries("sent") + retries("over_budget"), 150);
    assert_eq!(upstream.count("/closes") as u64, 150 + retries("sent"));
}

#[test]
fn beyond_its_cap_an_endpoint_gets_no_request_and_without_room_the_answer_is_503() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gates = [one.hold("/slow"), other.hold("/slow")];
    let gateway = start(&[one.port, other.port], "max_connections = 1\n");
    let mut waiting = [Connection::open(gateway.port), Connection::open(gateway.port)];
    for client in &mut waiting {
        client.send(request("GET", "/slow", &[]));
    }
    eventually("both slow requests", || one.count("/slow") == 1 && other.count("/slow") == 1);
    let answer = gateway.get("/x");
    assert_eq!((answer.status, answer.number("retry-after")), (503, 1));
    gates[0].notify_one();
    eventually("room", || gateway.get("/x").status == 200);
    gates[1].notify_one();
    assert!(waiting.iter_mut().all(|client| client.answer().status == 200));
    assert_eq!(other.count("/x"), 0, "it had its one request");
    eventually("both count on", || statuses(&gateway, "/y", 2) == [200; 2] && other.count("/y") > 0);
}

#[test]
fn a_retry_at_an_endpoint_that_is_full_with_the_request_itself_has_room() {
    let upstream = Upstream::start();
    upstream.on("/x", Reply::CloseReused);
    let gateway = Setup::new(text(&[upstream.port], "max_connections = 1\n")).arguments(&["--workers", "1"]).start();
    assert_eq!(statuses(&gateway, "/x", 2), [200; 2]);
    assert_eq!(upstream.count("/x"), 3);
}

#[test]
fn names_are_resolved_and_one_that_cannot_be_is_no_reason_not_to_start() {
    let upstream = Upstream::start();
    let text = format!(
        "[upstreams.up]\nendpoints = [\"http://localhost:{}\"]\n[upstreams.lost]\nendpoints = [\"http://nowhere.invalid:80\"]\n\
         {ROUTE}[[routes]]\npath = \"/lost\"\nupstream = \"lost\"\n",
        upstream.port
    );
    let gateway = Gateway::start(text);
    assert_eq!((gateway.get("/x").status, gateway.get("/lost").status), (200, 502));
    let resolved = endpoint(&gateway, 0)["resolved"].clone();
    assert!(resolved.as_array().unwrap().contains(&"127.0.0.1".into()), "{resolved}");
    eventually("both are said", || {
        gateway.log().contains("name resolved") && gateway.log().contains("name not resolved")
    });
    assert_eq!(gateway.get("/x").status, 200);
}

#[test]
fn what_is_known_of_endpoints_goes_on_through_reloads_under_load() {
    let (ill, well, dead) = (Upstream::start(), Upstream::start(), ports::free());
    answers(&ill, "/healthz", "500 Internal Server Error");
    let checked = |path: &str| HEALTH.replace("/healthz", path) + &FOR_GOOD.replace("retries = 0", "retries = 2");
    let gateway = start(&[ill.port, well.port, dead], &checked("/healthz"));
    becomes(&gateway, 0, "unhealthy");
    becomes(&gateway, 2, "unhealthy");
    let (since, port) = (endpoint(&gateway, 0)["since"].clone(), gateway.port);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = Connection::open(port);
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                assert_eq!(client.get("/x", &[]).status, 200);
            }
        });
        for number in 0..10 {
            let more = format!("[[routes]]\npath = \"/{number}\"\nupstream = \"up\"\n");
            gateway.rewrite(&(text(&[ill.port, well.port, dead], &checked("/healthz")) + &more));
            assert_eq!(gateway.reload().status, 200);
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        load.join().unwrap();
    });
    assert_eq!((ill.count("/x"), &endpoint(&gateway, 0)["since"]), (0, &since));

    // Other checks are another start, and what is gone leaves the page.
    gateway.rewrite(&text(&[ill.port, well.port], &checked("/other")));
    assert_eq!(gateway.reload().status, 200);
    becomes(&gateway, 0, "healthy");
    eventually("the other check", || ill.count("/other") > 0);
    assert!(!gateway.metrics().contains(&format!(":{dead}\"")));
    let checks = ill.count("/healthz");
    eventually("more of the other", || ill.count("/other") > 5);
    assert!(ill.count("/healthz") <= checks + 1, "the first check was ended");
}

#[test]
fn an_ejection_goes_on_through_a_reload_as_long_as_it_lasts() {
    let (up, dead) = (Upstream::start(), ports::free());
    let gateway = start(&[dead, up.port], FOR_GOOD);
    statuses(&gateway, "/x", 20);
    assert_eq!(state(&gateway, 0), "ejected");
    gateway.rewrite(
        &(text(&[dead, up.port], FOR_GOOD) + "strip_prefix = \"/x\"\n").replace("path = \"/*\"", "path = \"/x/*\""),
    );
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(statuses(&gateway, "/x/", 20), [200; 20]);
    assert_eq!(state(&gateway, 0), "ejected");
    assert_eq!(client::get(gateway.admin, "/", &[]).text().matches("ejected").count(), 1);
}
