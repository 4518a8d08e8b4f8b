//! HTTP/2 towards clients, frame by frame: what breaks the field rules never becomes a request upstream, and no flood or
//! stalled client holds a connection for good.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::io::Write;
use std::time::Duration;
use support::frames::*;
use support::wire::{Client, Gateway, Step, Upstream};

fn start(listener: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start(|target| match target {
        "/204" => vec![Step::Send(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n".to_vec())],
        "/cut" => {
            vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()), Step::Apart, Step::Close]
        }
        "/hang" => vec![Step::Hang],
        _ => vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine".to_vec())],
    });
    let gateway = Gateway::start(upstream.address, listener, "");
    (upstream, gateway)
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "h.test")];

fn connect<'f>(protocol: &'f str, more: Fields<'f>) -> Vec<(&'f str, &'f str)> {
    let target = [(":scheme", "http"), (":path", "/a"), (":authority", "h.test")];
    [&[(":method", "CONNECT"), (":protocol", protocol)], &target[..], more].concat()
}

fn with<'f>(more: Fields<'f>) -> Vec<(&'f str, &'f str)> {
    [&GET[..], more].concat()
}

#[test]
fn a_request_is_forwarded_with_its_authority_as_host_and_its_cookie_in_one_piece() {
    let (upstream, gateway) = start("");
    let mut h2 = H2::connect(gateway.address);
    h2.request(
        1,
        &with(&[
            ("host", "h.test"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("te", "trailers"),
            ("x-forwarded-for", "203.0.113.9"),
        ]),
    );
    assert_eq!(h2.outcome(1), Outcome::Status(OK, false));
    let seen = upstream.take_seen().remove(0);
    assert_eq!((seen.values("host"), seen.values("cookie")), (vec!["h.test"], vec!["a=1; b=2"]));
    assert_eq!((seen.values("x-forwarded-for"), seen.target()), (vec!["127.0.0.1"], "/a"));
}

#[test]
fn what_breaks_the_field_rules_never_becomes_a_request() {
    let (upstream, gateway) = start("");
    let replaced = |name: &str, value: &'static str| -> Vec<(&'static str, &'static str)> {
        GET.iter().map(|field| if field.0 == name { (field.0, value) } else { *field }).collect()
    };
    let without = |name: &str| -> Vec<_> { GET.iter().copied().filter(|field| field.0 != name).collect() };
    let cases: Vec<Vec<(&str, &str)>> = vec![
        // Field names and values that HTTP/1.1 would cut elsewhere.
        with(&[("X-Upper", "1")]),
        with(&[("x y", "1")]),
        with(&[("x:y", "1")]),
        with(&[("", "1")]),
        with(&[("x\r\ny", "1")]),
        with(&[("x", "a\r\nx-smuggled: 1")]),
        with(&[("x", "a\nb")]),
        with(&[("x", "a\0b")]),
        // Fields of a connection.
        with(&[("connection", "close")]),
        with(&[("connection", "x-a"), ("x-a", "1")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("upgrade", "websocket")]),
        with(&[("keep-alive", "5")]),
        with(&[("proxy-connection", "keep-alive")]),
        with(&[("te", "gzip")]),
        // Pseudo-fields.
        with(&[(":path", "/b")]),
        with(&[(":method", "POST")]),
        with(&[(":authority", "other.test")]),
        with(&[("x", "1"), (":late", "1")]),
        with(&[(":status", "200")]),
        with(&[(":protocol", "websocket")]),
        without(":method"),
        without(":path"),
        without(":scheme"),
        without(":authority"),
        replaced(":method", "G T"),
        replaced(":method", ""),
        replaced(":method", "GET / HTTP/1.1\r\nx: y"),
        replaced(":path", ""),
        replaced(":path", "a"),
        replaced(":path", "/a b"),
        replaced(":path", "/a HTTP/1.1\r\nx: y"),
        replaced(":path", "/%00"),
        replaced(":path", "/a\\b"),
        replaced(":path", "*"),
        replaced(":authority", "u@h.test"),
        replaced(":authority", "h.test/x"),
        replaced(":authority", "h test"),
        replaced(":authority", ""),
        // Two hosts.
        with(&[("host", "other.test")]),
        with(&[("host", "h.test"), ("host", "h.test")]),
        // CONNECT, plain and extended to another protocol than a WebSocket, or with a body that no tunnel has.
        vec![(":method", "CONNECT"), (":authority", "h.test:443")],
        connect("h2c", &[]),
        connect("connect-udp", &[]),
        connect("websocket", &[("content-length", "5")]),
        connect("websocket", &[("upgrade", "h2c")]),
        // A length that the stream's end belies.
        with(&[("content-length", "5")]),
        with(&[("content-length", "-1")]),
        with(&[("content-length", "1"), ("content-length", "2")]),
    ];
    for fields in &cases {
        let mut h2 = H2::connect(gateway.address);
        h2.request(1, fields);
        let outcome = h2.outcome(1);
        assert!(
            matches!(outcome, Outcome::Reset | Outcome::Closed | Outcome::Status(BAD_REQUEST, _)),
            "{fields:?}: {outcome:?}"
        );
    }
    let seen: Vec<String> = upstream.take_seen().iter().map(|seen| seen.head.clone()).collect();
    assert_eq!((seen, upstream.take_malformed()), (vec![], vec![]));
}

