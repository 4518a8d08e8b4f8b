//! `staunch demo`: a small echo upstream and the gateway in front of it, with counters in memory. Needs no file.

use super::run::serve;
use super::{Options, RUN_FAILED};
use crate::app::{App, Source};
use crate::listener::socket::Sharing;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::rc::Rc;

const GATEWAY_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 9090;
/// So many ports are tried where one is taken.
const PORTS: u16 = 100;

#[must_use]
pub fn run(options: &Options) -> ExitCode {
    match addresses() {
        Ok((echo, gateway, admin)) => {
            let text = configuration(&echo, gateway, admin);
            let source = Source::Text { name: "demo".to_owned(), text };
            serve(source, options, Sharing::Refused, async |app| start(echo, app))
        }
        Err(error) => {
            eprintln!("staunch: no free port on 127.0.0.1: {error}");
            ExitCode::from(RUN_FAILED)
        }
    }
}

fn addresses() -> io::Result<(TcpListener, SocketAddr, SocketAddr)> {
    let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    echo.set_nonblocking(true)?;
    let gateway = free_from(GATEWAY_PORT)?;
    Ok((echo, gateway, free_from(ADMIN_PORT)?))
}

fn free_from(first: u16) -> io::Result<SocketAddr> {
    let mut tried = (first..first + PORTS).map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    tried.find_map(Result::ok).ok_or_else(|| io::ErrorKind::AddrInUse.into()).and_then(|bound| bound.local_addr())
}

/// What an operator would write for the same.
fn configuration(echo: &TcpListener, gateway: SocketAddr, admin: SocketAddr) -> String {
    let upstream = echo.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
    format!(
        r#"[[listeners]]
address = "{gateway}"

[admin]
address = "{admin}"

[upstreams.echo]
endpoints = ["http://{upstream}"]

[policies.public]
limits = [
    {{ name = "per-second", key = "client_ip", algorithm = "token_bucket", quota = "2/1s", burst = 5 }},
    {{ name = "per-minute", key = "client_ip", quota = "60/1m" }},
]

[policies.keys]
limits = [{{ name = "per-key", key = "header:x-api-key", quota = "3/10s", on_missing_key = "reject" }}]

[[routes]]
path = "/*"
upstream = "echo"
policies = ["public"]

[[routes]]
name = "keyed"
path = "/keyed/*"
upstream = "echo"
policies = ["keys"]
"#
    )
}

fn start(echo: TcpListener, app: &Rc<App>) {
    match tokio::net::TcpListener::from_std(echo) {
        Ok(listener) => drop(tokio::task::spawn_local(serve_echo(listener))),
        Err(error) => tracing::error!(%error, "the echo upstream cannot serve"),
    }
    let (listeners, admin) = app.addresses();
    let gateway = listeners.first().map_or_else(String::new, ToString::to_string);
    let admin = admin.map_or_else(String::new, |address| address.to_string());
    println!(
        "gateway  http://{gateway}   limits: 2 a second with a burst of 5, 60 a minute; /keyed/*: 3 per key in 10 s"
    );
    println!("admin    http://{admin}   /metrics /status /top /readyz");
    println!();
    println!("Try:");
    println!("  curl -i http://{gateway}/hello");
    println!("  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/; done; echo");
    println!("  curl -i -H 'X-API-Key: alice' http://{gateway}/keyed/");
    println!();
    println!("Ctrl-C ends it.");
}

async fn serve_echo(listener: tokio::net::TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::task::spawn_local(connection);
    }
}

/// Answers with the request as it arrived.
async fn answer(request: hyper::Request<hyper::body::Incoming>) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let mut text = format!("{} {} {:?}\n", request.method(), request.uri(), request.version());
    for (name, value) in request.headers() {
        text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    Ok(hyper::Response::new(Full::from(text)))
}
