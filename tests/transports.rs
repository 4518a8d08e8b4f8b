//! Each kind of client through to each kind of upstream: HTTP/1.1 and HTTP/2 on one side, the same with and without TLS on
//! the other. What either sees does not depend on how the other is spoken to.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};
use http_body_util::BodyExt;
use std::sync::atomic::Ordering;
use support::bodies::{FLOOD, fed, flood, nothing, whole};
use support::certificates::Authority;
use support::gateway::{Gateway, Setup};
use support::origin::{Client, Origin, Speaks, Ways};
use support::wait::eventually;

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";

fn gateway(origin: &Origin, authority: &Authority) -> Gateway {
    Setup::new(origin.table(&authority.path("ca.pem")) + "response_timeout = \"1s\"\n" + ROUTE)
        .listener("max_body_bytes = \"unlimited\"")
        .arguments(&["--workers", "1"])
        .start()
}

/// Runs a test on each pair, and says which one it was.
fn each_pair(ways: Ways, test: impl AsyncFn(&mut Client, &Origin, &Gateway, (bool, Speaks))) {
    let authority = Authority::new();
    for speaks in Speaks::ALL {
        let origin = Origin::start_with(speaks, &authority, ways);
        let gateway = gateway(&origin, &authority);
        for http2 in [false, true] {
            eprintln!("a client of HTTP/{}, an upstream of {speaks:?}", if http2 { 2 } else { 1 });
            block_on(async {
                let mut client = Client::connect(gateway.port, http2).await;
                test(&mut client, &origin, &gateway, (http2, speaks)).await;
            });
        }
    }
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(support::wait::PATIENCE, test).await.expect("a hang") });
}

#[test]
fn requests_and_answers_are_the_same_on_every_way() {
    each_pair(Ways::default(), async |client, origin, _, (_, speaks)| {
        let (status, headers, body) = client.ask(Method::GET, "/a?b=1", nothing()).await;
        assert_eq!(
            (status, &body[..], &headers["content-length"]),
            (StatusCode::OK, &b"hello"[..], &"5".parse().unwrap())
        );
        let head = origin.head("/a");
        let host = head.uri.authority().map_or_else(|| head.headers["host"].to_str().unwrap(), |host| host.as_str());
        assert_eq!((host, head.uri.query()), ("shop.test", Some("b=1")));
        assert_eq!(head.version == Version::HTTP_2, speaks.http2());
        if speaks.http2() {
            assert_eq!(head.uri.scheme_str(), Some(if speaks.tls() { "https" } else { "http" }));
            assert!(!head.headers.contains_key("host"));
        }
        assert_eq!(head.headers["x-forwarded-for"], "127.0.0.1");

        let (status, headers, body) = client.ask(Method::HEAD, "/a", nothing()).await;
        assert_eq!((status, body.len(), &headers["content-length"]), (StatusCode::OK, 0, &"5".parse().unwrap()));
        let (status, _, body) = client.ask(Method::GET, "/204", nothing()).await;
        assert_eq!((status, body.len()), (StatusCode::NO_CONTENT, 0));
        let (status, headers, body) = client.ask(Method::GET, "/304", nothing()).await;
        assert_eq!((status, body.len(), &headers["etag"]), (StatusCode::NOT_MODIFIED, 0, &"\"x\"".parse().unwrap()));

        let octets: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let (status, _, body) = client.ask(Method::POST, "/echo", whole(octets.clone())).await;
        assert_eq!((status, body == octets), (StatusCode::OK, true));
    });
}

#[test]
fn an_expected_continue_is_said_on_every_way() {
    let authority = Authority::new();
    for speaks in Speaks::ALL {
        let origin = Origin::start(speaks, &authority);
        let gateway = gateway(&origin, &authority);
        let mut client = support::client::Connection::open(gateway.port);
        client.send("POST /echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n");
        assert_eq!(client.head().status, 100, "{speaks:?}");
        client.send("whole");
        let answer = client.answer();
        assert_eq!((answer.status, answer.text()), (200, "whole".to_owned()), "{speaks:?}");
        assert!(!origin.head("/echo").headers.contains_key("expect"));
    }
}

#[test]
fn events_arrive_one_by_one_on_every_way() {
    each_pair(Ways::default(), async |client, origin, _, _| {
        let feed = origin.events();
        let request = client.request(Method::GET, "/events", nothing());
        let mut body = client.send(request).await.unwrap().into_body();
        for number in 0..10 {
            let event = Bytes::from(format!("data: {number}\n\n"));
            feed.send(event.clone()).await.unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), event);
        }
        drop(feed);
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
    });
}

#[test]
fn calls_stream_both_ways_with_trailers_over_http2() {
    each_pair(Ways::default(), async |client, origin, _, (http2, speaks)| {
        if !(http2 && speaks.http2()) {
            return;
        }
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let (feed, body) = fed(Some(trailers));
        let mut request = client.request(Method::POST, "/echo", body);
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        let mut answer = client.send(request).await.unwrap().into_body();
        for message in ["one", "two", "three"] {
            feed.send(Bytes::from(message)).await.unwrap();
            assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), message);
        }
        drop(feed);
        let end = answer.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(end["grpc-status"], "0");
        assert_eq!(origin.head("/echo").headers["te"], "trailers");
    });
}

