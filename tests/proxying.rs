//! What a proxy does with requests and answers: pass them on as they come, whole, once, and say honestly when it cannot.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Answer, Connection, request};
use support::gateway::{Gateway, Setup};
use support::upstream::{Reply, Upstream};
use support::wait::eventually;
use support::{client, ports};

const ROUTES: &str = r#"
[policies.p]
limits = [{ name = "l", key = "header:x-key", quota = "10/7d" }]
[[routes]]
path = "/limited/*"
upstream = "up"
policies = ["p"]
[[routes]]
path = "/v1/*"
upstream = "up"
strip_prefix = "/v1"
[[routes]]
path = "/open/*"
upstream = "up"
"#;

fn setup(upstream: &Upstream) -> Setup {
    Setup::new(upstream.table() + ROUTES).arguments(&["--workers", "1"])
}

fn is_problem(answer: &Answer, status: u16) {
    assert_eq!((answer.status, answer.field("content-type")), (status, Some("application/problem+json")), "{answer:?}");
    let body = answer.json();
    assert_eq!(body["status"], status);
    assert!(body["title"].is_string() && body["detail"].is_string() && body["type"].is_string(), "{body}");
}

#[test]
fn server_sent_events_arrive_one_by_one() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let feed = upstream.stream("/limited/events");
    let mut client = Connection::open(gateway.port);
    client.send(request("GET", "/limited/events", &[("x-key", "k")]));
    let head = client.head();
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")));
    assert_eq!(head.number("x-ratelimit-remaining"), 9);
    for number in 0..20 {
        // Each is there before the next is written: nothing waits for more.
        let event = format!("data: {number}\n\n");
        feed.blocking_send(event.clone().into_bytes()).unwrap();
        assert_eq!(client.chunk().unwrap(), event.into_bytes());
    }
    drop(feed);
    assert_eq!(client.chunk(), None);
    assert_eq!(client.get("/limited/more", &[("x-key", "k")]).status, 200, "the connection is kept");
}

#[test]
fn a_large_upload_and_a_large_download_pass_in_bounded_memory() {
    const OCTETS: usize = 192 << 20;
    let upstream = Upstream::start();
    let gateway = setup(&upstream).listener("max_body_bytes = \"unlimited\"").start();
    assert_eq!(gateway.get("/open/warm").status, 200);
    let (before, _) = gateway.memory_kib();
    let mut client = Connection::open(gateway.port);
    client.send(request("POST", "/open/upload", &[("content-length", &OCTETS.to_string())]));
    let piece = vec![b'u'; 1 << 20];
    for _ in 0..OCTETS >> 20 {
        client.send(&piece);
    }
    assert_eq!(client.answer().status, 200);
    assert_eq!(upstream.octets(), OCTETS as u64);
    upstream.on("/open/download", Reply::Flood(OCTETS));
    client.send(request("GET", "/open/download", &[]));
    let head = client.head();
    assert_eq!((head.status, head.number("content-length")), (200, OCTETS as u64));
    client.discard(OCTETS);
    let (_, most) = gateway.memory_kib();
    assert!(most < before + (24 << 10), "{before} KiB before, {most} KiB at most");
}

#[test]
fn a_client_that_does_not_read_holds_the_upstream_back_and_not_the_memory() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    upstream.on("/open/download", Reply::Flood(64 << 20));
    assert_eq!(gateway.get("/open/warm").status, 200);
    let (before, _) = gateway.memory_kib();
    let mut readers: Vec<_> = (0..8).map(|_| Connection::open(gateway.port)).collect();
    for reader in &mut readers {
        reader.send(request("GET", "/open/download", &[]));
        assert_eq!(reader.head().status, 200);
    }
    // Others are served meanwhile, and when the slow ones read at last, nothing is missing.
    for _ in 0..200 {
        assert_eq!(gateway.get("/open/other").status, 200);
    }
    readers.iter_mut().for_each(|reader| reader.discard(64 << 20));
    let (_, most) = gateway.memory_kib();
    assert!(most < before + (24 << 10), "{before} KiB before, {most} KiB at most");
}

#[test]
fn a_client_that_leaves_is_noticed_upstream() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let _gate = upstream.hold("/open/slow");
    let feed = upstream.stream("/open/events");
    let mut waiting = Connection::open(gateway.port);
    waiting.send(request("GET", "/open/slow", &[]));
    eventually("the request upstream", || upstream.count("/open/slow") == 1);
    waiting.leave();
    eventually("the end upstream", || upstream.abandoned() == 1);
    let mut reading = Connection::open(gateway.port);
    reading.send(request("GET", "/open/events", &[]));
    feed.blocking_send(b"one".to_vec()).unwrap();
    assert_eq!(reading.head().status, 200);
    reading.leave();
    eventually("the end upstream", || upstream.abandoned() == 2);
    eventually("no connection is left", || gateway.metric("staunch_connections_active", &[]) < 0.5);
}

