//! Exchanges that are legal and rare, or broken midway: each side learns the truth, and the next request is not harmed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{Connection, request};
use support::gateway::{Gateway, Setup};
use support::ports;
use support::upstream::{Reply, Upstream};
use support::wait::eventually;

fn start() -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    let routes = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    (Setup::new(upstream.table() + routes).arguments(&["--workers", "1"]).start(), upstream)
}

fn answers(upstream: &Upstream, path: &str, octets: &str) {
    upstream.on(path, Reply::Bytes(octets.to_owned()));
}

#[test]
fn requests_in_one_packet_are_answered_in_turn_and_routed_each_on_its_own() {
    let upstream = Upstream::start();
    let text = "[policies.p]\nlimits = [{ name = \"l\", key = \"global\", quota = \"1/7d\" }]\n\
                [[routes]]\npath = \"/one\"\nupstream = \"up\"\npolicies = [\"p\"]\n[[routes]]\npath = \"/two\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(upstream.table() + text);
    let mut client = Connection::open(gateway.port);
    let paths = ["/one", "/two", "/one", "/three", "/two"];
    client.send(paths.iter().map(|path| request("GET", path, &[])).collect::<String>());
    let statuses: Vec<_> = paths.iter().map(|_| client.answer().status).collect();
    assert_eq!(statuses, [200, 200, 429, 404, 200]);
    assert_eq!((upstream.count("/one"), upstream.count("/two")), (1, 2));
}

