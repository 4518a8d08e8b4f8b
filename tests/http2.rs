//! HTTP/2 by prior knowledge (h2c) towards clients: the same limits, bodies and failures as over HTTP/1.1.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::Ipv4Addr;
use support::gateway::{Gateway, Setup};
use support::upstream::Upstream;
use support::wait::PATIENCE;

const ROUTES: &str = r#"
[policies.p]
limits = [{ name = "l", key = "header:x-key", quota = "40/7d" }]
[[routes]]
path = "/limited/*"
upstream = "up"
policies = ["p"]
[[routes]]
path = "/open/*"
upstream = "up"
"#;

type Client = SendRequest<Full<Bytes>>;

fn start() -> (Gateway, Upstream) {
    let upstream = Upstream::start();
    (Setup::new(upstream.table() + ROUTES).listener("max_body_bytes = \"64KiB\"").start(), upstream)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(2 * PATIENCE, test).await.expect("in time") });
}

async fn connect(gateway: &Gateway) -> Client {
    let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, gateway.port)).await.unwrap();
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn asking(path: &str) -> http::request::Builder {
    Request::builder().uri(format!("http://api.example{path}"))
}

async fn send(client: &mut Client, request: http::request::Builder, body: impl Into<Bytes>) -> Response<Incoming> {
    client.ready().await.unwrap();
    client.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap()
}

fn field<'r>(response: &'r Response<Incoming>, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn many_streams_at_once_of_one_connection_get_exactly_the_limit() {
    let (gateway, upstream) = start();
    run(async {
        let client = connect(&gateway).await;
        let asked: Vec<_> = (0..100)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move {
                    send(&mut client, asking("/limited/x").header("x-key", "k"), "").await.status().as_u16()
                })
            })
            .collect();
        let mut passed = 0;
        for answer in asked {
            let status = answer.await.unwrap();
            assert!(status == 200 || status == 429, "{status}");
            passed += usize::from(status == 200);
        }
        assert_eq!((passed, upstream.count("/limited/x")), (40, 40));
    });
}

#[test]
fn fields_and_bodies_pass_both_ways() {
    let (gateway, upstream) = start();
    run(async {
        let mut client = connect(&gateway).await;
        let request = asking("/limited/echo?q=1").method("POST").header("x-key", "k").header("cookie", "a=1");
        let response = send(&mut client, request, vec![b'b'; 50_000]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(field(&response, "x-ratelimit-remaining"), Some("39"));
        assert_eq!(field(&response, "ratelimit-policy"), Some("\"l\";q=40;w=604800"));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        let hit = upstream.hit("/limited/echo");
        assert_eq!((hit.method.as_str(), hit.target.as_str()), ("POST", "/limited/echo?q=1"));
        assert_eq!((hit.body.len(), hit.field("host")), (50_000, Some("api.example")));
        assert!(hit.field("via").is_some() && hit.field("cookie") == Some("a=1"));
    });
}

#[test]
fn an_answer_streams_and_a_stream_given_up_is_noticed_upstream() {
    let (gateway, upstream) = start();
    let feed = upstream.stream("/open/events");
    run(async {
        let mut client = connect(&gateway).await;
        let mut response = send(&mut client, asking("/open/events"), "").await;
        for number in 0..5 {
            feed.send(format!("event {number}").into_bytes()).await.unwrap();
            let piece = response.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece, format!("event {number}"));
        }
        drop(response);
        while upstream.abandoned() == 0 {
            // A stream's end is seen at the latest when the next piece cannot be delivered.
            let _ = feed.try_send(b"more".to_vec());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(send(&mut client, asking("/open/other"), "").await.status(), 200, "the connection goes on");
    });
}

#[test]
fn failures_are_problem_bodies() {
    let (gateway, upstream) = start();
    run(async {
        let mut client = connect(&gateway).await;
        let cases = [
            (asking("/nowhere"), 0, 404),
            (asking("/open/%2F"), 0, 400),
            (asking("/open/large").method("POST").header("content-length", "100000"), 100_000, 413),
            (asking("/open/large").method("POST"), 100_000, 413),
        ];
        for (request, octets, status) in cases {
            let response = send(&mut client, request, vec![b'x'; octets]).await;
            assert_eq!(response.status(), status);
            assert_eq!(field(&response, "content-type"), Some("application/problem+json"));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["status"], status);
        }
        assert_eq!(send(&mut client, asking("/open/after"), "").await.status(), 200);
        assert_eq!(
            upstream.hits().iter().filter(|hit| hit.path() == "/open/large" && hit.body.len() > 65536).count(),
            0
        );
    });
}

#[test]
fn a_grpc_call_is_refused_in_grpcs_own_words() {
    let (gateway, upstream) = start();
    run(async {
        let mut client = connect(&gateway).await;
        let call = || {
            let request =
                asking("/limited/pkg.Service/Method").method("POST").header("x-key", "k").header("te", "trailers");
            request.header("content-type", "application/grpc+proto")
        };
        for _ in 0..40 {
            assert_eq!(field(&send(&mut client, call(), "").await, "grpc-status"), None);
        }
        let refused = send(&mut client, call(), "").await;
        assert_eq!((refused.status().as_u16(), field(&refused, "grpc-status")), (200, Some("8")));
        assert_eq!(field(&refused, "content-type"), Some("application/grpc"));
        assert!(field(&refused, "grpc-message").is_some());
        assert!(field(&refused, "grpc-retry-pushback-ms").unwrap().parse::<u64>().unwrap() > 0);
        assert!(hyper::body::Body::is_end_stream(refused.body()), "trailers only");
        assert_eq!(upstream.count("/limited/pkg.Service/Method"), 40);
    });
}

#[test]
fn both_protocols_are_spoken_on_one_port_and_share_counters() {
    let (gateway, upstream) = start();
    run(async {
        let mut client = connect(&gateway).await;
        for _ in 0..20 {
            assert_eq!(send(&mut client, asking("/limited/x").header("x-key", "k"), "").await.status(), 200);
        }
        for _ in 0..20 {
            assert_eq!(gateway.get_as("k", "/limited/x").status, 200);
        }
        assert_eq!(send(&mut client, asking("/limited/x").header("x-key", "k"), "").await.status(), 429);
        assert_eq!(gateway.get_as("k", "/limited/x").status, 429);
        assert_eq!(upstream.count("/limited/x"), 40);
    });
}

#[test]
fn a_stream_in_flight_finishes_while_the_gateway_drains_and_then_the_connection_ends() {
    let (mut gateway, upstream) = start();
    let gate = upstream.hold("/open/slow");
    run(async {
        let mut client = connect(&gateway).await;
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { send(&mut other, asking("/open/slow"), "").await });
        while upstream.count("/open/slow") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        gateway.signal("-TERM");
        while gateway.ask_admin("/readyz").status != 503 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        gate.notify_one();
        let response = waiting.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        while client.ready().await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    assert_eq!(gateway.ends().code(), Some(0));
}
