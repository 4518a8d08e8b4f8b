//! Another configuration without a restart: each way to bring it, what survives, and what a bad file does not do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::client::Connection;
use support::gateway::{Gateway, Setup};
use support::ports;
use support::redis::RedisServer;
use support::upstream::Upstream;
use support::wait::eventually;

/// `/ping` tells by its limit which version is in force; `/counted` is what survives.
fn text(upstream: &Upstream, version: u64, quota: &str) -> String {
    format!(
        "[policies.p]\nlimits = [{{ name = \"l\", key = \"header:x-key\", {quota} }}]\n\
         [policies.version]\nlimits = [{{ name = \"v\", key = \"global\", quota = \"{version}/7d\" }}]\n\
         [[routes]]\npath = \"/counted\"\nupstream = \"up\"\npolicies = [\"p\"]\n\
         [[routes]]\npath = \"/ping\"\nupstream = \"up\"\npolicies = [\"version\"]\n{}",
        upstream.table()
    )
}

const TEN: &str = "quota = \"10/7d\"";

fn version(gateway: &Gateway) -> u64 {
    gateway.get("/ping").number("x-ratelimit-limit")
}

fn taken_up(gateway: &Gateway, expected: u64) {
    eventually("the new configuration", || version(gateway) == expected);
}

/// The cores take it up one after the other; a reload that was asked for is answered when all have.
fn taken_up_by_all_cores(gateway: &Gateway, expected: u64) {
    taken_up(gateway, expected);
    assert_eq!(gateway.reload().status, 200);
}

fn use_up(gateway: &Gateway, count: usize) {
    for _ in 0..count {
        assert_eq!(gateway.get_as("k", "/counted").status, 200);
    }
}

fn remaining(gateway: &Gateway) -> u64 {
    gateway.counter("p/l", "k").0
}

#[test]
fn written_in_place_renamed_over_signalled_or_posted_it_is_taken_up_and_counters_survive() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(text(&upstream, 1001, TEN));
    use_up(&gateway, 3);
    gateway.rewrite(&text(&upstream, 1002, TEN));
    taken_up(&gateway, 1002);
    assert_eq!(remaining(&gateway), 7, "after writing in place");

    let fresh = gateway.folder().join("fresh.toml");
    fs::write(&fresh, gateway.whole(&text(&upstream, 1003, TEN))).unwrap();
    fs::rename(&fresh, &gateway.file).unwrap();
    taken_up(&gateway, 1003);
    use_up(&gateway, 1);
    assert_eq!(remaining(&gateway), 6, "after renaming");

    let reloads = || gateway.metric("staunch_config_reloads_total", &["result=\"ok\""]);
    let before = reloads();
    gateway.signal("-HUP");
    eventually("a reload by signal", || reloads() > before);
    let before = reloads();
    assert_eq!(gateway.reload().status, 200);
    assert!(reloads() > before);
    assert_eq!((version(&gateway), remaining(&gateway)), (1003, 6));
    use_up(&gateway, 6);
    assert_eq!(gateway.get_as("k", "/counted").status, 429);
    assert_eq!(upstream.count("/counted"), 10);
}

