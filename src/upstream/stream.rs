//! The octets of a connection to an endpoint, plain or over TLS. An enum rather than a box: the plain path stays direct
//! calls behind one branch.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Tls(Box<Encrypted>),
}

/// What is written to TLS may stay within it until it is flushed. Its writers only know plain sockets, and always read
/// when they have written; so reading sees to it that what was written leaves.
#[derive(Debug)]
pub struct Encrypted {
    io: TlsStream<TcpStream>,
    unflushed: bool,
}

impl Stream {
    #[must_use]
    pub fn tls(io: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(Encrypted { io, unflushed: false }))
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(io) => io.peer_addr(),
            Self::Tls(tls) => tls.io.get_ref().0.peer_addr(),
        }
    }

    /// What is there now, without waiting; `WouldBlock` if that is nothing.
    pub(super) fn read_now(&mut self, octets: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(io) => io.try_read(octets),
            // Not the socket beneath: session tickets wait there after the handshake, and are nothing to those above.
            Self::Tls(tls) => {
                let mut buffer = ReadBuf::new(octets);
                match Pin::new(&mut tls.io).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
                    Poll::Ready(result) => result.map(|()| buffer.filled().len()),
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }
}

impl Encrypted {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unflushed
            && let Poll::Ready(Err(error)) = self.poll_flush(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_read(cx, buffer),
            Self::Tls(tls) => tls.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_write(cx, octets),
            Self::Tls(tls) => {
                tls.unflushed = true;
                Pin::new(&mut tls.io).poll_write(cx, octets)
            }
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Self::Tls(tls) => {
                tls.unflushed = true;
                Pin::new(&mut tls.io).poll_write_vectored(cx, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(tls) => tls.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut tls.io).poll_shutdown(cx),
        }
    }
}
