//! A client's socket as one HTTP/1.1 connection task uses it: reading ahead, noticing that the client left, and the body
//! of the request in hand. All parts run in one task, so a `RefCell` borrowed within a poll is enough.

use super::pace::Pace;
use super::spare::{self, READ};
use crate::http1::{Decoder, Progress, Timer};
use crate::message::BodyError;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// How much of the requests behind the one in hand is read before their turn.
const MAX_READ_AHEAD: usize = 64 * 1024;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[derive(Debug)]
pub struct Socket<IO> {
    pub io: RefCell<IO>,
    /// Read and not yet used.
    pub input: RefCell<BytesMut>,
    /// How far the body of the request in hand has been read.
    pub decoder: Cell<Decoder>,
    /// What is left to write of a `100 Continue` that the client waits for.
    interim: Cell<&'static [u8]>,
    timer: RefCell<Timer>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Socket<IO> {
    pub fn new(io: IO, input: BytesMut) -> Self {
        Self {
            io: RefCell::new(io),
            input: RefCell::new(input),
            decoder: Cell::new(Decoder::Done),
            interim: Cell::new(b""),
            timer: RefCell::default(),
        }
    }

    pub fn poll_read(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut input = self.input.borrow_mut();
        if input.capacity() == 0 {
            *input = spare::take();
        }
        input.reserve(READ);
        pin!(self.io.borrow_mut().read_buf(&mut *input)).poll(cx)
    }

    /// Nothing is in hand and nothing has come: lets go of the memory that the next read will want.
    pub fn rest(&self) {
        spare::put(self.input.take());
    }

    /// Ready when the client has closed its side or the connection broke; reads ahead while it waits. While a request's
    /// body is still to come, whoever reads the body notices.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        while self.decoder.get().is_done() && self.input.borrow().len() < MAX_READ_AHEAD {
            match ready!(self.poll_read(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        Poll::Pending
    }

    /// The side to write to, and in a tunnel to read from. It is taken for each write only: what is written may be read from this very socket, when an
    /// answer is sent while its request still comes.
    pub fn writer(&self) -> Writer<'_, IO> {
        Writer(&self.io)
    }

    /// Ready once `at` has passed.
    pub fn poll_deadline(&self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.borrow_mut().poll_at(at, cx)
    }

    /// The client wants to be told before it sends its body; it is, when somebody asks for the body.
    pub fn expect_continue(&self) {
        self.interim.set(CONTINUE);
    }

    /// Whether the client still waits for a `100 Continue`, and so has sent no body.
    pub fn awaits_continue(&self) -> bool {
        self.interim.get().len() == CONTINUE.len()
    }

    fn poll_interim(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.get().is_empty() {
            let rest = self.interim.get();
            let written = ready!(Pin::new(&mut *self.io.borrow_mut()).poll_write(cx, rest))?;
            self.interim.set(&rest[written..]);
        }
        Poll::Ready(Ok(()))
    }

    /// Cuts the next piece off the body, reading as needed.
    fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Result<Progress, BodyError>> {
        if ready!(self.poll_interim(cx)).is_err() {
            return Poll::Ready(Err(BodyError::ClientGone));
        }
        loop {
            let mut decoder = self.decoder.get();
            let progress = decoder.decode(&mut self.input.borrow_mut());
            self.decoder.set(decoder);
            match progress {
                Err(why) => return Poll::Ready(Err(BodyError::Malformed(why))),
                Ok(Progress::NeedMore) => {}
                Ok(progress) => return Poll::Ready(Ok(progress)),
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(BodyError::ClientGone)),
                Ok(_) => {}
            }
        }
    }

    /// Reads and drops the rest of a body that nobody wanted, at most `most` octets of it; says whether it came to its end.
    pub fn poll_discard(&self, most: &mut usize, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            match ready!(self.poll_body(cx)) {
                Ok(Progress::Data(data)) if data.len() <= *most => *most -= data.len(),
                Ok(Progress::End) => return Poll::Ready(true),
                Ok(Progress::Trailers(_)) => {}
                _ => return Poll::Ready(false),
            }
        }
    }
}

#[derive(Debug)]
pub struct Writer<'s, IO>(&'s RefCell<IO>);

impl<IO: AsyncRead + Unpin> AsyncRead for Writer<'_, IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Writer<'_, IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, octets)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}

/// The body of the request in hand. It may be dropped before its end; the connection then sees to the rest.
pub struct RequestBody<IO> {
    socket: Rc<Socket<IO>>,
    /// Octets that may still come, of `max_body_bytes`.
    allowed: u64,
    pace: Pace,
}

impl<IO> RequestBody<IO> {
    pub fn new(socket: Rc<Socket<IO>>, allowed: u64, pace: Pace) -> Self {
        Self { socket, allowed, pace }
    }

    fn take(&mut self, progress: Progress) -> Option<Result<Frame<Bytes>, BodyError>> {
        match progress {
            Progress::Data(data) => {
                self.pace.moved(data.len() as u64);
                match self.allowed.checked_sub(data.len() as u64) {
                    Some(left) => {
                        self.allowed = left;
                        Some(Ok(Frame::data(data)))
                    }
                    None => Some(Err(BodyError::TooLarge)),
                }
            }
            Progress::Trailers(fields) => Some(Ok(Frame::trailers(fields))),
            Progress::End | Progress::NeedMore => None,
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> http_body::Body for RequestBody<IO> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        match body.socket.poll_body(cx) {
            Poll::Ready(Ok(progress)) => Poll::Ready(body.take(progress)),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Pending => body.socket.poll_deadline(body.pace.wait(), cx).map(|()| Some(Err(BodyError::TooSlow))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.socket.decoder.get().is_done()
    }

    fn size_hint(&self) -> SizeHint {
        self.socket.decoder.get().remaining().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
