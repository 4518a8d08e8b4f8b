//! Ways around a limit, each tried on a limit that is used up: counted in the right bucket, so refused, or no request at all.
//! Beside the limited routes there is one for everything else, without a limit: whatever slips past is served there, and told.

mod support;

use support::client::Connection;
use support::frames::{H2, Outcome};
use support::gateway::{Gateway, Setup};
use support::upstream::Upstream;

/// As config.md names them: `login` is limited by address, `tenant` by a field, `sub` by host and method.
const POLICIES: &str = r#"
[policies.login]
limits = [{ name = "login", key = "client_ip", quota = "1/7d" }]
[policies.tenant]
limits = [{ name = "tenant", key = "header:x-tenant", quota = "1/7d", on_missing_key = "reject" }]
[policies.sub]
limits = [{ name = "sub", key = ["host", "method"], quota = "1/7d" }]
[[routes]]
path = "/login"
methods = ["GET", "POST"]
upstream = "up"
policies = ["login"]
[[routes]]
path = "/users/{id}/posts"
upstream = "up"
policies = ["login"]
[[routes]]
path = "/v1/*"
upstream = "up"
policies = ["login"]
[[routes]]
path = "/tenant"
upstream = "up"
policies = ["tenant"]
[[routes]]
hosts = ["sub.test", "*.wild.test"]
path = "/*"
upstream = "up"
policies = ["sub"]
[[routes]]
path = "/*"
upstream = "up"
"#;

fn start(settings: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    let gateway = Setup::new(format!("{settings}{POLICIES}{}", upstream.table())).start();
    (gateway, upstream)
}

/// A request as it is, on a connection of its own; 0 where the connection ended without an answer.
fn status(gateway: &Gateway, octets: &[u8]) -> u16 {
    let mut client = Connection::open(gateway.port);
    client.send(octets);
    client.try_answer().map_or(0, |answer| answer.status)
}

fn plain(gateway: &Gateway, head: &str) -> u16 {
    status(gateway, format!("{head}\r\n\r\n").as_bytes())
}

/// What is not served: refused by its limit, or as no proper request.
fn stays_out(status: u16) -> bool {
    [429, 400, 431].contains(&status)
}

/// Tries each head against limits that are used up, and sees that nothing of it arrived.
fn none_gets_through(settings: &str, used_up: &[&str], heads: &[String]) {
    let (gateway, upstream) = start(settings);
    for head in used_up {
        assert_eq!((plain(&gateway, head), plain(&gateway, head)), (200, 429), "{head}");
    }
    let before = upstream.hits().len();
    let through: Vec<_> =
        heads.iter().map(|head| (plain(&gateway, head), head)).filter(|(status, _)| !stays_out(*status)).collect();
    assert!(through.is_empty(), "{through:#?}");
    assert_eq!(upstream.hits().len(), before);
}

#[test]
fn a_path_however_it_is_spelt() {
    let spellings = [
        "//login",
        "///login",
        "/./login",
        "/login/.",
        "/login/",
        "/login//",
        "/x/../login",
        "/x/%2e%2e/login",
        "/x/%2E./login",
        "/x/.%2e/login",
        "/%2e/login",
        "/../login",
        "/../../login",
        "/%6Cogin",
        "/%6c%6f%67%69%6e",
        "/login?",
        "/login?next=/",
        "/login%2F",
        "/login%2f",
        "/login%5C",
        "/login\\",
        "/login%00",
        "/login%0a",
        "/login#a",
        "/x/..%2Flogin",
        "/x%2F..%2Flogin",
        "/%%6cogin",
        "/%u006cogin",
        "/%c0%aflogin",
        "/login%",
        "/login%2",
        "/log\tin",
        "/v1",
        "/v1/",
        "/v1//x",
        "/v1/./x",
        "/x/../v1/y",
        "/v1/%2e%2e/v1/x",
        "/users/7/posts",
        "/users//7/posts",
        "/users/7/x/../posts",
        "/users/%37/posts/",
    ];
    let heads: Vec<_> = spellings.iter().map(|path| format!("GET {path} HTTP/1.1\r\nhost: h")).collect();
    none_gets_through("", &["GET /login HTTP/1.1\r\nhost: h"], &heads);
}

