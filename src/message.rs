//! A request and a body as the rooms between listener and upstream pass them, whatever the protocol they came by.
//!
//! The target stays as sent: `http::Uri` drops a fragment in silence and hides how a path was spelt.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use http_body::{Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};

/// A request's head, and its body.
#[derive(Debug, Default)]
pub struct Request {
    pub method: Method,
    /// Path and query as sent (origin form), or `*`. In absolute form the authority has been taken off.
    pub target: Bytes,
    /// From an absolute target or `:authority`; it outranks `Host` (RFC 9112 §3.2.2, RFC 9113 §8.3.1).
    pub authority: Option<Bytes>,
    pub version: Version,
    pub headers: HeaderMap,
    pub names: Names,
    pub body: Body,
}

/// The lengths of field names, as a set; all above 62 are one. To look for a field in a map costs as much as to read one off
/// the wire, and most of those that are looked for are rarely there.
#[derive(Clone, Copy, Default, Debug)]
pub struct Names(u64);

impl Names {
    /// False: there is no such field.
    #[must_use]
    pub fn may_have(self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name.as_str()) != 0
    }

    fn bit(name: &str) -> u64 {
        1 << name.len().min(63)
    }
}

impl<'a> FromIterator<&'a str> for Names {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        Self(names.into_iter().fold(0, |lengths, name| lengths | Self::bit(name)))
    }
}

/// A message body: nothing, what is at hand, or a stream that is read as fast as it is passed on.
#[derive(Default)]
pub enum Body {
    #[default]
    Empty,
    Full(Bytes),
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError>>>),
}

/// Why a body ended before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the client left")]
    ClientGone,
    #[error("the client sent a malformed body: {0}")]
    Malformed(&'static str),
    #[error("the body is larger than max_body_bytes")]
    TooLarge,
    #[error("the body came too slowly")]
    TooSlow,
    #[error("the upstream broke off")]
    UpstreamBroke,
}

impl Body {
    /// Whether it can be sent a second time.
    #[must_use]
    pub fn replayable(&self) -> bool {
        matches!(self, Self::Empty | Self::Full(_))
    }

    /// A copy of what can be sent again; a stream gives an empty one.
    #[must_use]
    pub fn replay(&self) -> Self {
        match self {
            Self::Full(bytes) => Self::Full(bytes.clone()),
            Self::Empty | Self::Stream(_) => Self::Empty,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => formatter.write_str("Empty"),
            Self::Full(bytes) => write!(formatter, "Full({} bytes)", bytes.len()),
            Self::Stream(_) => formatter.write_str("Stream"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Full(bytes) }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(stream) => stream.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(stream) => stream.size_hint(),
        }
    }
}

/// An answer on its way to the client.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Fields of our own, beside those of the map.
    pub lines: Lines,
    pub body: Body,
    /// When it was made, where the clock was read for that anyway.
    pub at: Option<Instant>,
    /// The client's connection ends with this answer: what came on it cannot be trusted to be one request after the other.
    pub close: bool,
    /// After a 101: the upstream's side of the connection.
    pub tunnel: Option<Box<Tunnel>>,
}

/// Octets both ways, over whatever they go.
pub trait Octets: AsyncRead + AsyncWrite + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Unpin> Octets for IO {}

/// A connection that has left HTTP behind (RFC 9110 §7.8).
pub struct Tunnel {
    pub upstream: Box<dyn Octets>,
    /// What the upstream sent right behind its 101.
    pub read_ahead: Bytes,
    /// Dropped when the tunnel ends: the request is recorded then.
    pub held: Option<Box<dyn std::any::Any>>,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tunnel")
    }
}

impl Default for Response {
    fn default() -> Self {
        Self::new(StatusCode::OK, HeaderMap::new(), Body::Empty)
    }
}

impl Response {
    #[must_use]
    pub fn new(status: StatusCode, headers: HeaderMap, body: Body) -> Self {
        Self { status, headers, lines: Lines::default(), body, at: None, close: false, tunnel: None }
    }
}

/// Header fields in wire form, each `name: value` and CRLF: written once, and on HTTP/1.1 copied as they are. What a
/// limited route's answers carry would cost more in a map than all else about them. A vector: to put a piece into `BytesMut`
/// costs twice as much, and there are some forty.
#[derive(Clone, Default, Debug)]
pub struct Lines(Vec<u8>);

impl Lines {
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Adds a field that starts with `name: `. `value` writes visible ASCII and blanks only.
    #[inline]
    pub fn add(&mut self, start: &'static str, value: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(start.as_bytes());
        value(&mut self.0);
        self.0.extend_from_slice(b"\r\n");
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Puts the fields into a map, for where there is no wire form to copy.
    pub fn append_to(&self, headers: &mut HeaderMap) {
        for line in self.as_bytes().split(|octet| *octet == b'\n') {
            let field = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = field.iter().position(|octet| *octet == b':') else { continue };
            let name = HeaderName::from_bytes(&field[..colon]);
            let value = HeaderValue::from_bytes(field[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
    }
}
