//! An HTTP/2 connection of a client, by ALPN or by prior knowledge (RFC 9113 §3.2, §3.3). `hyper` speaks the protocol and refuses what its
//! field rules forbid; each stream is one request to the gateway. How much one connection may hold is bounded here.

use super::drain::Drain;
use super::spare;
use super::streams::{Activity, AnswerStream, Open, State};
use super::tunnel;
use crate::http1::{Timer, websocket};
use crate::message::{Body, Request, Response};
use crate::proxy::{Bounds, Gateway, Peer};
use crate::respond::Failure;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams one connection may have open; nginx's and Envoy's defaults are 128 and 100.
const MAX_STREAMS: u32 = 128;
/// Request bodies that wait to be read, of one stream and of all; Envoy's advice for an edge is 64 KiB and 1 MiB, where one
/// stream alone then uploads 1 MiB/s over 64 ms.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Of each stream's answer, what waits to be written; hyper's 400 KiB would be 50 MiB a connection.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// Streams reset before they were looked at (rapid reset, CVE-2023-44487), and streams that ended by a fault of the client's
/// (CVE-2025-8671), before the connection is closed: h2's own default, and an eighth of it.
const MAX_EARLY_RESETS: usize = 20;
const MAX_FAULTS: usize = 128;
/// A peer that answers no ping for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves the connection to its end; what was read while the protocol was found out comes first from `io` again.
pub async fn serve<IO>(io: IO, peer: Rc<Peer>, gateway: Rc<Gateway>, drain: Rc<Drain>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let activity = Activity::new();
    let (bounds, counted) = (peer.bounds.clone(), activity.clone());
    let relayed = drain.clone();
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        let (gateway, peer, open) = (gateway.clone(), peer.clone(), Open::new(&counted));
        let drain = relayed.clone();
        async move {
            let head_only = request.method() == Method::HEAD;
            let upgrade = hyper::upgrade::on(&mut request);
            let mut response = match translate(request, &open, &peer.bounds) {
                Ok(mut request) => {
                    let mut response = Response::default();
                    gateway.serve(&peer, &mut request, &mut response).await;
                    response
                }
                Err(why) => {
                    let failure = Failure::BadRequest(why.into());
                    gateway.record_unread(&peer, &failure);
                    let (parts, body) = failure.response().into_parts();
                    Response::new(parts.status, parts.headers, Body::from(body))
                }
            };
            if let Some(tunnel) = response.tunnel.take() {
                tokio::task::spawn_local(tunnel::run_stream(upgrade, *tunnel, drain, open.again()));
                return Ok(opened(response, open));
            }
            Ok::<_, Infallible>(answer(response, head_only, open))
        }
    });
    let connection = builder(&bounds).serve_connection(TokioIo::new(io), service);
    let (mut connection, mut timer, mut closing) = (pin!(connection), Timer::default(), None);
    poll_fn(|cx| {
        loop {
            // A connection's first head is due as it is over HTTP/1.1.
            let begun = activity.has_begun();
            let idle = if begun { bounds.keep_alive_timeout } else { bounds.header_timeout };
            let state = activity.state(idle, bounds.stall_timeout);
            if closing.is_none() && (drain.is_draining() || state == State::Idle) {
                closing = Some(Instant::now() + bounds.header_timeout);
                connection.as_mut().graceful_shutdown();
            }
            // How it ended matters to nobody: its streams have been recorded one by one.
            let over = state == State::Stalled || (state == State::Idle && !begun);
            if connection.as_mut().poll(cx).is_ready() || over {
                return Poll::Ready(());
            }
            let stalling = activity.give_up(bounds.stall_timeout);
            let again = match (closing, state) {
                // Said goodbye, and the client does not.
                (Some(until), _) if activity.open_streams() == 0 => {
                    if until <= Instant::now() {
                        return Poll::Ready(());
                    }
                    until
                }
                (_, State::Fine(until)) => stalling.map_or(until, |at| at.min(until)),
                (_, State::Idle | State::Stalled) => Instant::now() + bounds.stall_timeout,
            };
            if timer.poll_at(again, cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

fn builder(bounds: &Bounds) -> http2::Builder<Local> {
    let mut builder = http2::Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .max_header_list_size(u32::try_from(bounds.max_header_bytes).unwrap_or(u32::MAX))
        .enable_connect_protocol()
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(MAX_FAULTS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

fn translate(request: http::Request<Incoming>, open: &Open, bounds: &Bounds) -> Result<Request, &'static str> {
    let (mut parts, incoming) = request.into_parts();
    if parts.method == Method::CONNECT {
        as_upgrade(&mut parts)?;
    }
    join_cookies(&mut parts.headers);
    let authority = parts.uri.authority().map(|authority| Bytes::copy_from_slice(authority.as_str().as_bytes()));
    check_host(authority.as_deref(), &parts.headers)?;
    if authority.is_some() {
        parts.headers.remove(HOST);
    }
    parts.headers.remove(EXPECT);
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let body = if http_body::Body::is_end_stream(&incoming) {
        Body::Empty
    } else {
        Body::Stream(Box::pin(open.request_body(incoming, bounds)))
    };
    Ok(Request {
        method: parts.method,
        target: Bytes::copy_from_slice(target.as_bytes()),
        authority,
        version: parts.version,
        names: parts.headers.keys().map(http::HeaderName::as_str).collect(),
        headers: parts.headers,
        body,
    })
}

/// An extended CONNECT (RFC 8441) is from here on what it would be over HTTP/1.1: limits, routes and upstreams see no
/// difference. No client can send these fields over HTTP/2 itself.
fn as_upgrade(parts: &mut http::request::Parts) -> Result<(), &'static str> {
    match parts.extensions.get::<Protocol>() {
        None => return Err("CONNECT is not served"),
        Some(protocol) if !protocol.as_str().eq_ignore_ascii_case(websocket::PROTOCOL) => {
            return Err("no other protocol than a WebSocket is connected to");
        }
        Some(_) => {}
    }
    parts.method = Method::GET;
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    parts.headers.insert(UPGRADE, HeaderValue::from_static(websocket::PROTOCOL));
    let key = websocket::key().ok_or("no key")?;
    parts.headers.insert(websocket::KEY, key);
    Ok(())
}

/// RFC 8441 §5: the stream is open with a 200, and without what only HTTP/1.1 says.
fn opened(response: Response, open: Open) -> http::Response<AnswerStream> {
    let mut response = Response { status: StatusCode::OK, ..response };
    for name in [CONNECTION, UPGRADE, CONTENT_LENGTH, websocket::ACCEPT] {
        response.headers.remove(name);
    }
    answer(response, false, open)
}

/// One host, told once or twice the same (RFC 9113 §8.3.1).
fn check_host(authority: Option<&[u8]>, headers: &HeaderMap) -> Result<(), &'static str> {
    let mut lines = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    match (authority, lines.next(), lines.next()) {
        (_, _, Some(_)) => Err("more than one Host"),
        (None, None, None) => Err("no Host"),
        (Some(authority), Some(host), None) if !authority.eq_ignore_ascii_case(host) => {
            Err("a Host that is not the authority")
        }
        _ => Ok(()),
    }
}

/// RFC 9113 §8.2.3: a cookie may come in crumbs, and is one field again before it goes on over HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, whole);
    }
}

/// Where there can be no body none is sent, and a length is told only where it tells of another answer's (RFC 9110 §8.6).
fn answer(response: Response, head_only: bool, open: Open) -> http::Response<AnswerStream> {
    let Response { status, mut headers, lines, body, .. } = response;
    lines.append_to(&mut headers);
    let bodiless = head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    } else if let (true, Body::Full(bytes)) = (bodiless, &body) {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(bytes.len()));
    }
    let mut answer = http::Response::new(open.answer_body(if bodiless { Body::Empty } else { body }));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

/// Runs a connection's streams on the core it was accepted on.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// What was read already, before what is still to come.
pub fn rewound(io: tokio::net::TcpStream, input: BytesMut) -> impl AsyncRead + AsyncWrite + Unpin {
    let (reader, writer) = io.into_split();
    // A copy of its own size: the first octets are few, and are kept as long as the connection.
    let begun = std::io::Cursor::new(input.to_vec());
    spare::put(input);
    tokio::io::join(tokio::io::AsyncReadExt::chain(begun, reader), writer)
}
