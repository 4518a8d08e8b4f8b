//! What clients send that is odd, and what the upstream must see of it: one well-formed request, or none at all. A refusal
//! is an answer, and ends the connection where the next octets could be read in two ways.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use support::wire::{Client, Gateway, Seen, Step, Upstream};

const FINE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

fn start(listener: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start(|_| vec![Step::Send(FINE.to_vec())]);
    let gateway = Gateway::start(upstream.address, listener, "");
    (upstream, gateway)
}

/// Each with a status that says no; the connection ends behind it.
#[rustfmt::skip]
const REFUSED: &[(&str, u16)] = &[
    // Where the body ends.
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nhello", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhello", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    // Lines.
    ("GET / HTTP/1.1\nHost: h\n\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX: y\rZ: w\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n z\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\n\r\r\n", 400),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX\0: y\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX: \0\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX y: z\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nX{}: z\r\n\r\n", 400),
    // Request lines.
    ("GET /\r\n\r\n", 400),
    ("GET / HTTP/0.9\r\nHost: h\r\n\r\n", 400),
    ("GET / HTTP/1.2\r\nHost: h\r\n\r\n", 400),
    ("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 400),
    ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET http://h/a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET /a?b#c HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET a HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("G{T / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", 400),
    ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
    // Hosts.
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a#b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", 400),
    ("GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    // Chunks.
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;\0\r\nhello\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 400),
];

#[test]
fn what_two_readers_could_cut_differently_is_refused_and_ends_the_connection() {
    let (upstream, gateway) = start("");
    for (request, status) in REFUSED {
        for dripping in [false, true] {
            let mut client = Client::connect(gateway.address);
            let smuggled = [request.as_bytes(), b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
            if dripping {
                client.drip(&smuggled)
            } else {
                client.send(&smuggled)
            }
            let answer = client.answer(false).unwrap_or_else(|why| panic!("{request:?}: {why}"));
            assert_eq!((answer.status, answer.values("connection")), (*status, vec!["close"]), "{request:?}");
            assert_eq!(client.rest(), b"", "{request:?}");
        }
    }
    let targets: Vec<String> = upstream.take_seen().iter().map(|seen| seen.target().to_owned()).collect();
    assert_eq!(targets, [""; 0]);
}

/// The one request that the upstream sees for these octets.
fn forwarded(octets: &str) -> Seen {
    let (upstream, gateway) = start("");
    let mut client = Client::connect(gateway.address);
    client.send(octets.as_bytes());
    assert_eq!(client.answer(false).unwrap().status, 200, "{octets:?}");
    let mut seen = upstream.take_seen();
    assert_eq!((seen.len(), upstream.take_malformed()), (1, vec![]), "{octets:?}");
    seen.remove(0)
}

#[test]
fn the_authority_of_the_target_outranks_host() {
    for (request, host, target) in [
        ("GET http://h.test:80/a?b HTTP/1.1\r\nHost: other\r\n\r\n", "h.test:80", "/a?b"),
        ("GET HTTP://h.test HTTP/1.1\r\nHost: h.test\r\n\r\n", "h.test", "/"),
        ("GET //evil.test/a HTTP/1.1\r\nHost: h.test\r\n\r\n", "h.test", "/evil.test/a"),
    ] {
        let seen = forwarded(request);
        assert_eq!((seen.values("host"), seen.target()), (vec![host], target), "{request:?}");
    }
}

#[test]
fn a_body_is_framed_anew_and_its_trailers_are_harmless() {
    let seen = forwarded(
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n06\r\n world\r\n00\r\n\
         X-Sum: 1\r\nX-Forwarded-For: 203.0.113.9\r\nContent-Length: 3\r\nHost: evil\r\n\r\n",
    );
    assert_eq!((seen.body.as_slice(), seen.trailers.as_str()), (&b"hello world"[..], "x-sum: 1\n"));
    let seen = forwarded("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 005\r\n\r\nhello");
    assert_eq!((seen.body.as_slice(), seen.values("content-length")), (&b"hello"[..], vec!["5"]));
}

#[test]
fn what_a_stranger_says_about_forwarding_stays_behind_in_any_spelling() {
    let seen = forwarded(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\n\
         x-forwarded_host: 203.0.113.9\r\nX-FORWARDED-PREFIX: /203.0.113.9\r\nForwarded: for=203.0.113.9\r\n\
         X-Original-URL: /203.0.113.9\r\nX-Rewrite-URL: /203.0.113.9\r\nX_Real_IP: 203.0.113.9\r\n\r\n",
    );
    assert!(!seen.head.contains("203.0.113.9"), "{}", seen.head);
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn connection_takes_off_what_it_names_but_not_what_frames_or_routes() {
    let seen = forwarded(
        "POST / HTTP/1.1\r\nHost: h\r\nConnection: close, X-Hop, Host, Content-Length, X-Forwarded-For\r\nX-Hop: 1\r\n\
         Content-Length: 2\r\nTE: trailers, deflate\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\nKeep-Alive: 5\r\n\r\nhi",
    );
    assert_eq!((seen.values("host"), seen.values("content-length"), seen.body.len()), (vec!["h"], vec!["2"], 2));
    assert_eq!((seen.values("te"), seen.values("x-forwarded-for").len()), (vec!["trailers"], 1));
    for name in ["x-hop", "upgrade", "connection", "keep-alive", "http2-settings"] {
        assert_eq!(seen.values(name), [""; 0], "{name}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (upstream, gateway) = start("");
    let mut client = Client::connect(gateway.address);
    let requests = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\r\n\
                    HEAD /3 HTTP/1.1\r\nHost: h\r\n\r\nGET /4 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    client.send(requests.as_bytes());
    for head in [false, false, true, false] {
        assert_eq!(client.answer(head).unwrap().status, 200);
    }
    assert_eq!(client.rest(), b"");
    let targets: Vec<String> = upstream.take_seen().iter().map(|seen| seen.target().to_owned()).collect();
    assert_eq!(targets, ["/1", "/2", "/3", "/4"]);
}

#[test]
fn a_client_that_expects_100_is_told_to_go_on_when_its_body_is_wanted() {
    let (upstream, gateway) = start("");
    let mut client = Client::connect(gateway.address);
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut interim = [0; 25];
    std::io::Read::read_exact(&mut client.socket, &mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(b"hello");
    assert_eq!(client.answer(false).unwrap().status, 200);
    let seen = upstream.take_seen().remove(0);
    assert_eq!((seen.body.as_slice(), seen.values("expect")), (&b"hello"[..], vec![]));
}

#[test]
fn http_1_0_is_answered_and_closed_unless_it_asks_to_stay() {
    let (_upstream, gateway) = start("");
    let mut client = Client::connect(gateway.address);
    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer(false).unwrap().values("connection"), ["keep-alive"]);
    assert_eq!(client.answer(false).unwrap().values("connection"), ["close"]);
    assert_eq!(client.rest(), b"");
}

#[test]
fn an_oversized_head_is_refused_and_an_oversized_body_too() {
    let (upstream, gateway) = start("max_body_bytes = \"1KiB\"");
    let large = |length: usize| "a".repeat(length);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", large(70_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", large(70_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(1000)), 431),
        (format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n{}", large(2000)), 413),
        (
            format!(
                "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n{}\r\n0\r\n\r\n",
                large(2000)
            ),
            413,
        ),
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(request.as_bytes());
        assert_eq!(client.answer(false).unwrap().status, status, "{}", &request[..40]);
    }
    assert!(upstream.take_seen().is_empty());
}

#[test]
fn slow_heads_and_bodies_are_told_so_and_idle_connections_closed_in_silence() {
    let (_upstream, gateway) = start("header_timeout = \"300ms\"\nkeep_alive_timeout = \"300ms\"");
    for slow in [
        "GET / HT",
        "G",
        "GET / HTTP/1.1\r\nHost: h\r\n",
        "PRI * HTTP/2.0\r\n\r\nS",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0000",
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(slow.as_bytes());
        let status = client.answer(false).unwrap().status;
        assert!(status == 408 || (status == 400 && slow.starts_with("PRI")), "{slow:?}: {status}");
        assert_eq!(client.rest(), b"", "{slow:?}");
    }
    let mut silent = Client::connect(gateway.address);
    assert_eq!(silent.rest(), b"");
    let mut idle = Client::connect(gateway.address);
    assert_eq!(idle.get("/").unwrap().status, 200);
    assert_eq!(idle.rest(), b"");
}

#[test]
fn a_slow_upload_is_not_held_against_the_upstream() {
    let upstream = Upstream::start(|_| vec![Step::Send(FINE.to_vec())]);
    let gateway = Gateway::start(upstream.address, "", "response_timeout = \"300ms\"");
    let mut client = Client::connect(gateway.address);
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n");
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(150));
        client.send(b"ab");
    }
    assert_eq!(client.answer(false).unwrap().status, 200);
    assert_eq!(upstream.take_seen()[0].body, b"abababab");
}