/// As the kubelet does it: a new folder, a new `..data` renamed over the old one, the old folder removed.
fn publish(mount: &Path, version: &str, text: &str) {
    let data = mount.join(format!("..{version}"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("staunch.toml"), text).unwrap();
    symlink(data.file_name().unwrap(), mount.join("..data_tmp")).unwrap();
    let old = fs::canonicalize(mount.join("..data"));
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    if let Ok(old) = old {
        fs::remove_dir_all(old).unwrap();
    }
}

#[test]
fn a_config_maps_symlink_swap_is_taken_up_time_and_again() {
    let upstream = Upstream::start();
    let gateway = Setup::new(text(&upstream, 1001, TEN)).start_in(|folder, text| {
        publish(folder, "1001", text);
        symlink("..data/staunch.toml", folder.join("staunch.toml")).unwrap();
        folder.join("staunch.toml")
    });
    use_up(&gateway, 2);
    for next in [1002, 1003, 1004] {
        publish(gateway.folder(), &next.to_string(), &gateway.whole(&text(&upstream, next, TEN)));
        taken_up(&gateway, next);
    }
    assert_eq!(remaining(&gateway), 8);
    assert!((3.0..3.5).contains(&gateway.metric("staunch_config_reloads_total", &["result=\"ok\""])), "once each");
}

/// Seven of ten are used; then the quota is raised, lowered below what was used, and put back.
fn a_changed_quota_applies_to_what_was_used(store: &str) {
    let upstream = Upstream::start();
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"] {
        let with = |units: u64, version| {
            let limit = format!("quota = \"{units}/7d\", algorithm = \"{algorithm}\"");
            text(&upstream, version, &limit) + store
        };
        let gateway = Gateway::start(with(10, 1001));
        let key = format!("k-{algorithm}");
        let ask = || gateway.get_as(&key, "/counted");
        for _ in 0..7 {
            assert_eq!(ask().status, 200);
        }
        gateway.rewrite(&with(20, 1002));
        taken_up_by_all_cores(&gateway, 1002);
        let raised = ask();
        assert_eq!((raised.status, raised.number("x-ratelimit-limit")), (200, 20), "{algorithm}");
        assert_eq!(raised.number("x-ratelimit-remaining"), 12, "{algorithm}: a raised quota counts what was used");
        gateway.rewrite(&with(5, 1003));
        taken_up_by_all_cores(&gateway, 1003);
        let lowered = ask();
        assert_eq!((lowered.status, lowered.number("x-ratelimit-limit")), (429, 5), "{algorithm}");
        assert_eq!(lowered.number("x-ratelimit-remaining"), 0, "{algorithm}");
        gateway.rewrite(&with(10, 1004));
        taken_up_by_all_cores(&gateway, 1004);
        assert_eq!(ask().status, 200, "{algorithm}");
    }
}

#[test]
fn a_changed_quota_applies_at_once_to_what_was_used_in_memory() {
    a_changed_quota_applies_to_what_was_used("");
}

#[test]
fn a_changed_quota_applies_at_once_to_what_was_used_in_redis() {
    let server = RedisServer::start();
    let store =
        format!("[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntimeout = \"20s\"\n", server.url());
    a_changed_quota_applies_to_what_was_used(&store);
}

#[test]
fn a_changed_period_or_algorithm_is_never_an_error() {
    let server = RedisServer::start();
    let store =
        format!("[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntimeout = \"20s\"\n", server.url());
    for store in ["", store.as_str()] {
        let upstream = Upstream::start();
        let gateway = Gateway::start(text(&upstream, 1000, TEN) + store);
        let quotas = ["10/3d", "10/1h", "1000/1ms", "10/7d"];
        let algorithms =
            ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"];
        let changes = quotas.iter().flat_map(|quota| algorithms.iter().map(move |algorithm| (quota, algorithm)));
        for (number, (quota, algorithm)) in (1001..).zip(changes) {
            let limit = format!("quota = \"{quota}\", algorithm = \"{algorithm}\"");
            gateway.rewrite(&(text(&upstream, number, &limit) + store));
            assert_eq!(gateway.reload().status, 200);
            let status = gateway.get_as("k", "/counted").status;
            assert!(status == 200 || status == 429, "{quota} {algorithm}: {status}");
        }
        assert!(!gateway.metrics().contains("staunch_store_errors_total{"), "{}", gateway.metrics());
    }
}

#[test]
fn a_bad_file_leaves_everything_in_force_and_says_where_it_is_wrong() {
    let upstream = Upstream::start();
    let good = text(&upstream, 1001, TEN);
    let gateway = Gateway::start(good.as_str());
    use_up(&gateway, 4);
    gateway.rewrite(&good.replace("10/7d", "ten a week").replace("policies = [\"p\"]", "policies = [\"q\"]"));
    let rejected = || gateway.metric("staunch_config_reloads_total", &["result=\"rejected\""]);
    eventually("the rejection", || rejected() >= 1.0);
    let told = gateway.reload();
    assert_eq!(told.status, 422);
    for part in ["staunch.toml:", "ten a week", "\"q\""] {
        assert!(told.text().replace("\\\"", "\"").replace('`', "\"").contains(part), "{part} in {}", told.text());
    }
    assert_eq!((version(&gateway), remaining(&gateway)), (1001, 6));
    let status = gateway.ask_admin("/status").json();
    assert!(status["configuration"]["last_error"]["problems"].as_str().unwrap().contains("ten a week"));
    eventually("the log", || gateway.log().contains("reload rejected") && gateway.log().contains("ten a week"));
    gateway.rewrite(&text(&upstream, 1002, TEN));
    taken_up(&gateway, 1002);
    assert_eq!(remaining(&gateway), 6);
    assert!(gateway.ask_admin("/status").json()["configuration"]["last_error"].is_null());
}

