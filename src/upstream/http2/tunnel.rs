//! A stream as a pair of octet streams, once it has been switched to another protocol (RFC 8441).

use super::link::Open;
use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub struct Duplex {
    incoming: RecvStream,
    outgoing: SendStream<Bytes>,
    /// Come, and not yet read.
    input: Bytes,
    open: Option<Open>,
}

impl Duplex {
    pub fn new(incoming: RecvStream, outgoing: SendStream<Bytes>) -> Self {
        Self { incoming, outgoing, input: Bytes::new(), open: None }
    }

    /// The stream stays in its connection's count.
    #[must_use]
    pub fn counted(mut self, open: Open) -> Self {
        self.open = Some(open);
        self
    }
}

impl AsyncRead for Duplex {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let duplex = self.get_mut();
        while duplex.input.is_empty() {
            match ready!(duplex.incoming.poll_data(cx)) {
                Some(data) => duplex.input = data.map_err(io::Error::other)?,
                None => return Poll::Ready(Ok(())),
            }
            if let Some(open) = &duplex.open {
                open.link.heard();
            }
        }
        let length = duplex.input.len().min(buffer.remaining());
        buffer.put_slice(&duplex.input[..length]);
        duplex.input.advance(length);
        let released = duplex.incoming.flow_control().release_capacity(length);
        Poll::Ready(released.map_err(io::Error::other))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let outgoing = &mut self.get_mut().outgoing;
        outgoing.reserve_capacity(octets.len());
        while outgoing.capacity() == 0 {
            match ready!(outgoing.poll_capacity(cx)) {
                Some(capacity) => capacity.map_err(io::Error::other)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let length = outgoing.capacity().min(octets.len());
        let sent = outgoing.send_data(Bytes::copy_from_slice(&octets[..length]), false);
        Poll::Ready(sent.map(|()| length).map_err(io::Error::other))
    }

    /// What was handed over leaves by the connection's own task.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().outgoing.send_data(Bytes::new(), true).map_err(io::Error::other))
    }
}
