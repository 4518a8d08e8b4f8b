//! An HTTP/1.1 connection of a client, from its first octet to its last: one request after the other (RFC 9112 §9.3).
//!
//! What cannot be read as one request is answered and closed. The client's leaving is noticed while its request is
//! served, and ends the work for it.

use super::answer;
use super::connection::{RequestBody, Socket};
use super::drain::Drain;
use super::pace::Pace;
use super::target;
use crate::http1::{Decoder, Framing, HeadError, framing, head};
use crate::message::{Body, Request, Response};
use crate::proxy::{Gateway, Peer};
use crate::respond::Failure;
use bytes::BytesMut;
use http::Version;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

/// A body that the request's answer did not wait for is read on up to this size, so that the connection can be kept.
const MAX_DISCARD: usize = 256 * 1024;
/// How long a connection is read on after its last answer, so that a reset cannot overtake the answer.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER: usize = 1024 * 1024;

/// What has happened on a connection while its protocol was found out.
pub struct Begun {
    /// Read already.
    pub input: BytesMut,
    pub opened: Instant,
}

/// Serves the connection to its end.
pub async fn serve<IO>(io: IO, begun: Begun, peer: Rc<Peer>, gateway: Rc<Gateway>, drain: Rc<Drain>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let connection = Connection { socket: Rc::new(Socket::new(io, begun.input)), peer, gateway, drain };
    let mut wait = HeadWait::first(begun.opened + connection.peer.bounds.header_timeout);
    while let Next::KeepAlive { since } = connection.one_request(wait).await {
        wait = HeadWait::next(since + connection.peer.bounds.keep_alive_timeout);
    }
}

/// Answers a connection that cannot be served, and ends it.
pub async fn refuse<IO>(io: IO, failure: Failure, peer: Rc<Peer>, gateway: Rc<Gateway>, drain: Rc<Drain>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let connection = Connection { socket: Rc::new(Socket::new(io, BytesMut::new())), peer, gateway, drain };
    connection.refuse(&failure).await;
}

struct Connection<IO> {
    socket: Rc<Socket<IO>>,
    peer: Rc<Peer>,
    gateway: Rc<Gateway>,
    drain: Rc<Drain>,
}

#[derive(PartialEq, Eq, Debug)]
enum Next {
    KeepAlive { since: Instant },
    Close,
}

/// What came instead of a request.
enum NoRequest {
    /// The client closed, or was idle for too long, or the gateway drains.
    Over,
    Refused(Failure),
}

