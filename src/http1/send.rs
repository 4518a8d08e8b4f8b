//! A message on its way out: its head, then its body in the framing chosen for it. Head and first data leave in one write.

use super::encode;
use crate::message::{Body, BodyError};
use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Body as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Data up to this size is copied behind the head instead of being written as a piece of its own.
const COPIED: usize = 4096;

/// How the other side learns where the body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The head says it all (no body, or an answer to HEAD): what the body holds is not sent.
    None,
    /// So many octets, told in Content-Length.
    Sized(u64),
    Chunked,
    /// The connection's end.
    UntilClose,
}

#[derive(Debug)]
pub enum SendError {
    Io(io::Error),
    /// The body's source failed; the message cannot be ended properly.
    Body(BodyError),
}

#[derive(Debug)]
pub struct Sender {
    head: Vec<u8>,
    /// Octets of `head` that have left.
    head_sent: usize,
    data: Bytes,
    tail: &'static [u8],
    body: Body,
    mode: Mode,
    ended: bool,
    written: u64,
}

impl Sender {
    /// `head` is a whole head, its closing empty line included.
    #[must_use]
    pub fn new(mut head: Vec<u8>, mut body: Body, mode: Mode) -> Self {
        let mut ended = mode == Mode::None || mode == Mode::Sized(0);
        // Most bodies of our own: short, and as long as was told.
        if let (Body::Full(bytes), Mode::Sized(length)) = (&body, mode)
            && bytes.len() as u64 == length
            && bytes.len() <= COPIED
        {
            head.extend_from_slice(bytes);
            (body, ended) = (Body::Empty, true);
        }
        Self { head, head_sent: 0, data: Bytes::new(), tail: b"", body, mode, ended, written: 0 }
    }

    /// Sends what can be sent; ready when the whole message has left.
    pub fn poll_send<W: AsyncWrite + Unpin>(
        &mut self,
        io: &mut W,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            let waiting = !self.ended && self.data.is_empty() && self.stage(cx).map_err(SendError::Body)?.is_pending();
            if self.pending_bytes() > 0 {
                ready!(self.poll_write(io, cx)).map_err(SendError::Io)?;
            } else if self.ended {
                return Poll::Ready(Ok(()));
            } else if waiting {
                return Poll::Pending;
            }
        }
    }

    /// Whether the other side takes nothing, rather than the body giving nothing.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.pending_bytes() > 0
    }

    /// Octets that have left so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Takes the next frame of the body, if there is one, and frames it.
    fn stage(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, BodyError> {
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else { return Ok(Poll::Pending) };
        match next.transpose()? {
            None => self.end(None)?,
            Some(frame) => match frame.into_data() {
                Ok(data) => self.stage_data(data)?,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.end(Some(&trailers))?;
                    }
                }
            },
        }
        Ok(Poll::Ready(()))
    }

    fn stage_data(&mut self, data: Bytes) -> Result<(), BodyError> {
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.mode {
            Mode::None | Mode::UntilClose => {}
            Mode::Sized(left) => {
                *left =
                    left.checked_sub(data.len() as u64).ok_or(BodyError::Malformed("longer than Content-Length"))?;
                self.ended = *left == 0;
            }
            Mode::Chunked => {
                encode::chunk_start(&mut self.head, data.len());
                self.tail = b"\r\n";
            }
        }
        if data.len() <= COPIED {
            self.head.extend_from_slice(&data);
            self.head.extend_from_slice(std::mem::take(&mut self.tail));
        } else {
            self.data = data;
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), BodyError> {
        self.ended = true;
        match self.mode {
            Mode::Chunked => encode::last_chunk(&mut self.head, trailers),
            Mode::Sized(left) if left > 0 => return Err(BodyError::Malformed("shorter than Content-Length")),
            _ => {}
        }
        Ok(())
    }

    fn pending_bytes(&self) -> usize {
        self.head.len() - self.head_sent + self.data.len() + self.tail.len()
    }

    fn poll_write<W: AsyncWrite + Unpin>(&mut self, io: &mut W, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io = Pin::new(io);
        let written = if self.data.is_empty() && self.tail.is_empty() {
            ready!(io.poll_write(cx, &self.head[self.head_sent..]))?
        } else {
            let slices =
                [IoSlice::new(&self.head[self.head_sent..]), IoSlice::new(&self.data), IoSlice::new(self.tail)];
            ready!(io.poll_write_vectored(cx, &slices))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        self.written += written as u64;
        let head = written.min(self.head.len() - self.head_sent);
        self.head_sent += head;
        written -= head;
        if self.head_sent == self.head.len() {
            self.head.clear();
            self.head_sent = 0;
        }
        let data = written.min(self.data.len());
        self.data.advance(data);
        written -= data;
        self.tail = &self.tail[written..];
    }
}
