//! Bodies that a test sends or takes in its own way: by the piece, without end, broken off, counted.

use super::origin::Kept;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

pub const FLOOD: u64 = 64 << 20;
const PIECE: usize = 16 << 10;

/// So many octets, counted as they are taken.
pub struct Flood {
    pub left: u64,
    pub kept: Arc<Kept>,
}

impl http_body::Body for Flood {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= PIECE as u64;
        self.kept.taken.fetch_add(PIECE as u64, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; PIECE])))))
    }
}

/// The same as a request's body.
pub fn flood(kept: &Arc<Kept>) -> Body {
    Flood { left: FLOOD, kept: kept.clone() }.boxed_unsync()
}

/// A piece, a moment for it to leave, then a failure.
pub struct Broken(pub u8);

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0 += 1;
        match self.0 {
            1 => Poll::Ready(Some(Ok(Frame::data("piece".into())))),
            2 => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Some(Err(io::ErrorKind::Other.into()))),
        }
    }
}

/// A body that the test feeds.
pub struct Fed(pub mpsc::Receiver<Bytes>);

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

pub struct Counted {
    pub body: Incoming,
    pub kept: Arc<Kept>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &next {
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.kept.came.fetch_add(length as u64, Ordering::SeqCst);
        }
        next
    }
}

/// A body from the test's hands: data, then trailers if there are any.
pub fn fed(trailers: Option<HeaderMap>) -> (mpsc::Sender<Bytes>, Body) {
    let (feed, fed) = mpsc::channel(1);
    let body = Fed(fed).with_trailers(async { trailers.map(Ok) });
    (feed, body.boxed_unsync())
}

pub fn nothing() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub fn whole(octets: Vec<u8>) -> Body {
    Full::new(Bytes::from(octets)).map_err(|never| match never {}).boxed_unsync()
}