#[test]
fn a_target_in_another_form_and_an_authority_beside_a_host() {
    let heads = [
        "GET http://h/login HTTP/1.1\r\nhost: h",
        "GET HTTP://H/login HTTP/1.1\r\nhost: other",
        "GET http://h//login HTTP/1.1\r\nhost: h",
        "GET http://h/x/../login HTTP/1.1\r\nhost: h",
        "GET http://user@h/login HTTP/1.1\r\nhost: h",
        "GET http:///login HTTP/1.1\r\nhost: h",
        "GET http://h:80:80/login HTTP/1.1\r\nhost: h",
        "GET h/login HTTP/1.1\r\nhost: h",
        "GET login HTTP/1.1\r\nhost: h",
        "GET /login HTTP/1.0",
        "GET /login HTTP/1.1\r\nhost: h\r\nhost: h",
        "GET /login HTTP/1.1\r\nhost: h\r\nhost: other",
        "GET /login HTTP/1.1",
        "CONNECT h:80 HTTP/1.1\r\nhost: h:80",
        "OPTIONS * HTTP/1.1\r\nhost: h",
        // The host is in the key: what is meant is one host, and the target's authority outranks the field.
        "GET / HTTP/1.1\r\nhost: SUB.Test",
        "GET / HTTP/1.1\r\nhost: sub.test.",
        "GET / HTTP/1.1\r\nhost: sub.test:8080",
        "GET / HTTP/1.1\r\nhost: sub.test.:443",
        "GET / HTTP/1.1\r\nhost:sub.test ",
        "GET http://sub.test/ HTTP/1.1\r\nhost: elsewhere.test",
        "GET http://sub.test.:80/ HTTP/1.1\r\nhost: sub.test",
        "GET / HTTP/1.1\r\nhost: sub.test..",
        "GET / HTTP/1.1\r\nhost: sub.test@elsewhere.test",
        "GET / HTTP/1.1\r\nhost: elsewhere.test#sub.test",
        "GET / HTTP/1.1\r\nhost: sub.test/x",
        "GET / HTTP/1.1\r\nhost: sub.test:",
        "GET / HTTP/1.1\r\nhost: sub%2etest",
        "GET / HTTP/1.1\r\nhost: sub.test, elsewhere.test",
    ]
    .map(str::to_owned);
    let used_up = ["GET /login HTTP/1.1\r\nhost: h", "GET / HTTP/1.1\r\nhost: sub.test"];
    none_gets_through("", &used_up, &heads);
}

#[test]
fn a_method_that_claims_to_be_another() {
    let fields = ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "_method"];
    let heads: Vec<_> = fields
        .iter()
        .flat_map(|field| {
            let login = format!("POST /login HTTP/1.1\r\nhost: h\r\n{field}: PATCH\r\ncontent-length: 0");
            let keyed = format!("GET / HTTP/1.1\r\nhost: sub.test\r\n{field}: PUT");
            [login, keyed]
        })
        .chain(["GET /login?_method=PATCH HTTP/1.1\r\nhost: h", "get / HTTP/1.1 \r\nhost: sub.test"].map(str::to_owned))
        .collect();
    let used_up = ["GET /login HTTP/1.1\r\nhost: h", "GET / HTTP/1.1\r\nhost: sub.test"];
    none_gets_through("", &used_up, &heads);
}

#[test]
fn a_field_that_is_repeated_respelt_or_too_large() {
    let long = "a".repeat(70_000);
    let heads = [
        "x-tenant: a",
        "X-TENANT: a",
        "x-tenant:a",
        "x-tenant:   a  ",
        "x-tenant:\ta\t",
        "x-tenant: ",
        "y: 1",
        "x_tenant: b",
        "x-tenant : b",
        " x-tenant: b",
        "x-tenant: b\r\n c",
        "x-tenant: b\rx: y",
        "x-tenant: b\nx: y",
        "x-tenant: b\0",
        "x-tenant\0: b",
        "connection: x-tenant\r\nx-tenant: a",
    ]
    .map(|fields| format!("GET /tenant HTTP/1.1\r\nhost: h\r\n{fields}"));
    let large = format!("GET /tenant HTTP/1.1\r\nhost: h\r\nx-tenant: a\r\nx: {long}");
    let many = format!("GET /tenant HTTP/1.1\r\nhost: h\r\nx-tenant: a\r\n{}x: y", "x: y\r\n".repeat(2000));
    let heads: Vec<_> = heads.into_iter().chain([large, many]).collect();
    none_gets_through("", &["GET /tenant HTTP/1.1\r\nhost: h\r\nx-tenant: a"], &heads);
}

#[test]
fn a_stranger_that_names_another_address() {
    let fields = [
        "X-Forwarded-For: 203.0.113.7",
        "X-Forwarded-For: 127.0.0.2, 127.0.0.1",
        "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-For: 203.0.113.8",
        "Forwarded: for=203.0.113.7",
        "Forwarded: for=\"[2001:db8::7]:4711\"",
        "X-Real-IP: 203.0.113.7",
        "X-Client-IP: 203.0.113.7",
        "True-Client-IP: 203.0.113.7",
        "CF-Connecting-IP: 203.0.113.7",
        "Fastly-Client-IP: 203.0.113.7",
        "X-Original-Forwarded-For: 203.0.113.7",
        "X-Envoy-External-Address: 203.0.113.7",
        "X_Forwarded_For: 203.0.113.7",
        "Connection: X-Forwarded-For\r\nX-Forwarded-For: 203.0.113.7",
        "Via: 1.1 proxy\r\nX-Forwarded-For: 203.0.113.7",
        "X-Original-URL: /free",
        "X-Rewrite-URL: /free",
        "X-Forwarded-Host: elsewhere.test",
        "X-Forwarded-Prefix: /free",
    ];
    let heads: Vec<_> = fields.iter().map(|fields| format!("GET /login HTTP/1.1\r\nhost: h\r\n{fields}")).collect();
    none_gets_through("", &["GET /login HTTP/1.1\r\nhost: h"], &heads);
}

