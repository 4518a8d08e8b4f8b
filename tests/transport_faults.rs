//! What goes wrong on the way to an upstream over TLS or HTTP/2: whoever is not who it should be gets no request, and what
//! an upstream has not looked at is tried again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use support::certificates::Authority;
use support::client::{Connection, request};
use support::frames::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, OK, PING, RST_STREAM, SETTINGS};
use support::gateway::{Gateway, Setup};
use support::origin::{Origin, Speaks, Ways};
use support::wait::eventually;

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const ACK: u8 = 1;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// How a request is met.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Met {
    Answered,
    Reset(u32),
    /// GOAWAY names no stream as processed.
    Gone,
    /// GOAWAY names this one, and the connection ends.
    GoneWithIt,
}

/// Meets each request, on whatever connection, as its turn says; keeps the bodies of those it answers.
fn raw_http2(turns: &[Met]) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (turns, bodies) = (Arc::new(Mutex::new(turns.to_vec())), Arc::new(Mutex::new(Vec::new())));
    let kept = bodies.clone();
    std::thread::spawn(move || {
        for io in listener.incoming().map_while(Result::ok) {
            let (turns, kept) = (turns.clone(), kept.clone());
            // An error is the connection's end.
            std::thread::spawn(move || serve(io, &turns, &kept));
        }
    });
    (port, bodies)
}

fn serve(mut io: TcpStream, turns: &Mutex<Vec<Met>>, bodies: &Mutex<Vec<Vec<u8>>>) -> std::io::Result<()> {
    io.read_exact(&mut [0; 24])?;
    write(&mut io, SETTINGS, 0, 0, &[])?;
    let mut body = Vec::new();
    loop {
        let mut head = [0; 9];
        io.read_exact(&mut head)?;
        let (kind, flags, stream) = (head[3], head[4], u32::from_be_bytes(head[5..].try_into().unwrap()));
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]).try_into().unwrap()];
        io.read_exact(&mut payload)?;
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let echoed = if kind == PING { &payload[..] } else { &[] };
                write(&mut io, kind, ACK, 0, echoed)?;
            }
            DATA => body.extend(payload),
            _ => {}
        }
        if !matches!(kind, HEADERS | DATA) || flags & END_STREAM == 0 {
            continue;
        }
        let mut turns = turns.lock().unwrap();
        let met = if turns.is_empty() { Met::Answered } else { turns.remove(0) };
        let body = std::mem::take(&mut body);
        match met {
            Met::Answered => {
                bodies.lock().unwrap().push(body);
                // Hints first, as a literal of HPACK: `:status: 103`. They are not passed on.
                write(&mut io, HEADERS, END_HEADERS, stream, &[8, 3, b'1', b'0', b'3'])?;
                write(&mut io, HEADERS, END_HEADERS | END_STREAM, stream, &[OK])?;
            }
            Met::Reset(code) => write(&mut io, RST_STREAM, 0, stream, &code.to_be_bytes())?,
            Met::Gone => write(&mut io, GOAWAY, 0, 0, &[0; 8])?,
            Met::GoneWithIt => {
                let last = [stream.to_be_bytes(), [0; 4]].concat();
                return write(&mut io, GOAWAY, 0, 0, &last);
            }
        }
    }
}

