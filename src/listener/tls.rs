//! TLS 1.2 and 1.3 in front of HTTP (rustls with ring): the handshake with its bound, the protocol chosen by ALPN, and a
//! stream that leaves nothing behind in its buffer while others wait for the client.

use super::arrival::Protocol;
use super::certificates::Certificates;
use super::drain::Drain;
use super::{http1, http2, spare};
use crate::config::model::TlsVersion;
use crate::proxy::{Gateway, Peer};
use crate::respond::Failure;
use crate::telemetry::metrics::HandshakeFailure;
use bytes::BytesMut;
use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, server};

const HTTP2: &[u8] = b"h2";
const PROTOCOLS: [&[u8]; 3] = [HTTP2, b"http/1.1", b"http/1.0"];
/// The content type of the record that begins a handshake (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
const PLAIN: &str = "a plain HTTP request came to a TLS port; use https";

/// Of a listener, for all its cores: one set of certificates, and one key for session tickets.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificates: Arc<Certificates>,
}

impl Tls {
    pub fn new(pairs: Vec<Arc<CertifiedKey>>, oldest: TlsVersion) -> Result<Self, rustls::Error> {
        let certificates = Arc::new(Certificates::new(pairs));
        let versions: &[&SupportedProtocolVersion] = match oldest {
            TlsVersion::Tls12 => &[&TLS13, &TLS12],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(certificates.clone());
        config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
        // Keys of its own, changed every six hours: clients resume on any core, and nothing is kept for them here.
        config.ticketer = ring::Ticketer::new()?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificates })
    }

    /// For the handshakes that begin from now on.
    pub fn replace(&self, pairs: Vec<Arc<CertifiedKey>>) {
        self.certificates.replace(pairs);
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Why there is no TLS connection.
enum Broken {
    /// The client left before it said anything, or the gateway drains: nobody's failure.
    Gone,
    Failed(HandshakeFailure, io::Error),
    Plain(TcpStream),
}

/// Shakes hands, and waits for the client's first octets. `None`: the client left, or said nothing while the gateway drains.
pub async fn begin(
    io: TcpStream,
    tls: Tls,
    peer: Rc<Peer>,
    gateway: Rc<Gateway>,
    drain: Rc<Drain>,
) -> Result<Option<Protocol<Box<Stream>>>, (HandshakeFailure, io::Error)> {
    let bound = peer.bounds.header_timeout;
    let shaken = tokio::select! {
        biased;
        shaken = timeout(bound, shake_hands(io, &tls)) => shaken.unwrap_or_else(|_| Err(timed_out())),
        () = drain.left_behind() => Err(Broken::Gone),
    };
    let mut stream = match shaken {
        Ok(stream) => stream,
        Err(Broken::Gone) => return Ok(None),
        Err(Broken::Failed(failure, error)) => return Err((failure, error)),
        Err(Broken::Plain(io)) => {
            http1::refuse(io, Failure::BadRequest(PLAIN.into()), peer, gateway, drain).await;
            return Err((HandshakeFailure::PlainHttp, io::ErrorKind::InvalidData.into()));
        }
    };
    if stream.tls.get_ref().1.alpn_protocol() == Some(HTTP2) {
        return Ok(Some(Protocol::Other(Box::pin(http2::serve(stream, peer, gateway, drain)))));
    }
    let (opened, mut input) = (Instant::now(), BytesMut::new());
    let begun = tokio::select! {
        biased;
        begun = timeout(bound, first_octets(&mut stream, &mut input)) => matches!(begun, Ok(Ok(1..))),
        () = drain.left_behind() => false,
    };
    Ok(begun.then(|| Protocol::Http1 { io: stream, begun: http1::Begun { input, opened }, peer }))
}

fn timed_out() -> Broken {
    Broken::Failed(HandshakeFailure::Timeout, io::ErrorKind::TimedOut.into())
}

/// In a box: what moves with the connection, and what lies in each of its tasks, is a pointer.
async fn shake_hands(io: TcpStream, tls: &Tls) -> Result<Box<Stream>, Broken> {
    let mut first = [0];
    match io.peek(&mut first).await {
        Ok(1..) if first[0] == HANDSHAKE => {}
        Ok(1..) if first[0].is_ascii_uppercase() => return Err(Broken::Plain(io)),
        Ok(1..) => return Err(Broken::Failed(HandshakeFailure::Tls, io::Error::other("not TLS"))),
        Ok(0) | Err(_) => return Err(Broken::Gone),
    }
    match tls.acceptor.accept(io).await {
        Ok(tls) => Ok(Box::new(Stream { tls })),
        Err(error) => Err(Broken::Failed(HandshakeFailure::Tls, error)),
    }
}

/// Reads what the client says first; one that says nothing costs no buffer.
async fn first_octets(stream: &mut Stream, input: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        if input.capacity() == 0 {
            *input = spare::take();
        }
        let read = pin!(stream.read_buf(input)).poll(cx);
        if read.is_pending() {
            spare::put(std::mem::take(input));
        }
        read
    })
    .await
}

/// Plain octets above a TLS connection. rustls takes a write whole and keeps the records that the socket does not take; they
/// leave before the next write is taken, and while a read waits, so that a sender need not flush.
#[derive(Debug)]
pub struct Stream {
    tls: server::TlsStream<TcpStream>,
}

impl Stream {
    /// Ready once no record waits.
    fn poll_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.tls.get_ref().1.wants_write() { Pin::new(&mut self.tls).poll_flush(cx) } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(Err(error)) = self.poll_records(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.tls).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_records(cx))?;
        Pin::new(&mut self.tls).poll_write(cx, octets)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_records(cx))?;
        Pin::new(&mut self.tls).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
