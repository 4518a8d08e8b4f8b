//! Who a request is counted as, over sockets: what a client can change does not change it, and no two are mistaken for one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::client::{self, Connection, request};
use support::gateway::Gateway;
use support::redis::RedisServer;
use support::upstream::Upstream;

/// One unit for each key: the first of a key passes, the second does not.
fn start(tables: &str, key: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    let text = format!(
        "{tables}\n[policies.p]\nlimits = [{{ name = \"l\", key = {key}, quota = \"1/7d\", on_missing_key = \"reject\" }}]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n{}",
        upstream.table()
    );
    (Gateway::start(text), upstream)
}

fn status(gateway: &Gateway, fields: &[(&str, &str)]) -> u16 {
    client::get(gateway.port, "/", fields).status
}

#[test]
fn a_strangers_forwarding_fields_change_nothing() {
    let (gateway, upstream) = start("", "\"client_ip\"");
    assert_eq!(status(&gateway, &[]), 200);
    for field in ["x-forwarded-for", "x-real-ip", "forwarded", "cf-connecting-ip", "true-client-ip", "client-ip"] {
        for value in ["1.2.3.4", "for=1.2.3.4", "127.0.0.1, 5.6.7.8"] {
            assert_eq!(status(&gateway, &[(field, value)]), 429, "{field}: {value}");
        }
    }
    assert_eq!(upstream.hits().len(), 1);
}

#[test]
fn a_trusted_proxys_list_is_read_from_the_right_over_all_its_lines() {
    let trusted = "[client_ip]\ntrusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";
    let (gateway, upstream) = start(trusted, "\"client_ip\"");
    let through = |lines: &[&str]| {
        let fields: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
        status(&gateway, &fields)
    };
    assert_eq!(through(&["203.0.113.1"]), 200);
    // The same client, whatever it puts on the left, and whichever proxies follow.
    for same in [
        &["9.9.9.9, 203.0.113.1"][..],
        &["9.9.9.9", "203.0.113.1"],
        &["203.0.113.1, 10.1.2.3"],
        &["203.0.113.1:4711"],
        &["::ffff:203.0.113.1"],
        &["unknown, , 203.0.113.1 ,"],
    ] {
        assert_eq!(through(same), 429, "{same:?}");
    }
    assert_eq!(through(&["203.0.113.1, 203.0.113.2"]), 200, "another one");
    assert_eq!(through(&["2001:db8::1"]), 200);
    assert_eq!(through(&["[2001:db8::2]:443"]), 429, "one network of 64 bits is one client");
    assert_eq!(through(&["2001:db8:0:1::1"]), 200, "the next one is another");
    assert_eq!(upstream.hits().len(), 4);
    assert_eq!(upstream.hits()[0].field("x-forwarded-for"), Some("203.0.113.1, 127.0.0.1"));
}

#[test]
fn parts_of_a_key_cannot_be_shifted_into_each_other_in_memory_or_redis() {
    let server = RedisServer::start();
    let redis =
        format!("[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntimeout = \"20s\"\n", server.url());
    for store in ["", redis.as_str()] {
        let (gateway, _upstream) = start(store, "[\"header:x-a\", \"header:x-b\"]");
        let pairs = [
            ("ab", "c"),
            ("a", "bc"),
            ("a:b", "c"),
            ("a", "b:c"),
            ("a,b", "c"),
            ("{a}", "c"),
            ("{a", "}c"),
            ("a c", "c"),
        ];
        for (a, b) in pairs {
            assert_eq!(status(&gateway, &[("x-a", a), ("x-b", b)]), 200, "{a} {b}");
            assert_eq!(status(&gateway, &[("x-a", a), ("x-b", b)]), 429, "{a} {b}");
        }
        assert_eq!(status(&gateway, &[("x-a", "a")]), 400, "one part missing");
        let long = "x".repeat(20_000);
        let longer = long.clone() + "y";
        assert_eq!(status(&gateway, &[("x-a", &long), ("x-b", "b")]), 200);
        assert_eq!(status(&gateway, &[("x-a", &longer), ("x-b", "b")]), 200, "a key is not cut");
        assert_eq!(status(&gateway, &[("x-a", &long), ("x-b", "b")]), 429);
    }
}

