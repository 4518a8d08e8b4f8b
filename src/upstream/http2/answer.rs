//! The body of an answer on a stream. The endpoint may send on as far as it has been passed on.

use super::link::Open;
use super::upload::Upload;
use crate::http1::trailer;
use crate::message::BodyError;
use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub struct AnswerStream {
    pub incoming: RecvStream,
    /// What is left of the request goes out meanwhile.
    pub upload: Option<Upload>,
    pub open: Open,
    /// Octets still to come, where that was told; `h2` holds the endpoint to it.
    pub left: Option<u64>,
}

impl AnswerStream {
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match ready!(self.incoming.poll_data(cx)) {
            Some(Ok(data)) => {
                self.open.link.heard();
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                let released = self.incoming.flow_control().release_capacity(data.len());
                Poll::Ready(Some(released.map(|()| Frame::data(data)).map_err(|_| BodyError::UpstreamBroke)))
            }
            Some(Err(error)) => Poll::Ready(broken(&error)),
            None => match ready!(self.incoming.poll_trailers(cx)) {
                Ok(Some(mut trailers)) => {
                    trailer::keep_harmless(&mut trailers);
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
                Ok(None) => Poll::Ready(None),
                Err(error) => Poll::Ready(broken(&error)),
            },
        }
    }
}

/// RFC 9113 §8.1: a whole answer may be followed by a reset without an error, where the request is not read to its end.
fn broken(error: &h2::Error) -> Option<Result<Frame<Bytes>, BodyError>> {
    let whole = error.is_remote() && error.is_reset() && error.reason() == Some(Reason::NO_ERROR);
    (!whole).then_some(Err(BodyError::UpstreamBroke))
}

impl http_body::Body for AnswerStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        if let Some(upload) = &mut body.upload
            && let Poll::Ready(sent) = upload.poll(cx)
        {
            body.upload = None;
            if let Err(error) = sent {
                return Poll::Ready(Some(Err(error)));
            }
        }
        body.poll_incoming(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