impl<IO: AsyncRead + AsyncWrite + Unpin + 'static> Connection<IO> {
    async fn one_request(&self, wait: HeadWait) -> Next {
        // Request and answer are filled in where they are: each is some 200 octets, which would be copied at every return.
        let mut response = Response::default();
        let asked = {
            let mut request = Request::default();
            let keep_alive = match self.read_request(&mut request, wait).await {
                Ok(keep_alive) => keep_alive,
                Err(NoRequest::Over) => return Next::Close,
                Err(NoRequest::Refused(failure)) => return self.refuse(&failure).await,
            };
            let (version, head_only) = (request.version, request.method == http::Method::HEAD);
            // Pinned here and not in `unless_gone`: an argument is kept beside what it is pinned to, twice its size.
            let serving = pin!(self.gateway.serve(&self.peer, &mut request, &mut response));
            if self.unless_gone(serving).await.is_none() {
                return Next::Close;
            }
            answer::Asked { version, head_only, keep_alive }
        };
        self.respond(&mut response, &asked).await
    }

    /// Says too whether the client wants to go on afterwards.
    async fn read_request(&self, request: &mut Request, mut wait: HeadWait) -> Result<bool, NoRequest> {
        poll_fn(|cx| self.poll_request(request, &mut wait, cx)).await
    }

    fn poll_request(
        &self,
        request: &mut Request,
        wait: &mut HeadWait,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, NoRequest>> {
        loop {
            let limit = self.peer.bounds.max_header_bytes;
            match head::take_request(&mut self.socket.input.borrow_mut(), limit, request) {
                Ok(true) => return Poll::Ready(self.accept(request).map_err(NoRequest::Refused)),
                Ok(false) => {}
                Err(error) => return Poll::Ready(Err(NoRequest::Refused(unreadable(error)))),
            }
            let begun = !self.socket.input.borrow().is_empty();
            if !begun && self.drain.is_draining() {
                return Poll::Ready(Err(NoRequest::Over));
            }
            match self.socket.poll_read(cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(NoRequest::Over)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => {
                    if !begun {
                        self.socket.rest();
                    }
                    let until = wait.until(begun, self.peer.bounds.header_timeout);
                    return self.socket.poll_deadline(until, cx).map(|()| Err(too_slow(begun)));
                }
            }
        }
    }

    /// Checks the head as a whole and puts the body behind it.
    fn accept(&self, request: &mut Request) -> Result<bool, Failure> {
        let is_framed = request.names.may_have(&CONTENT_LENGTH) || request.names.may_have(&TRANSFER_ENCODING);
        let framing = if is_framed {
            framing::of_request(request.version, &request.headers).map_err(bad)?
        } else {
            Framing::None
        };
        if let Some((target, authority)) = target::split(&request.method, &request.target).map_err(bad)? {
            (request.target, request.authority) = (target, Some(authority));
        }
        target::check_host(&request.headers, request.version).map_err(bad)?;
        let keep_alive = if request.names.may_have(&CONNECTION) {
            framing::keeps_alive(request.version, &request.headers)
        } else {
            request.version == Version::HTTP_11
        };
        self.socket.decoder.set(Decoder::new(framing));
        let expected = if request.names.may_have(&EXPECT) { request.headers.remove(EXPECT) } else { None };
        let waits = expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        if framing != Framing::None {
            if waits && request.version == Version::HTTP_11 {
                self.socket.expect_continue();
            }
            let bounds = &self.peer.bounds;
            let pace = Pace::new(bounds.body_grace(), bounds.stall_timeout);
            let body = RequestBody::new(self.socket.clone(), bounds.max_body_bytes, pace);
            request.body = Body::Stream(Box::pin(body));
        }
        Ok(keep_alive)
    }

    /// Waits for `work` unless the client leaves first.
    async fn unless_gone<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.socket.poll_gone(cx).map(|()| None),
        })
        .await
    }

    async fn respond(&self, response: &mut Response, asked: &answer::Asked) -> Next {
        let tunnel = response.tunnel.take();
        let ends = response.close || !asked.keep_alive || self.drain.is_draining() || self.body_is_too_long();
        let close = tunnel.is_none() && ends;
        let at = response.at.map_or_else(Instant::now, Instant::from_std);
        let mut sender = answer::sender(response, asked, close, at);
        let Ok(sent) = answer::send(&self.socket, &mut sender, self.peer.bounds.stall_timeout, at).await else {
            return Next::Close;
        };
        if let Some(tunnel) = tunnel {
            super::tunnel::run(&self.socket, *tunnel, &self.drain).await;
            return Next::Close;
        }
        match close {
            false if self.socket.decoder.get().is_done() => Next::KeepAlive { since: sent },
            false if self.discard_body().await => Next::KeepAlive { since: Instant::now() },
            _ => self.linger().await,
        }
    }

    /// Whether so much of the request's body is still to come that the connection is better closed.
    fn body_is_too_long(&self) -> bool {
        let decoder = self.socket.decoder.get();
        let long = decoder.remaining().is_some_and(|left| left > MAX_DISCARD as u64);
        long || (!decoder.is_done() && self.socket.awaits_continue())
    }

    async fn discard_body(&self) -> bool {
        let mut most = MAX_DISCARD;
        let discarding = poll_fn(|cx| self.socket.poll_discard(&mut most, cx));
        timeout(self.peer.bounds.header_timeout, discarding).await.unwrap_or(false)
    }

    async fn refuse(&self, failure: &Failure) -> Next {
        self.gateway.record_unread(&self.peer, failure);
        let written = self.write_all(&failure.bytes()).await;
        if written.is_ok() { self.linger().await } else { Next::Close }
    }

    async fn write_all(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut rest = bytes;
        let writing = poll_fn(|cx| {
            while !rest.is_empty() {
                let mut io = self.socket.io.borrow_mut();
                let written = std::task::ready!(std::pin::Pin::new(&mut *io).poll_write(cx, rest))?;
                rest = &rest[written..];
            }
            Poll::Ready(Ok(()))
        });
        timeout(LINGER, writing).await.map_err(|_| std::io::ErrorKind::TimedOut)?
    }

    /// Says that nothing more will come, and reads on for a moment: an early close would reset the connection, and the
    /// client could lose the answer that explains it.
    async fn linger(&self) -> Next {
        let mut left = MAX_LINGER;
        let reading = poll_fn(|cx| {
            loop {
                match std::task::ready!(self.socket.poll_read(cx)) {
                    Ok(length @ 1..) if length < left => left -= length,
                    _ => return Poll::Ready(()),
                }
                self.socket.input.borrow_mut().clear();
            }
        });
        let shut = poll_fn(|cx| std::pin::Pin::new(&mut *self.socket.io.borrow_mut()).poll_shutdown(cx)).await;
        if shut.is_ok() {
            let _ = timeout(LINGER, reading).await;
        }
        Next::Close
    }
}

/// Until when the next head, or the rest of it, is waited for.
struct HeadWait {
    idle_until: Instant,
    head_until: Option<Instant>,
}

impl HeadWait {
    /// A connection's first head is due from the moment it was opened.
    fn first(until: Instant) -> Self {
        Self { idle_until: until, head_until: Some(until) }
    }

    fn next(idle_until: Instant) -> Self {
        Self { idle_until, head_until: None }
    }

    fn until(&mut self, begun: bool, header_timeout: Duration) -> Instant {
        if begun { *self.head_until.get_or_insert_with(|| Instant::now() + header_timeout) } else { self.idle_until }
    }
}

fn too_slow(begun: bool) -> NoRequest {
    if begun { NoRequest::Refused(Failure::RequestTimeout) } else { NoRequest::Over }
}

fn unreadable(error: HeadError) -> Failure {
    match error {
        HeadError::TooLarge => Failure::HeadersTooLarge,
        HeadError::Malformed(why) => bad(why),
    }
}

fn bad(why: &'static str) -> Failure {
    Failure::BadRequest(why.into())
}