#[test]
fn answers_without_a_body_leave_the_connection_in_step() {
    let (gateway, upstream) = start();
    answers(&upstream, "/204", "HTTP/1.1 204 No Content\r\n\r\n");
    answers(&upstream, "/304", "HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\netag: \"e\"\r\n\r\n");
    answers(&upstream, "/head", "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n");
    let mut client = Connection::open(gateway.port);
    for _ in 0..3 {
        assert_eq!(client.get("/204", &[]).status, 204);
        client.send(request("GET", "/304", &[]));
        let unchanged = client.head();
        assert_eq!((unchanged.status, unchanged.field("etag")), (304, Some("\"e\"")));
        client.send(request("HEAD", "/head", &[]));
        assert_eq!(client.head().number("content-length"), 1234);
        assert_eq!(client.get("/", &[]).body, b"ok");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn interim_answers_do_not_take_the_place_of_the_final_one() {
    let (gateway, upstream) = start();
    answers(
        &upstream,
        "/hints",
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    );
    let mut client = Connection::open(gateway.port);
    client.send(request("GET", "/hints", &[]));
    let mut answer = client.answer();
    while answer.status < 200 {
        answer = client.answer();
    }
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hi"[..]));
    assert_eq!(client.get("/", &[]).body, b"ok");
}

#[test]
fn a_body_that_ends_with_the_connection_is_passed_on_whole() {
    let (gateway, upstream) = start();
    upstream.on("/old", Reply::Raw("HTTP/1.1 200 OK\r\n\r\nuntil the end".to_owned()));
    upstream.on("/older", Reply::Raw("HTTP/1.0 200 OK\r\n\r\nuntil the end".to_owned()));
    let mut client = Connection::open(gateway.port);
    for path in ["/old", "/older"] {
        let answer = client.get(path, &[]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "until the end"), "{path}");
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    let (gateway, upstream) = start();
    answers(
        &upstream,
        "/chunks",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    );
    let mut client = Connection::open(gateway.port);
    client.send("GET /chunks HTTP/1.0\r\nhost: localhost\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("transfer-encoding"), answer.body.as_slice()), (200, None, &b"abcde"[..]));
}

#[test]
fn an_answer_that_breaks_off_is_not_made_to_look_whole() {
    let (gateway, upstream) = start();
    upstream.on("/sized", Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned()));
    upstream
        .on("/chunked", Reply::Raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_owned()));
    for path in ["/sized", "/chunked"] {
        let mut client = Connection::open(gateway.port);
        client.send(request("GET", path, &[]));
        assert_eq!(client.head().status, 200);
        let rest = client.rest();
        assert!(rest.starts_with(b"half") || rest.starts_with(b"4\r\nhalf"), "{path}");
        assert!(!rest.ends_with(b"0\r\n\r\n") && rest.len() < 100, "{path}: {:?}", String::from_utf8_lossy(&rest));
    }
    let broken = || gateway.metric("staunch_requests_total", &["outcome=\"upstream_error\""]);
    eventually("both are counted", || (broken() - 2.0).abs() < 0.5);
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn an_upload_that_breaks_off_is_not_made_to_look_whole() {
    let (gateway, upstream) = start();
    for (path, fields, part) in
        [("/sized", ("content-length", "100"), "half"), ("/chunked", ("transfer-encoding", "chunked"), "4\r\nhalf\r\n")]
    {
        let mut client = Connection::open(gateway.port);
        client.send(request("POST", path, &[fields]) + part);
        eventually("it is upstream", || upstream.count(path) == 1 && upstream.octets() > 0);
        client.leave();
        eventually("the connection is given up", || gateway.metric("staunch_connections_active", &[]) < 0.5);
        assert!(upstream.hit(path).body.is_empty(), "the upstream took it for whole");
    }
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn trailers_pass_and_the_upstreams_connection_is_kept() {
    let (gateway, upstream) = start();
    let octets =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n";
    answers(&upstream, "/sum", octets);
    let mut client = Connection::open(gateway.port);
    client.send(request("GET", "/sum", &[("te", "trailers"), ("connection", "close")]));
    assert_eq!(client.head().status, 200);
    assert_eq!(String::from_utf8(client.rest()).unwrap(), "2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n");
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(upstream.connections(), 1, "the upstream's connection is kept");
}

#[test]
fn what_never_reached_an_upstream_is_sent_to_another_whatever_its_method() {
    let upstream = Upstream::start();
    let text = format!(
        "[upstreams.up]\nendpoints = [\"http://127.0.0.1:{}\", \"http://127.0.0.1:{}\"]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n",
        ports::free(),
        upstream.port
    );
    let gateway = Gateway::start(text);
    let mut client = Connection::open(gateway.port);
    for number in 0..10 {
        client.send(request("POST", "/order", &[("content-length", "2")]) + "hi");
        assert_eq!(client.answer().status, 200, "{number}");
    }
    assert_eq!(upstream.count("/order"), 10);
    assert!(upstream.hits().iter().all(|hit| hit.body == b"hi"));
}

#[test]
fn endpoints_take_turns_by_their_weight() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let text = format!(
        "[upstreams.up]\nendpoints = [\"http://127.0.0.1:{}\", {{ url = \"http://127.0.0.1:{}\", weight = 3 }}]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\n",
        upstreams[0].port, upstreams[1].port
    );
    let gateway = Gateway::start(text);
    let mut client = Connection::open(gateway.port);
    for _ in 0..40 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!(upstreams.each_ref().map(|upstream| upstream.hits().len()), [10, 30]);
}

#[test]
fn a_target_in_absolute_form_and_a_hosts_port_and_case_route_as_the_plain_ones() {
    let upstream = Upstream::start();
    let text = "[[routes]]\nhosts = [\"api.example.com\"]\npath = \"/*\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(upstream.table() + text);
    let status = |head: &str| {
        let mut client = Connection::open(gateway.port);
        client.send(format!("{head}\r\n\r\n"));
        client.answer().status
    };
    assert_eq!(status("GET /a HTTP/1.1\r\nhost: API.Example.com:8080"), 200);
    assert_eq!(status("GET /a HTTP/1.1\r\nhost: api.example.com."), 200);
    assert_eq!(status("GET http://api.example.com/b HTTP/1.1\r\nhost: other.example"), 200);
    assert_eq!(status("GET http://other.example/b HTTP/1.1\r\nhost: api.example.com"), 404);
    assert_eq!(status("GET /a HTTP/1.1\r\nhost: other.example"), 404);
    assert_eq!(upstream.hit("/b").field("host"), Some("api.example.com"));
}