#[test]
fn any_octets_make_a_key_and_repeated_fields_are_one_value() {
    let (gateway, _upstream) = start("", "\"header:x-key\"");
    let raw = |value: &[u8]| {
        let mut client = Connection::open(gateway.port);
        client.send([b"GET / HTTP/1.1\r\nhost: h\r\nx-key: ", value, b"\r\n\r\n"].concat());
        client.answer().status
    };
    for value in
        [&b"\xff\xfe"[..], b"\x80", "ä".as_bytes(), b"a\tb", b"%00", b"'; return 1 --", b"redis.call('FLUSHALL')"]
    {
        assert_eq!((raw(value), raw(value)), (200, 429), "{value:?}");
    }
    assert_eq!(status(&gateway, &[("x-key", "a"), ("x-key", "b")]), 200);
    assert_eq!(status(&gateway, &[("X-KEY", "a"), ("x-key", "b")]), 429);
    assert_eq!(status(&gateway, &[("x-key", "b"), ("x-key", "a")]), 200, "in their order");
}

#[test]
fn each_source_tells_requests_apart_by_what_it_names_and_nothing_else() {
    let cases: [(&str, &str, &str, &str); 7] = [
        // source, a request, one of the same key, one of another
        (
            "cookie:s",
            "GET / HTTP/1.1\r\ncookie: a=1; s=x",
            "GET /b HTTP/1.1\r\ncookie: s=x; b=2",
            "GET / HTTP/1.1\r\ncookie: s=y",
        ),
        ("query:q", "GET /?q=a%20b HTTP/1.1", "GET /c?z=1&q=a%20b HTTP/1.1", "GET /?q=ab HTTP/1.1"),
        ("host", "GET / HTTP/1.1\r\nx: y", "GET /d HTTP/1.1", "GET http://other/ HTTP/1.1"),
        ("method", "GET / HTTP/1.1", "GET /e HTTP/1.1", "PUT / HTTP/1.1\r\ncontent-length: 0"),
        ("path", "GET /p HTTP/1.1", "GET //%70/../p?x=1 HTTP/1.1", "GET /P HTTP/1.1"),
        ("path_segment:2", "GET /u/7/x HTTP/1.1", "GET /v/7 HTTP/1.1", "GET /u/8/x HTTP/1.1"),
        (
            "bearer",
            "GET / HTTP/1.1\r\nauthorization: Bearer t",
            "GET /f HTTP/1.1\r\nauthorization: bearer t",
            "GET / HTTP/1.1\r\nauthorization: Bearer T",
        ),
    ];
    for (source, first, same, other) in cases {
        let (gateway, _upstream) = start("", &format!("\"{source}\""));
        let ask = |head: &str| {
            let mut client = Connection::open(gateway.port);
            client.send(format!("{head}\r\nhost: h\r\n\r\n"));
            client.answer().status
        };
        assert_eq!((ask(first), ask(same), ask(other)), (200, 429, 200), "{source}");
    }
}

#[test]
fn no_spelling_of_a_path_slips_past_its_limit() {
    let upstream = Upstream::start();
    let text = "[policies.p]\nlimits = [{ name = \"l\", key = \"global\", quota = \"1/7d\" }]\n\
                [[routes]]\npath = \"/login\"\nupstream = \"up\"\npolicies = [\"p\"]\n\
                [[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(upstream.table() + text);
    assert_eq!(gateway.get("/login").status, 200);
    for path in [
        "//login",
        "/./login",
        "/%6Cogin",
        "/%6cogin",
        "/login/",
        "/x/../login",
        "/login?x",
        "/x/%2e%2e/login",
        "/%2E/login",
    ] {
        let mut client = Connection::open(gateway.port);
        client.send(request("GET", path, &[]));
        assert_eq!(client.answer().status, 429, "{path}");
    }
    assert_eq!(gateway.get("/login;x=1").status, 200, "parameters are part of their segment");
    assert_eq!(upstream.hits().len(), 2);
}

#[test]
fn an_override_by_address_holds_for_a_key_that_has_the_address_among_others() {
    let upstream = Upstream::start();
    let limit = |name: &str, allowance: &str| {
        format!(
            "[policies.{name}]\nlimits = [{{ name = \"l\", key = [\"header:x-tenant\", \"client_ip\"], quota = \"1/7d\", \
             overrides = {{ \"127.0.0.0/8\" = {allowance} }} }}]\n\
             [[routes]]\npath = \"/{name}\"\nupstream = \"up\"\npolicies = [\"{name}\"]\n"
        )
    };
    let text = limit("free", "\"unlimited\"") + &limit("banned", "{ quota = \"0/1s\" }") + &upstream.table();
    let gateway = Gateway::start(text);
    // A comma in the other part leaves the key without a value to compare; the address is what it is.
    for tenant in ["a", "a,b", "a"] {
        let status = |path: &str| client::get(gateway.port, path, &[("x-tenant", tenant)]).status;
        assert_eq!((status("/free"), status("/banned")), (200, 429), "{tenant}");
    }
    assert_eq!(gateway.ask_admin("/limits/free/l?key=a&key=127.0.0.1").status, 404, "unlimited: nothing is counted");
}
