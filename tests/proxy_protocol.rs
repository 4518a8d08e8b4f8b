//! The PROXY protocol in front of HTTP and TLS, and the bound on one client's connections, which goes by it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use proxy_header::{ProxiedAddress, ProxyHeader};
use std::fs;
use std::io::Write;
use support::client::{Connection, request};
use support::gateway::{Gateway, Setup};
use support::tls::{Trust, issue};
use support::upstream::Upstream;
use support::wait::eventually;

const ROUTES: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const TRUSTED: &str = "[client_ip]\ntrusted_proxies = [\"127.0.0.1\"]\n";
const PROXY: &str = "proxy_protocol = true\n";

fn start(listener: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    let setup = Setup::new(TRUSTED.to_owned() + &upstream.table() + ROUTES);
    (setup.listener(&(PROXY.to_owned() + listener)).start(), upstream)
}

fn header(source: &str, version: u8) -> Vec<u8> {
    let source: std::net::SocketAddr = source.parse().unwrap();
    let destination = std::net::SocketAddr::new(source.ip(), 80);
    let header = ProxyHeader::with_address(ProxiedAddress::stream(source, destination));
    let mut room = [0; 256];
    let length = if version == 1 { header.encode_to_slice_v1(&mut room) } else { header.encode_to_slice_v2(&mut room) };
    room[..length.unwrap()].to_vec()
}

fn failures(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("staunch_handshake_failures_total", &[&format!("reason=\"{reason}\"")])
}

#[test]
fn a_trusted_peers_header_names_the_client() {
    let (gateway, upstream) = start("");
    let local = [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x07"[..], &[4, 0, 4, 0, 0, 0, 0]].concat();
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("/v1", header("203.0.113.7:4711", 1), "203.0.113.7"),
        ("/v2", header("203.0.113.7:4711", 2), "203.0.113.7"),
        ("/v6", header("[2001:db8::7]:4711", 2), "2001:db8::7"),
        ("/unknown", b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        ("/local", local, "127.0.0.1"),
    ];
    for (path, header, client) in cases {
        let mut connection = Connection::open(gateway.port);
        connection.send([&header, request("GET", path, &[("x-forwarded-for", "192.0.2.9")]).as_bytes()].concat());
        assert_eq!(connection.answer().status, 200, "{path}");
        // Who stands in for the client is no trusted proxy, unless it is the peer itself.
        let expected = if client == "127.0.0.1" { "192.0.2.9, 127.0.0.1" } else { client };
        assert_eq!(upstream.hit(path).field("x-forwarded-for"), Some(expected), "{path}");
        assert_eq!(connection.get("/again", &[]).status, 200, "only the first octets are a header");
    }
    for client in ["client=203.0.113.7 ", "client=2001:db8::7 "] {
        eventually(client, || gateway.log().contains(client));
    }
}

#[test]
fn a_header_in_pieces_is_one_header() {
    let (gateway, upstream) = start("");
    for (path, version) in [("/v1", 1), ("/v2", 2)] {
        let mut connection = Connection::open(gateway.port);
        for octet in header("203.0.113.7:4711", version) {
            connection.send([octet]);
        }
        assert_eq!(connection.get(path, &[]).status, 200);
        assert_eq!(upstream.hit(path).field("x-forwarded-for"), Some("203.0.113.7"));
    }
}

#[test]
fn it_comes_before_tls() {
    let upstream = Upstream::start();
    let listener = PROXY.to_owned() + r#"tls = { certificate = "a.pem", private_key = "a.key" }"#;
    let certificate = std::cell::RefCell::new(None);
    let gateway =
        Setup::new(TRUSTED.to_owned() + &upstream.table() + ROUTES).listener(&listener).start_in(|folder, text| {
            certificate.replace(Some(issue(folder, "a", &["localhost"])));
            fs::write(folder.join("staunch.toml"), text).unwrap();
            folder.join("staunch.toml")
        });
    let mut connection = Connection::open(gateway.port);
    connection.send(header("203.0.113.7:4711", 2));
    let trust = Trust::of(&[certificate.take().unwrap()]);
    let mut secure = trust.over(connection.stream, "localhost").unwrap();
    secure.get("/secure").unwrap();
    let hit = upstream.hit("/secure");
    assert_eq!(hit.field("x-forwarded-for"), Some("203.0.113.7"));
    assert_eq!(hit.field("x-forwarded-proto"), Some("https"));
    assert!(trust.connect(gateway.port, "localhost").is_err(), "TLS without a header");
    eventually("it is counted", || failures(&gateway, "proxy_header") == 1.0);
}

#[test]
fn no_header_or_a_malformed_one_ends_the_connection() {
    let (gateway, upstream) = start("header_timeout = \"300ms\"\n");
    let mut counted = 0.0;
    for start in [&b""[..], b"PROXY TCP4 203.0.113.7 192.0.2.1 1\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01\0"] {
        let mut connection = Connection::open(gateway.port);
        connection.send([start, request("GET", "/", &[]).as_bytes()].concat());
        let answer = connection.answer();
        assert_eq!((answer.status, answer.field("connection")), (400, Some("close")));
        counted += 1.0;
        eventually("it is counted", || failures(&gateway, "proxy_header") == counted);
    }
    let mut slow = Connection::open(gateway.port);
    slow.send("PROXY TCP4");
    assert_eq!(slow.answer().status, 400);
    eventually("it is counted", || failures(&gateway, "timeout") == 1.0);
    // A load balancer's look whether the port is open is nobody's failure.
    drop(Connection::open(gateway.port));
    assert_eq!(failures(&gateway, "proxy_header"), counted);
    assert!(upstream.hits().is_empty());
}

#[test]
fn a_stranger_is_not_believed() {
    let upstream = Upstream::start();
    let text = "[client_ip]\ntrusted_proxies = [\"10.0.0.0/8\"]\n".to_owned() + &upstream.table() + ROUTES;
    let gateway = Setup::new(text).listener(PROXY).start();
    let mut connection = Connection::open(gateway.port);
    connection.stream.write_all(&header("203.0.113.7:4711", 1)).unwrap();
    let answer = connection.answer();
    assert_eq!((answer.status, answer.field("connection")), (400, Some("close")));
    eventually("it is counted", || failures(&gateway, "stranger") == 1.0);
    assert!(upstream.hits().is_empty());
}

#[test]
fn a_client_has_so_many_connections_and_no_more() {
    let (gateway, _upstream) = start("max_connections_per_client = 2\n");
    let open = |source: &str| {
        let mut connection = Connection::open(gateway.port);
        connection.send(header(source, 2));
        connection
    };
    let served = |connection: &mut Connection| connection.try_get("/").is_some_and(|answer| answer.status == 200);
    let (mut first, mut second) = (open("[2001:db8::1]:1"), open("[2001:db8::2]:2"));
    assert!(served(&mut first) && served(&mut second));
    assert!(!served(&mut open("[2001:db8::3]:3")), "a third of one /64");
    assert!(served(&mut open("[2001:db8:0:1::1]:4")), "another client");
    assert_eq!(gateway.metric("staunch_connections_rejected_total", &[]), 1.0);
    drop(first);
    eventually("its place is free again", || served(&mut open("[2001:db8::4]:5")));
}