#[test]
fn a_listeners_new_address_is_bound_and_no_connection_is_dropped() {
    let upstream = Upstream::start();
    let body = text(&upstream, 1001, TEN);
    let gateway = Gateway::start(body.as_str());
    let feed = upstream.stream("/counted");
    let mut streaming = Connection::open(gateway.port);
    streaming.send("GET /counted HTTP/1.1\r\nhost: localhost\r\nx-key: k\r\n\r\n");
    assert_eq!(streaming.head().status, 200);
    let mut kept = Connection::open(gateway.port);
    assert_eq!(kept.get("/ping", &[]).status, 200);

    let moved = ports::free();
    let old = format!("127.0.0.1:{}", gateway.port);
    fs::write(&gateway.file, gateway.whole(&body).replace(&old, &format!("127.0.0.1:{moved}"))).unwrap();
    assert_eq!(gateway.reload().status, 200);
    let mut fresh = Connection::open(moved);
    assert_eq!(fresh.get("/ping", &[]).status, 200);
    eventually("the old address is closed", || Connection::try_open(gateway.port).is_none());
    feed.blocking_send(b"still here".to_vec()).unwrap();
    assert_eq!(streaming.chunk().unwrap(), b"still here");
    drop(feed);
    assert_eq!(streaming.chunk(), None);
    assert_eq!(kept.get("/ping", &[]).status, 200, "an idle connection goes on too");
}

#[test]
fn an_address_that_is_taken_leaves_everything_in_force() {
    let upstream = Upstream::start();
    let body = text(&upstream, 1001, TEN);
    let gateway = Gateway::start(body.as_str());
    let old = format!("127.0.0.1:{}", gateway.port);
    let taken = gateway.whole(&text(&upstream, 1002, TEN)).replace(&old, &format!("127.0.0.1:{}", upstream.port));
    fs::write(&gateway.file, taken).unwrap();
    let told = gateway.reload();
    assert_eq!(told.status, 422, "{}", told.text());
    assert!(told.text().contains(&format!("127.0.0.1:{}", upstream.port)), "{}", told.text());
    assert_eq!(version(&gateway), 1001);
}

#[test]
fn reloads_under_load_lose_no_request_and_miscount_none() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(text(&upstream, 1000, "quota = \"400/7d\""));
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Connection::open(gateway.port);
                while !over.load(Ordering::SeqCst) {
                    let status = client.get("/counted", &[("x-key", "k")]).status;
                    assert!(status == 200 || status == 429, "{status}");
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for number in 1001..1051 {
            gateway.rewrite(&text(&upstream, number, "quota = \"400/7d\""));
            assert_eq!(gateway.reload().status, 200);
        }
        eventually("enough requests", || answered.load(Ordering::SeqCst) > 1000);
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(upstream.count("/counted"), 400);
}

#[test]
fn the_admin_listener_moves_and_a_removed_limit_refuses_nobody() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(text(&upstream, 1001, "quota = \"1/7d\""));
    assert_eq!((gateway.get_as("k", "/counted").status, gateway.get_as("k", "/counted").status), (200, 429));
    let moved = ports::free();
    let old = format!("127.0.0.1:{}", gateway.admin);
    let without = text(&upstream, 1002, TEN).replace("policies = [\"p\"]", "policies = []");
    fs::write(&gateway.file, gateway.whole(&without).replace(&old, &format!("127.0.0.1:{moved}"))).unwrap();
    taken_up(&gateway, 1002);
    eventually("the admin listener has moved", || {
        support::client::try_get(moved, "/readyz").is_some_and(|answer| answer.status == 200)
    });
    eventually("the old address is closed", || Connection::try_open(gateway.admin).is_none());
    // The listeners move after the cores have taken it up.
    let free = gateway.get_as("k", "/counted");
    assert_eq!((free.status, free.field("x-ratelimit-limit")), (200, None));
}