#[test]
fn a_get_is_tried_once_more_on_a_fresh_connection_and_charged_once() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    upstream.on("/limited/stale", Reply::CloseReused);
    assert_eq!(gateway.get_as("warm", "/limited/warm").status, 200);
    let answer = gateway.get_as("k", "/limited/stale");
    assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, 9));
    assert_eq!((upstream.count("/limited/stale"), upstream.connections()), (2, 2));
    assert_eq!(gateway.counter("p/l", "k").0, 9, "charged once");
    upstream.on("/limited/never", Reply::Close);
    is_problem(&gateway.get_as("k", "/limited/never"), 502);
    assert_eq!(upstream.count("/limited/never"), 2, "once more, and no more");
    assert_eq!(gateway.counter("p/l", "k").0, 8);
}

#[test]
fn a_post_is_never_sent_twice() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(gateway.get("/open/warm").status, 200);
    upstream.on("/open/order", Reply::Close);
    let mut client = Connection::open(gateway.port);
    client.send(request("POST", "/open/order", &[("content-length", "2")]) + "hi");
    is_problem(&client.answer(), 502);
    assert_eq!(upstream.hit("/open/order").body, b"hi");
}

#[test]
fn what_the_gateway_cannot_do_is_a_problem_body_and_the_upstream_is_spared() {
    let upstream = Upstream::start();
    let listener = "header_timeout = \"300ms\"\nmax_header_bytes = \"8KiB\"\nmax_body_bytes = \"1KiB\"";
    let gateway = setup(&upstream).listener(listener).start();
    let send = |text: String| {
        let mut client = Connection::open(gateway.port);
        client.send(text);
        client.answer()
    };
    is_problem(&gateway.get("/nowhere"), 404);
    for path in ["/open/%2F", "/open/%00", "/open/\\", "/open/%zz", "/open/%5c"] {
        is_problem(&gateway.get(path), 400);
    }
    is_problem(&send("GET /open/ HTTP/1.1\r\n\r\n".to_owned()), 400);
    is_problem(&send("nonsense\r\n\r\n".to_owned()), 400);
    is_problem(&send(request("POST", "/open/", &[("content-length", "1"), ("transfer-encoding", "chunked")])), 400);
    is_problem(&send(request("POST", "/open/", &[("content-length", "1"), ("content-length", "2")])), 400);
    is_problem(&send("GET /open/ HTTP/1.1\r\nhost: lo".to_owned()), 408);
    is_problem(&send(request("POST", "/open/", &[("content-length", "2000")])), 413);
    is_problem(&send(request("GET", "/open/", &[("x-long", &"x".repeat(9000))])), 431);
    assert!(upstream.hits().is_empty(), "{:?}", upstream.hits());
    let chunks = format!("400\r\n{}\r\n400\r\n{}\r\n0\r\n\r\n", "x".repeat(0x400), "y".repeat(0x400));
    is_problem(&send(request("POST", "/open/", &[("transfer-encoding", "chunked")]) + &chunks), 413);
    assert_eq!(gateway.get("/open/after").status, 200, "and goes on serving");
}

#[test]
fn an_upstream_that_fails_is_told_as_502_and_504() {
    let upstream = Upstream::start();
    let text = format!(
        "[upstreams.gone]\nendpoints = [\"http://127.0.0.1:{}\"]\n{}[[routes]]\npath = \"/gone\"\nupstream = \"gone\"\n\
         [[routes]]\npath = \"/slow\"\nupstream = \"up\"\nresponse_timeout = \"100ms\"\n{ROUTES}",
        ports::free(),
        upstream.table()
    );
    let gateway = Gateway::start(text);
    is_problem(&gateway.get("/gone"), 502);
    let _gate = upstream.hold("/slow");
    is_problem(&gateway.get("/slow"), 504);
    assert_eq!(upstream.count("/slow"), 1, "a time-out is not repeated");
    eventually("it is let go upstream", || upstream.abandoned() == 1);
    let odd =
        ["", "junk\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk", "HTTP/1.1 200"];
    for (number, octets) in odd.iter().enumerate() {
        let path = format!("/open/odd/{number}");
        upstream.on(&path, Reply::Raw((*octets).to_owned()));
        is_problem(&gateway.get(&path), 502);
    }
    assert_eq!(gateway.get("/open/after").status, 200);
}

