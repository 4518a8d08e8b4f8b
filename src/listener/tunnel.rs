//! After a 101 the connection is no longer HTTP: octets are relayed both ways until both sides have ended.

use super::connection::Socket;
use super::drain::Drain;
use crate::message::Tunnel;
use bytes::{Buf, BytesMut};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

const READ: usize = 16 * 1024;

/// Relays until both directions have ended, one has broken, or the gateway has drained for long enough.
pub async fn run<IO>(socket: &Socket<IO>, mut tunnel: Tunnel, drain: &Drain)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Direction::new(socket.input.take());
    let mut down = Direction::new(BytesMut::from(&tunnel.read_ahead[..]));
    let relayed = poll_fn(|cx| {
        let client = &mut *socket.io.borrow_mut();
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
            } else {
                self.buffer.reserve(READ);
                self.ended = ready!(pin!(from.read_buf(&mut self.buffer)).poll(cx))? == 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}
