//! The body of an upstream's answer, read as fast as it is passed on; what is left of the request goes out meanwhile.

use super::connection::Connection;
use super::pool::Pool;
use crate::http1::{Decoder, Progress, SendError, Sender};
use crate::message::{Body, BodyError};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

#[derive(Debug)]
pub struct AnswerBody {
    /// Given back to the pool, or closed, at the body's end.
    connection: Option<Connection>,
    decoder: Decoder,
    upload: Option<Sender>,
    pool: Option<Rc<Pool>>,
}

impl AnswerBody {
    /// `pool`: where the connection goes when the body has ended well; none if it may not be used again.
    pub(super) fn new(
        connection: Connection,
        decoder: Decoder,
        upload: Option<Sender>,
        pool: Option<Rc<Pool>>,
    ) -> Self {
        let mut body = Self { connection: Some(connection), decoder, upload, pool };
        if body.decoder.is_done() {
            body.finish();
        }
        body
    }

    /// As it is passed on: a body that is there whole, which is the common case, is taken out of its stream.
    pub(super) fn into_body(mut self) -> Body {
        if self.decoder.is_done() {
            Body::Empty
        } else {
            self.whole().map_or_else(|| Body::Stream(Box::pin(self)), Body::from)
        }
    }

    /// The connection is free at once.
    fn whole(&mut self) -> Option<Bytes> {
        let connection = self.connection.as_mut()?;
        let length = usize::try_from(self.decoder.remaining()?).ok()?;
        if self.upload.is_some() || connection.input.len() < length {
            return None;
        }
        let data = connection.input.split_to(length).freeze();
        self.decoder = Decoder::Done;
        self.finish();
        Some(data)
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Some(pool) = self.pool.take()
            && connection.input.is_empty()
        {
            pool.put(connection);
        }
    }

    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        let (Some(upload), Some(connection)) = (&mut self.upload, &mut self.connection) else { return Ok(()) };
        match upload.poll_send(&mut connection.io, cx) {
            Poll::Pending => {}
            Poll::Ready(Err(SendError::Body(error))) => return Err(error),
            // An upstream that has answered need not read on.
            Poll::Ready(Ok(()) | Err(SendError::Io(_))) => self.upload = None,
        }
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            match self.decoder.decode(&mut connection.input) {
                Ok(Progress::Data(data)) => return Poll::Ready(Some(Ok(self.last_or_not(Frame::data(data))))),
                Ok(Progress::Trailers(fields)) => {
                    return Poll::Ready(Some(Ok(self.last_or_not(Frame::trailers(fields)))));
                }
                Ok(Progress::End) => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Err(_) => return Poll::Ready(Some(Err(self.broken()))),
                Ok(Progress::NeedMore) => {}
            }
            match ready!(connection.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) if self.decoder.finish().is_ok() => {}
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(self.broken()))),
            }
        }
    }

    /// Who has all of the body need not ask for more of it: the connection is free with the last frame.
    fn last_or_not(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if self.decoder.is_done() && self.upload.is_none() {
            self.finish();
        }
        frame
    }

    fn broken(&mut self) -> BodyError {
        self.connection = None;
        BodyError::UpstreamBroke
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        if let Err(error) = body.poll_upload(cx) {
            body.connection = None;
            return Poll::Ready(Some(Err(error)));
        }
        body.poll_data(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.decoder.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder.remaining().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