#[test]
fn one_upstream_connection_serves_requests_in_turn() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    upstream.on("/open/large", Reply::Flood(1 << 20));
    let mut kept = Connection::open(gateway.port);
    for _ in 0..20 {
        assert_eq!(kept.get("/open/", &[]).status, 200);
        assert_eq!(client::get(gateway.port, "/open/", &[]).status, 200);
        assert_eq!(kept.get("/open/large", &[]).body.len(), 1 << 20);
    }
    assert_eq!(upstream.connections(), 1);
    assert_eq!(upstream.hits().len(), 60);
}

#[test]
fn hop_by_hop_fields_end_here_and_forwarding_fields_tell_the_truth() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let mut client = Connection::open(gateway.port);
    let fields = [
        ("connection", "x-private"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "gzip"),
        ("proxy-authorization", "Basic abc"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-request-id", "an-id-of-the-client"),
        ("x-kept", "yes"),
    ];
    upstream.on("/a%20b", Reply::Bytes(
        "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\nx-ratelimit-limit: 7\r\ncontent-length: 0\r\n\r\n".to_owned(),
    ));
    client.send(request("GET", "/v1//a%20b/../%61%20b?q=/../%2f", &fields));
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert_eq!((answer.field("x-hop"), answer.field("keep-alive")), (None, None));
    assert_eq!(answer.field("x-ratelimit-limit"), Some("7"), "left alone where no limit is");
    let hits = upstream.hits();
    assert_eq!(hits.len(), 1);
    let hit = &hits[0];
    assert_eq!(hit.target, "/a%20b?q=/../%2f", "normalised, stripped, and the query as it was");
    for gone in ["x-private", "keep-alive", "proxy-authorization"] {
        assert_eq!(hit.field(gone), None, "{gone}");
    }
    assert_eq!(hit.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(hit.field("x-forwarded-proto"), Some("http"));
    assert_eq!(hit.field("x-forwarded-host"), Some("localhost"));
    assert_eq!(hit.field("x-request-id"), Some("an-id-of-the-client"));
    assert_eq!(hit.field("x-kept"), Some("yes"));
    assert!(hit.field("via").unwrap().starts_with("1.1 "));
}

#[test]
fn the_upstreams_own_limit_fields_are_replaced_where_a_limit_is() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let fields = "x-ratelimit-limit: 7\r\nX-RateLimit-Remaining: 7\r\nratelimit: \"u\";r=7\r\nretry-after: 9";
    upstream.on("/limited/own", Reply::Bytes(format!("HTTP/1.1 200 OK\r\n{fields}\r\ncontent-length: 0\r\n\r\n")));
    let answer = gateway.get_as("k", "/limited/own");
    let named = |name: &str| answer.fields.iter().filter(|(known, _)| known == name).count();
    assert_eq!((answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining")), (10, 9));
    assert_eq!((named("x-ratelimit-limit"), named("x-ratelimit-remaining"), named("ratelimit")), (1, 1, 1));
}

#[test]
fn a_websocket_passes_and_its_refusal_is_a_plain_429() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    upstream.on("/limited/socket", Reply::Echo);
    let handshake = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
        ("x-key", "k"),
    ];
    let mut sockets: Vec<_> = (0..10).map(|_| Connection::open(gateway.port)).collect();
    for socket in &mut sockets {
        socket.send(request("GET", "/limited/socket", &handshake));
        let head = socket.head();
        assert_eq!((head.status, head.field("upgrade")), (101, Some("websocket")));
    }
    for (number, socket) in sockets.iter_mut().enumerate() {
        let message = format!("message {number}");
        socket.send(&message);
        assert_eq!(socket.exact(message.len()), message.as_bytes());
    }
    let refused = client::get(gateway.port, "/limited/socket", &handshake);
    assert_eq!((refused.status, refused.field("upgrade")), (429, None));
    assert_eq!(upstream.count("/limited/socket"), 10);
}

#[test]
fn a_body_waits_for_100_continue_and_a_refused_one_is_never_asked_for() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let fields = [("expect", "100-continue"), ("content-length", "4"), ("x-key", "k")];
    for _ in 0..10 {
        let mut client = Connection::open(gateway.port);
        client.send(request("POST", "/limited/body", &fields));
        assert_eq!(client.head().status, 100);
        client.send("body");
        assert_eq!(client.answer().status, 200);
    }
    let mut client = Connection::open(gateway.port);
    client.send(request("POST", "/limited/body", &fields));
    assert_eq!(client.head().status, 429);
    assert!(upstream.hits().iter().all(|hit| hit.body == b"body"));
}
