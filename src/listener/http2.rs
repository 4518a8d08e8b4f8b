//! An HTTP/2 connection of a client, by prior knowledge (RFC 9113 §3.3). `hyper` speaks the protocol; each stream is one
//! request to the gateway.

use super::drain::Drain;
use crate::message::{Body, BodyError, Request};
use crate::proxy::{Gateway, Peer};
use bytes::{Bytes, BytesMut};
use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams one connection may have open; nginx's and Envoy's defaults are 128 and 100.
const MAX_STREAMS: u32 = 128;
/// A peer that answers no ping for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves the connection to its end; what was read while the protocol was found out comes first from `io` again.
pub async fn serve<IO>(io: IO, peer: Rc<Peer>, gateway: Rc<Gateway>, drain: Rc<Drain>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let activity = Rc::new(Activity { streams: Cell::new(0), idle_since: Cell::new(Instant::now()) });
    let (bounds, counted) = (peer.bounds.clone(), activity.clone());
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (gateway, peer, stream) = (gateway.clone(), peer.clone(), Stream::open(&counted));
        async move {
            let request = translate(request, peer.bounds.max_body_bytes);
            let response = gateway.serve(&peer, request).await;
            drop(stream);
            Ok::<_, Infallible>(answer(response))
        }
    });
    let connection = http2::Builder::new(Local)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(bounds.max_header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut idle_timer = crate::http1::Timer::default();
    let mut closing = false;
    poll_fn(|cx| {
        if !closing
            && (drain.is_draining() || activity.poll_idle(&mut idle_timer, bounds.keep_alive_timeout, cx).is_ready())
        {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        // How it ended matters to nobody: its streams have been recorded one by one.
        connection.as_mut().poll(cx).map(|_| ())
    })
    .await;
}

/// Which streams are open, and since when none is.
struct Activity {
    streams: Cell<usize>,
    idle_since: Cell<Instant>,
}

impl Activity {
    fn poll_idle(&self, timer: &mut crate::http1::Timer, limit: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let since = if self.streams.get() == 0 { self.idle_since.get() } else { Instant::now() };
        timer.poll_at(since + limit, cx)
    }
}

struct Stream(Rc<Activity>);

impl Stream {
    fn open(activity: &Rc<Activity>) -> Self {
        activity.streams.set(activity.streams.get() + 1);
        Self(activity.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

fn translate(request: http::Request<Incoming>, max_body_bytes: u64) -> Request {
    let (mut parts, body) = request.into_parts();
    join_cookies(&mut parts.headers);
    let authority = parts.uri.authority().map(|authority| Bytes::copy_from_slice(authority.as_str().as_bytes()));
    if authority.is_some() {
        parts.headers.remove(HOST);
    }
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let body = if http_body::Body::is_end_stream(&body) {
        Body::Empty
    } else {
        Body::Stream(Box::pin(StreamBody { incoming: body, allowed: max_body_bytes }))
    };
    Request {
        method: parts.method,
        target: Bytes::copy_from_slice(target.as_bytes()),
        authority,
        version: parts.version,
        headers: parts.headers,
        body,
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

fn answer(response: crate::message::Response) -> http::Response<Body> {
    let mut answer = http::Response::new(response.body);
    *answer.status_mut() = response.status;
    *answer.headers_mut() = response.headers;
    answer
}

/// The body of a request's stream, bounded by `max_body_bytes`.
struct StreamBody {
    incoming: Incoming,
    allowed: u64,
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        Pin::new(&mut body.incoming).poll_frame(cx).map(|next| {
            let frame = next?.map_err(|_| BodyError::ClientGone);
            Some(frame.and_then(|frame| {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                body.allowed = body.allowed.checked_sub(length).ok_or(BodyError::TooLarge)?;
                Ok(frame)
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
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
    tokio::io::join(tokio::io::AsyncReadExt::chain(std::io::Cursor::new(input), reader), writer)
}