fn write(io: &mut TcpStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    io.write_all(&[&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat())
}

fn over_http2(port: u16, more: &str) -> Gateway {
    let table = format!("[upstreams.up]\nendpoints = [\"http://127.0.0.1:{port}\"]\nhttp2 = true\n{more}\n");
    Setup::new(table + ROUTE).start()
}

fn post(gateway: &Gateway, body: &str) -> u16 {
    let mut client = Connection::open(gateway.port);
    let length = body.len();
    client.send(format!("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}"));
    client.answer().status
}

#[test]
fn what_an_upstream_has_not_looked_at_is_tried_again_with_its_body() {
    for met in [Met::Reset(REFUSED_STREAM), Met::Gone] {
        let (port, bodies) = raw_http2(&[met]);
        let gateway = over_http2(port, "");
        assert_eq!(post(&gateway, "whole"), 200, "{met:?}");
        assert_eq!(*bodies.lock().unwrap(), [b"whole"], "{met:?}");
    }
}

#[test]
fn what_it_may_have_looked_at_is_tried_again_only_if_that_does_no_harm() {
    for met in [Met::Reset(INTERNAL_ERROR), Met::GoneWithIt] {
        let (port, bodies) = raw_http2(&[met, Met::Answered, met]);
        let gateway = over_http2(port, "");
        assert_eq!(post(&gateway, "whole"), 502, "{met:?}");
        assert_eq!(post(&gateway, "next"), 200, "{met:?}: the one after it is not hurt");
        assert_eq!(gateway.get("/a").status, 200, "{met:?}: a GET is repeated");
        assert_eq!(bodies.lock().unwrap().len(), 2, "{met:?}");
    }
}

#[test]
fn without_tries_left_a_refused_request_is_a_502() {
    let (port, _) = raw_http2(&[Met::Reset(REFUSED_STREAM)]);
    let gateway = over_http2(port, "retries = 0");
    assert_eq!(post(&gateway, "whole"), 502);
    assert_eq!(post(&gateway, "whole"), 200);
}

#[test]
fn an_upstream_that_speaks_no_http2_is_found_out_before_it_gets_a_request() {
    let authority = Authority::new();
    let plain = support::upstream::Upstream::start();
    assert_eq!(over_http2(plain.port, "").get("/a").status, 502);
    assert_eq!(plain.count("/a"), 0);

    let origin = Origin::start(Speaks::Https, &authority);
    let table = origin.table(&authority.path("ca.pem")).replace("http2 = false", "http2 = true");
    let gateway = Setup::new(table + ROUTE).start();
    assert_eq!(gateway.get("/a").status, 502);
    eventually("it is told why", || gateway.log().contains("error=TLS: "));
}

#[test]
fn an_endpoint_that_is_not_who_it_should_be_gets_nothing_and_another_is_tried() {
    let authority = Authority::new();
    let (origin, plain) = (Origin::start(Speaks::Https, &authority), support::upstream::Upstream::start());
    let (ours, other) = (authority.path("ca.pem"), authority.path("other.pem"));
    for (tls, why) in [
        (format!("ca = \"{other}\""), "UnknownIssuer"),
        (format!("ca = \"{ours}\", server_name = \"shop.test\""), "not valid for name"),
    ] {
        let table = |endpoints: &str| format!("[upstreams.up]\nendpoints = [{endpoints}]\ntls = {{ {tls} }}\n{ROUTE}");
        let endpoint = format!("\"https://localhost:{}\"", origin.port);
        let gateway = Setup::new(table(&endpoint)).start();
        let answer = gateway.get("/a");
        assert_eq!(answer.status, 502, "{why}");
        assert!(!answer.text().contains("certificate"), "what is wrong is for the log: {}", answer.text());
        eventually(why, || gateway.log().contains(why));

        let both = table(&format!("{endpoint}, \"http://127.0.0.1:{}\"", plain.port));
        let gateway = Setup::new(both).start();
        assert_eq!([1, 2, 3].map(|_| gateway.get("/b").status), [200; 3], "{why}");
    }
    assert_eq!(plain.count("/b"), 6);
}

#[test]
fn a_name_of_its_own_is_asked_for_and_no_verification_is_warned_of() {
    let authority = Authority::new();
    let origin = Origin::start(Speaks::H2, &authority);
    let ours = authority.path("ca.pem");
    for (host, tls, warned) in [
        ("127.0.0.1", format!("ca = \"{ours}\""), false),
        ("127.0.0.1", format!("ca = \"{ours}\", server_name = \"localhost\""), false),
        ("127.0.0.1", "verify = false".to_owned(), true),
    ] {
        let table = format!(
            "[upstreams.up]\nendpoints = [\"https://{host}:{}\"]\nhttp2 = true\ntls = {{ {tls} }}\n{ROUTE}",
            origin.port
        );
        let gateway = Setup::new(table).start();
        assert_eq!(gateway.get("/a").status, 200, "{tls}");
        // The access line of the request comes behind what was said at the load.
        eventually("the request is told", || gateway.log().contains(" access "));
        assert_eq!(gateway.log().contains("tls.verify is false"), warned, "{tls}");
    }
}

#[test]
fn a_file_is_looked_for_in_the_configurations_own_folder() {
    let authority = Authority::new();
    let origin = Origin::start(Speaks::Https, &authority);
    let gateway = Setup::new(origin.table("authorities/ours.pem") + ROUTE).start_in(|folder, text| {
        std::fs::create_dir(folder.join("authorities")).unwrap();
        std::fs::copy(authority.path("ca.pem"), folder.join("authorities/ours.pem")).unwrap();
        std::fs::write(folder.join("staunch.toml"), text).unwrap();
        folder.join("staunch.toml")
    });
    assert_eq!(gateway.get("/a").status, 200);
    std::fs::write(gateway.folder().join("authorities/ours.pem"), "no PEM").unwrap();
    let told = gateway.reload();
    assert_eq!(told.status, 422);
    assert!(
        told.text().contains("upstreams.up.tls.ca: `authorities/ours.pem` holds no certificate"),
        "{}",
        told.text()
    );
    assert_eq!(gateway.get("/a").status, 200, "what was in force stays");
}

#[test]
fn a_certificate_of_our_own_is_shown_to_who_wants_one() {
    let authority = Authority::new();
    let ways = Ways { client_certificates: true, ..Ways::default() };
    let origin = Origin::start_with(Speaks::Https, &authority, ways);
    let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| authority.path(name));
    let gateway = Setup::new(origin.table(&ca) + ROUTE).start();
    assert_eq!(gateway.get("/a").status, 502);
    let with = format!("certificate = \"{certificate}\", private_key = \"{key}\"");
    let table = origin.table(&ca).replace("tls = { ", &format!("tls = {{ {with}, "));
    let gateway = Setup::new(table + ROUTE).start();
    let mut client = Connection::open(gateway.port);
    client.send(request("GET", "/a", &[]));
    assert_eq!(client.answer().status, 200, "{}", gateway.log());
}