#[test]
fn a_websocket_goes_through_on_every_way() {
    for websockets in [true, false] {
        let ways = Ways { websockets, ..Ways::default() };
        each_pair(ways, async |client, origin, _, (http2, speaks)| {
            let headers = client.chat("websocket").await.unwrap();
            let head = origin.head("/chat");
            let on_a_stream = head.version == Version::HTTP_2;
            assert_eq!(on_a_stream, websockets && speaks.http2());
            assert_eq!(head.headers.contains_key("sec-websocket-key"), !on_a_stream);
            assert_eq!(head.headers["sec-websocket-version"], "13");
            if on_a_stream {
                let accept = headers.get("sec-websocket-accept").map(|value| value.to_str().unwrap());
                assert_eq!(accept, (!http2).then_some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
            }
        });
    }
}

#[test]
fn any_protocol_but_http_may_be_changed_to_over_http1() {
    each_pair(Ways::default(), async |client, origin, _, (http2, _)| {
        let told = client.chat("irc").await;
        if http2 {
            assert_eq!(told.unwrap_err(), StatusCode::BAD_REQUEST);
        } else {
            assert_eq!(told.unwrap()["upgrade"], "irc");
            assert_eq!(origin.head("/chat").headers["upgrade"], "irc");
        }
    });
}

#[test]
fn who_leaves_is_noticed_on_the_other_side() {
    each_pair(Ways::default(), async |client, origin, _, (http2, _)| {
        let before = origin.kept.abandoned.load(Ordering::SeqCst);
        let request = client.request(Method::GET, "/broken", nothing());
        // A reset may overtake the head that it follows.
        if let Ok(broken) = client.send(request).await {
            assert!(broken.into_body().collect().await.is_err(), "a body that broke off does not look whole");
        }
        // An HTTP/1.1 client's connection ended with that answer; an HTTP/2 client's goes on.
        if http2 {
            let request = client.request(Method::GET, "/silence", nothing());
            let (kept, held) = (origin.kept.clone(), origin.kept.held.load(Ordering::SeqCst));
            let arrived = tokio::task::spawn_blocking(move || {
                eventually("it arrives", || kept.held.load(Ordering::SeqCst) > held);
            });
            tokio::select! { _ = client.send(request) => {}, arrived = arrived => arrived.unwrap() }
            let kept = origin.kept.clone();
            let left = move || eventually("it is taken back", || kept.abandoned.load(Ordering::SeqCst) > before);
            tokio::task::spawn_blocking(left).await.unwrap();
        }
    });
}

#[test]
fn a_silent_upstream_is_a_504_and_one_that_is_gone_a_502() {
    each_pair(Ways::default(), async |client, _, gateway, _| {
        let (status, headers, _) = client.ask(Method::GET, "/silence", nothing()).await;
        assert_eq!(
            (status, &headers["content-type"]),
            (StatusCode::GATEWAY_TIMEOUT, &"application/problem+json".parse().unwrap())
        );
        assert!(gateway.metric("staunch_upstream_duration_seconds_count", &["upstream=\"up\""]) >= 1.0);
    });
    let authority = Authority::new();
    for speaks in Speaks::ALL {
        let origin = Origin::start(speaks, &authority);
        let gateway = gateway(&origin, &authority);
        assert_eq!(gateway.get("/a").status, 200);
        drop(origin);
        eventually("the port is closed", || gateway.get("/a").status == 502);
    }
}

#[test]
fn another_connection_is_opened_when_one_has_no_room() {
    let authority = Authority::new();
    let origin = Origin::start_with(Speaks::H2, &authority, Ways { max_streams: Some(10), ..Ways::default() });
    let gateway = gateway(&origin, &authority);
    block_on(async {
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..25 {
            let mut client = Client::connect(gateway.port, false).await;
            waiting.spawn(async move { client.ask(Method::GET, "/hold", nothing()).await.0 });
        }
        let kept = origin.kept.clone();
        let all = move || eventually("all are held", || kept.held.load(Ordering::SeqCst) == 25);
        tokio::task::spawn_blocking(all).await.unwrap();
        assert_eq!(origin.kept.connections.load(Ordering::SeqCst), 3);
        origin.kept.release.notify_waiters();
        assert!(waiting.join_all().await.into_iter().all(|status| status == StatusCode::OK));
    });
}

/// Far less than the 64 MiB that pass, far more than one body needs.
const MEMORY_KIB: u64 = 24 << 10;

#[test]
fn large_bodies_pass_in_constant_memory() {
    each_pair(Ways::default(), async |client, origin, gateway, (_, speaks)| {
        if !speaks.http2() {
            return; // HTTP/1.1 has its own test
        }
        let (before, _) = gateway.memory_kib();
        origin.kept.taken.store(0, Ordering::SeqCst);
        let request = client.request(Method::GET, "/flood", nothing());
        let mut body = client.send(request).await.unwrap().into_body();
        // While the client takes nothing, the gateway takes no more than windows and buffers hold.
        for _ in 0..20 {
            Client::connect(gateway.port, true).await.ask(Method::GET, "/a", nothing()).await;
        }
        assert!(origin.kept.taken.load(Ordering::SeqCst) < FLOOD / 2);
        let mut came = 0;
        while let Some(frame) = body.frame().await {
            came += frame.unwrap().into_data().unwrap().len() as u64;
        }
        assert_eq!(came, FLOOD);

        let came_before = origin.kept.came.load(Ordering::SeqCst);
        let (status, _, _) = client.ask(Method::POST, "/count", flood(&origin.kept)).await;
        assert_eq!((status, origin.kept.came.load(Ordering::SeqCst) - came_before), (StatusCode::OK, FLOOD));
        let (_, most) = gateway.memory_kib();
        assert!(most < before + MEMORY_KIB, "{before} KiB before, {most} KiB at most");
    });
}
