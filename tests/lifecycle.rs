//! The end: what is in flight finishes, what is idle closes at once, and nobody waits for ever.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Connection, request};
use support::gateway::{Gateway, Setup};
use support::upstream::Upstream;
use support::wait::eventually;

const ROUTES: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";

fn start(drain: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    (Setup::new(upstream.table() + ROUTES).arguments(&["--drain", drain]).start(), upstream)
}

fn is_draining(gateway: &Gateway) -> bool {
    let ready = gateway.ask_admin("/readyz");
    ready.status == 503 && ready.text().contains("draining")
}

#[test]
fn what_is_in_flight_finishes_and_the_exit_code_is_0() {
    for signal in ["-TERM", "-INT"] {
        let (mut gateway, upstream) = start("60s");
        let gate = upstream.hold("/slow");
        let feed = upstream.stream("/events");
        let mut waiting = Connection::open(gateway.port);
        waiting.send(request("GET", "/slow", &[]));
        let mut streaming = Connection::open(gateway.port);
        streaming.send(request("GET", "/events", &[]));
        assert_eq!(streaming.head().status, 200);
        let mut uploading = Connection::open(gateway.port);
        uploading.send(request("POST", "/upload", &[("content-length", "10")]) + "01234");
        let mut idle = Connection::open(gateway.port);
        assert_eq!(idle.get("/", &[]).status, 200);
        eventually("all are upstream", || upstream.hits().len() == 4);

        gateway.signal(signal);
        assert!(idle.is_closed(), "an idle connection closes at once");
        eventually("not ready any more", || is_draining(&gateway));
        assert!(Connection::try_open(gateway.port).is_none_or(|mut late| late.is_closed()), "nobody new is let in");
        feed.blocking_send(b"still".to_vec()).unwrap();
        assert_eq!(streaming.chunk().unwrap(), b"still");
        uploading.send("56789");
        assert_eq!(uploading.answer().status, 200);
        assert_eq!(upstream.hit("/upload").body, b"0123456789");
        assert!(!gateway.has_ended());
        gate.notify_one();
        let answer = waiting.answer();
        assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
        drop(feed);
        assert_eq!(streaming.chunk(), None);
        assert_eq!(gateway.ends().code(), Some(0), "{signal}");
    }
}

/// Who has just connected cannot know that the gateway goes.
#[test]
fn a_new_connections_first_request_is_still_answered() {
    let upstream = Upstream::start();
    let setup = Setup::new(upstream.table() + ROUTES).arguments(&["--drain", "60s", "--workers", "1"]);
    let mut gateway = setup.start();
    let mut idle = Connection::open(gateway.port);
    assert_eq!(idle.get("/", &[]).status, 200);
    let mut new = Connection::open(gateway.port);
    gateway.signal("-TERM");
    assert!(idle.is_closed(), "the one core drains");
    let answer = new.get("/", &[]);
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    assert_eq!(gateway.ends().code(), Some(0));
}

#[test]
fn without_anything_in_flight_it_ends_at_once() {
    let (mut gateway, _upstream) = start("60s");
    let mut idle = Connection::open(gateway.port);
    assert_eq!(idle.get("/", &[]).status, 200);
    let mut silent = Connection::open(gateway.port);
    gateway.signal("-TERM");
    assert!(idle.is_closed() && silent.is_closed());
    assert_eq!(gateway.ends().code(), Some(0));
}

#[test]
fn a_second_signal_closes_what_is_still_open() {
    let (mut gateway, upstream) = start("10m");
    let _gate = upstream.hold("/slow");
    let mut waiting = Connection::open(gateway.port);
    waiting.send(request("GET", "/slow", &[]));
    eventually("it is upstream", || upstream.count("/slow") == 1);
    gateway.signal("-TERM");
    eventually("draining", || is_draining(&gateway));
    gateway.signal("-TERM");
    assert_eq!(gateway.ends().code(), Some(0));
    assert!(waiting.try_answer().is_none());
}

#[test]
fn draining_takes_no_longer_than_it_is_allowed() {
    let (mut gateway, upstream) = start("300ms");
    let _gate = upstream.hold("/slow");
    let mut waiting = Connection::open(gateway.port);
    waiting.send(request("GET", "/slow", &[]));
    eventually("it is upstream", || upstream.count("/slow") == 1);
    gateway.signal("-TERM");
    assert_eq!(gateway.ends().code(), Some(0));
    assert!(waiting.try_answer().is_none());
    assert!(gateway.log().contains("time to drain is over"), "{}", gateway.log());
}

#[test]
fn more_connections_than_allowed_are_closed_and_counted() {
    let upstream = Upstream::start();
    let gateway = Setup::new(upstream.table() + ROUTES).listener("max_connections = 3").start();
    let mut open: Vec<_> = (0..3).map(|_| Connection::open(gateway.port)).collect();
    open.iter_mut().for_each(|connection| assert_eq!(connection.get("/", &[]).status, 200));
    let mut fourth = Connection::open(gateway.port);
    assert!(fourth.is_closed());
    assert!((0.5..1.5).contains(&gateway.metric("staunch_connections_rejected_total", &[])));
    open.pop().unwrap().leave();
    eventually("a place is free", || {
        support::client::try_get(gateway.port, "/").is_some_and(|answer| answer.status == 200)
    });
}

#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let upstream = Upstream::start();
    let gateway = Setup::new(upstream.table() + ROUTES).listener("keep_alive_timeout = \"100ms\"").start();
    let mut idle = Connection::open(gateway.port);
    assert_eq!(idle.get("/", &[]).status, 200);
    assert!(idle.is_closed());
}
