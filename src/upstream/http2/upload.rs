//! A request's body on its way out on a stream, as fast as the endpoint takes it.

use crate::message::{Body, BodyError};
use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// So much of a body is kept until the answer begins: an endpoint that refuses a stream unread, or says goodbye before it,
/// makes nobody send it again. The pieces are shared with what is being sent.
const KEPT: usize = 64 * 1024;

pub struct Upload {
    stream: SendStream<Bytes>,
    body: Body,
    /// Taken from the body, not yet from the endpoint.
    data: Bytes,
    ended: bool,
    written: u64,
    kept: Option<Kept>,
}

#[derive(Default)]
struct Kept {
    pieces: VecDeque<Bytes>,
    length: usize,
    /// Behind the last piece.
    end: Option<Option<HeaderMap>>,
}

impl Upload {
    /// `ended`: the head was sent as all there is.
    pub fn new(stream: SendStream<Bytes>, body: Body, ended: bool) -> Self {
        let kept = Kept { end: ended.then_some(None), ..Kept::default() };
        Self { stream, body, data: Bytes::new(), ended, written: 0, kept: Some(kept) }
    }

    pub fn is_done(&self) -> bool {
        self.ended
    }

    /// Whether the endpoint takes nothing, rather than the body giving nothing.
    pub fn is_blocked(&self) -> bool {
        !self.data.is_empty()
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Ready when nothing more will be sent: all has been, or the endpoint wants no more. Only the body's own failure is an
    /// error; the endpoint's is seen where its answer is read.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while !self.ended {
            let sent = if self.data.is_empty() { self.poll_body(cx) } else { self.poll_data(cx).map(Ok) };
            if let Err(error) = ready!(sent) {
                self.stream.send_reset(Reason::CANCEL);
                self.ended = true;
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.reserve_capacity(self.data.len());
        while self.stream.capacity() == 0 {
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => {
                    self.ended = true;
                    return Poll::Ready(());
                }
            }
        }
        let piece = self.data.split_to(self.stream.capacity().min(self.data.len()));
        self.written += piece.len() as u64;
        let last = self.data.is_empty() && self.body.is_end_stream();
        self.ended = self.stream.send_data(piece, last).is_err() || last;
        if let (true, Some(kept)) = (last, &mut self.kept) {
            kept.end = Some(None);
        }
        Poll::Ready(())
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.stream.poll_reset(cx).is_ready() {
            self.ended = true;
            return Poll::Ready(Ok(()));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?;
        let end = match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                self.keep(&data);
                self.data = data;
                return Poll::Ready(Ok(()));
            }
            Some(Err(frame)) => frame.into_trailers().ok(),
            None => None,
        };
        self.ended = true;
        if let Some(kept) = &mut self.kept {
            kept.end = Some(end.clone());
        }
        // A stream that is reset meanwhile takes neither; the answer tells why.
        let _ = match end {
            Some(trailers) => self.stream.send_trailers(trailers),
            None => self.stream.send_data(Bytes::new(), true),
        };
        Poll::Ready(Ok(()))
    }

    fn keep(&mut self, data: &Bytes) {
        let Some(kept) = &mut self.kept else { return };
        kept.length += data.len();
        if kept.length > KEPT {
            self.kept = None;
        } else {
            kept.pieces.push_back(data.clone());
        }
    }

    /// The endpoint has begun to answer: the body is not sent a second time.
    pub fn forget(&mut self) {
        self.kept = None;
    }

    /// The whole body again, unless too much of it is gone.
    pub fn into_body(self) -> Option<Body> {
        let Kept { pieces, end, .. } = self.kept?;
        if pieces.is_empty() && end.is_none() {
            return Some(self.body);
        }
        if pieces.is_empty() && end == Some(None) {
            return Some(Body::Empty);
        }
        Some(Body::Stream(Box::pin(Again { pieces, end, rest: self.body })))
    }
}

/// A body of which the first pieces have been read before.
struct Again {
    pieces: VecDeque<Bytes>,
    end: Option<Option<HeaderMap>>,
    rest: Body,
}

impl http_body::Body for Again {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        match (body.pieces.pop_front(), &mut body.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, Some(trailers)) => Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
            (None, None) => Pin::new(&mut body.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.end.as_ref().map_or_else(|| self.rest.is_end_stream(), Option::is_none)
    }
}