#[test]
fn a_client_that_moves_within_its_network_or_is_named_in_another_way() {
    let trusted = "[client_ip]\ntrusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n";
    let from = |list: &str| format!("GET /login HTTP/1.1\r\nhost: h\r\nx-forwarded-for: {list}");
    let six = [
        "2001:db8:1:2::1",
        "2001:db8:1:2:ffff:ffff:ffff:ffff",
        "2001:0DB8:0001:0002:0:0:0:9",
        "[2001:db8:1:2::7]",
        "[2001:db8:1:2::7]:4711",
        "203.0.113.9, 2001:db8:1:2::3",
        "2001:db8:1:2::3, 10.0.0.1",
        "2001:db8:1:2::3, 10.0.0.1, 127.0.0.1",
    ];
    let four = [
        "203.0.113.7",
        "203.0.113.7:80",
        "::ffff:203.0.113.7",
        "[::ffff:203.0.113.7]:80",
        "::ffff:cb00:7107",
        "198.51.100.1, 203.0.113.7",
        "unknown, 203.0.113.7",
        "203.0.113.7, ",
        " ,203.0.113.7",
        "203.0.113.7, 10.0.0.1",
    ];
    let heads: Vec<_> = six.iter().chain(&four).map(|list| from(list)).collect();
    none_gets_through(trusted, &[&from("2001:db8:1:2::5"), &from("203.0.113.7")], &heads);
}

#[test]
fn an_http2_client_that_plays_tricks_with_its_pseudo_fields() {
    let (gateway, upstream) = start("");
    assert_eq!(plain(&gateway, "GET /login HTTP/1.1\r\nhost: h"), 200);
    assert_eq!(plain(&gateway, "GET / HTTP/1.1\r\nhost: sub.test"), 200);
    let before = upstream.hits().len();
    let request = |path: &'static str, authority: &'static str| {
        vec![(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", authority)]
    };
    let mut cases: Vec<Vec<(&str, &str)>> =
        ["/login", "//login", "/./login", "/%6cogin", "/x/../login", "/login/", "/login?x", "/login%2f", "/login#x"]
            .iter()
            .map(|path| request(path, "h"))
            .collect();
    cases.extend(["login", "http://h/login", "h/login", "*", ""].iter().map(|path| request(path, "h")));
    cases.extend(["sub.test", "SUB.TEST", "sub.test.", "sub.test:80"].iter().map(|host| request("/", host)));
    for more in [
        &[(":path", "/free")][..],
        &[(":method", "PATCH")],
        &[("host", "elsewhere.test")],
        &[(":authority", "elsewhere.test")],
        &[("x-http-method-override", "PATCH")],
        &[("x-forwarded-for", "203.0.113.7")],
        &[("forwarded", "for=203.0.113.7")],
        &[("x-original-url", "/free")],
        &[("connection", "x-forwarded-for")],
        &[("te", "trailers")],
    ] {
        cases.push([request("/login", "h"), more.to_vec()].concat());
    }
    // A connection that served another stream before, so that nothing is taken over from it.
    for fields in cases {
        let mut h2 = H2::connect(([127, 0, 0, 1], gateway.port).into());
        h2.request(1, &request("/free", "h"));
        assert!(matches!(h2.outcome(1), Outcome::Status(..)));
        h2.request(3, &fields);
        let _ = h2.outcome(3);
    }
    let arrived: Vec<_> = upstream.hits()[before..].iter().map(|hit| hit.path().to_owned()).collect();
    assert!(arrived.iter().all(|path| path == "/free"), "{arrived:?}");
}

#[test]
fn a_connection_that_goes_from_route_to_route() {
    let (gateway, upstream) = start("");
    let mut client = Connection::open(gateway.port);
    let mut ask = |path: &str, host: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        client.answer().status
    };
    let statuses: Vec<_> = (0..2)
        .flat_map(|_| [("/login", "h"), ("/free", "h"), ("/v1/x", "h"), ("/", "a.wild.test"), ("/", "b.wild.test")])
        .map(|(path, host)| ask(path, host))
        .collect();
    // The policy `login` is one for two routes; a host is a key of its own.
    assert_eq!(statuses, [200, 200, 429, 200, 200, 429, 200, 429, 429, 429]);
    // Pipelined, in one piece: each by itself.
    client.send("GET /free HTTP/1.1\r\nhost: h\r\n\r\nGET /login HTTP/1.1\r\nhost: h\r\n\r\nGET /free HTTP/1.1\r\nhost: h\r\n\r\n");
    assert_eq!([(); 3].map(|()| client.answer().status), [200, 429, 200]);
    assert_eq!(upstream.count("/login"), 1);
}