#[test]
fn a_body_longer_or_shorter_than_its_length_never_completes_a_request() {
    let (upstream, gateway) = start("");
    for (data, length) in [(&b"hello!"[..], "5"), (b"hell", "5"), (b"hello", "0")] {
        let mut h2 = H2::connect(gateway.address);
        h2.frame(HEADERS, END_HEADERS, 1, &block(&with(&[("content-length", length)])));
        h2.frame(DATA, END_STREAM, 1, data);
        let outcome = h2.outcome(1);
        // A head that promises no body is a whole request, and may be answered before what belies it has come.
        let is_whole = length == "0" && matches!(outcome, Outcome::Status(OK, _));
        assert!(
            is_whole || matches!(outcome, Outcome::Reset | Outcome::Closed | Outcome::Status(BAD_REQUEST, _)),
            "{length}: {outcome:?}"
        );
    }
    assert!(upstream.take_seen().iter().all(|seen| seen.body.is_empty()));
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    let (_upstream, gateway) = start("");
    let mut h2 = H2::connect(gateway.address);
    h2.request(1, &[(":method", "HEAD"), GET[1], GET[2], GET[3]]);
    assert_eq!(h2.outcome(1), Outcome::Status(OK, true));
    h2.request(3, &[GET[0], GET[1], (":path", "/204"), GET[3]]);
    assert_eq!(h2.outcome(3), Outcome::Status(NO_CONTENT, true));
    h2.request(5, &[(":method", "HEAD"), GET[1], (":path", "/%00"), GET[3]]);
    assert_eq!(h2.outcome(5), Outcome::Status(BAD_REQUEST, true));
}

/// Sends until the gateway has had enough, and is fine for others meanwhile.
fn ends(gateway: &Gateway, mut flood: impl FnMut(&mut H2, u32)) {
    let mut h2 = H2::connect(gateway.address);
    h2.socket.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    for number in 0..20_000 {
        flood(&mut h2, 2 * number + 1);
        if h2.socket.take_error().unwrap().is_some() {
            break;
        }
    }
    while h2.next().is_some() {}
    assert_eq!(Client::connect(gateway.address).get("/").unwrap().status, 200);
}

#[test]
fn rapid_resets_end_the_connection() {
    let (_upstream, gateway) = start("");
    ends(&gateway, |h2, stream| {
        let reset = [&[0, 0, 4, RST_STREAM, 0][..], &stream.to_be_bytes(), &8_u32.to_be_bytes()].concat();
        let block = block(&GET);
        let head =
            [&u32::try_from(block.len()).unwrap().to_be_bytes()[1..], &[HEADERS, 5], &stream.to_be_bytes()].concat();
        let _ = h2.socket.write_all(&[head, block, reset].concat());
    });
}

#[test]
fn faults_of_the_clients_that_make_us_reset_end_the_connection() {
    let (_upstream, gateway) = start("");
    ends(&gateway, |h2, stream| {
        h2.request(stream, &[GET[0], GET[1], (":path", "/hang"), GET[3]]);
        h2.frame(WINDOW_UPDATE, 0, stream, &[0; 4]);
    });
}

#[test]
fn a_head_that_goes_on_for_ever_ends_the_connection() {
    let (_upstream, gateway) = start("");
    ends(&gateway, |h2, stream| {
        let block = block(&[("x", &"y".repeat(200))]);
        if stream == 1 { h2.frame(HEADERS, 0, 1, &block) } else { h2.frame(CONTINUATION, 0, 1, &block) }
    });
}

#[test]
fn more_streams_than_allowed_are_refused_and_the_others_served() {
    let (_upstream, gateway) = start("");
    let mut h2 = H2::connect(gateway.address);
    for number in 0..129 {
        h2.request(2 * number + 1, &[GET[0], GET[1], (":path", "/hang"), GET[3]]);
    }
    assert_eq!(h2.outcome(257), Outcome::Reset);
}

#[test]
fn pings_and_settings_are_answered_only_as_fast_as_they_are_read() {
    let (_upstream, gateway) = start("");
    let mut h2 = H2::connect(gateway.address);
    h2.socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Nothing is read: at some point the gateway must stop reading too instead of queueing what it owes.
    let ping = [&[0, 0, 8, PING, 0, 0, 0, 0, 0][..], b"12345678"].concat().repeat(1000);
    let mut sent = 0;
    while sent < (64 << 20) && h2.socket.write_all(&ping).is_ok() {
        sent += ping.len();
    }
    assert!(sent < (64 << 20), "64 MiB of pings were taken without one answer being read");
}

#[test]
fn a_client_that_neither_asks_nor_answers_is_let_go() {
    let (_upstream, gateway) = start("header_timeout = \"300ms\"\nkeep_alive_timeout = \"300ms\"");
    // Idle, and without an answer to the goodbye's ping.
    let mut idle = H2::connect(gateway.address);
    while idle.next().is_some() {}
    // In the middle of a head.
    let mut half = H2::connect(gateway.address);
    half.frame(HEADERS, 0, 1, &block(&GET));
    while half.next().is_some() {}
    // In the middle of a body.
    let mut slow = H2::connect(gateway.address);
    slow.frame(HEADERS, END_HEADERS, 1, &block(&GET));
    slow.frame(DATA, 0, 1, b"abc");
    assert!(matches!(slow.outcome(1), Outcome::Status(..)));
}

#[test]
fn an_answer_that_the_upstream_cut_ends_in_a_reset() {
    let (_upstream, gateway) = start("");
    let mut h2 = H2::connect(gateway.address);
    h2.request(1, &[GET[0], GET[1], (":path", "/cut"), GET[3]]);
    assert_eq!(h2.outcome(1), Outcome::Status(OK, false));
    assert_eq!(h2.outcome(1), Outcome::Reset);
    h2.request(3, &GET);
    assert_eq!(h2.outcome(3), Outcome::Status(OK, false));
}
