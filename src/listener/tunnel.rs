//! Where HTTP was left behind, octets are relayed both ways until both sides have ended: on a connection after its 101, on a
//! stream of HTTP/2 after an extended CONNECT.
//!
//! A tunnel may be silent for as long as both sides like: no time-out ends it. A side that is gone is found out by the
//! probes of TCP (both sides), and of HTTP/2.

use super::connection::Socket;
use super::drain::Drain;
use super::streams::Open;
use crate::message::Tunnel;
use bytes::{Buf, BytesMut};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

const READ: usize = 16 * 1024;

/// Of an HTTP/1.1 connection, which its socket stands for from here on.
pub async fn run<IO>(socket: &Socket<IO>, tunnel: Tunnel, drain: &Drain)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let read = socket.input.take();
    relay(&mut socket.writer(), read, tunnel, drain).await;
}

/// Of a stream, once the client has been told that it is open.
pub async fn run_stream(upgrade: OnUpgrade, tunnel: Tunnel, drain: Rc<Drain>, open: Open) {
    if let Ok(upgraded) = upgrade.await {
        relay(&mut TokioIo::new(upgraded), BytesMut::new(), tunnel, &drain).await;
    }
    drop(open);
}

/// Relays until both directions have ended, one has broken, or the gateway has drained for long enough. `read` came from
/// the client already.
async fn relay<IO>(client: &mut IO, read: BytesMut, mut tunnel: Tunnel, drain: &Drain)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Direction::new(read);
    let mut down = Direction::new(BytesMut::from(&tunnel.read_ahead[..]));
    let relayed = poll_fn(|cx| {
        let upward = up.poll(client, &mut tunnel.upstream, cx)?;
        let downward = down.poll(&mut tunnel.upstream, client, cx)?;
        if upward.is_ready() && downward.is_ready() { Poll::Ready(io::Result::Ok(())) } else { Poll::Pending }
    });
    tokio::select! {
        _ = relayed => {}
        () = drain.ended() => {}
    }
}

/// One direction of a tunnel.
struct Direction {
    buffer: BytesMut,
    ended: bool,
    shut: bool,
}

impl Direction {
    fn new(buffer: BytesMut) -> Self {
        Self { buffer, ended: false, shut: false }
    }

    fn poll<R, W>(&mut self, from: &mut R, to: &mut W, cx: &mut Context<'_>) -> io::Result<Poll<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match self.poll_relay(from, to, cx) {
            Poll::Ready(result) => result.map(Poll::Ready),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    fn poll_relay<R, W>(&mut self, from: &mut R, to: &mut W, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.shut {
            while !self.buffer.is_empty() {
                let written = ready!(Pin::new(&mut *to).poll_write(cx, &self.buffer))?;
                self.buffer.advance(written);
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.shut = true;
                break;
            }
            // Before it waits for more: over TLS, what was written may still be on this side.
            ready!(Pin::new(&mut *to).poll_flush(cx))?;
            self.buffer.reserve(READ);
            self.ended = ready!(pin!(from.read_buf(&mut self.buffer)).poll(cx))? == 0;
        }
        Poll::Ready(Ok(()))
    }
}
