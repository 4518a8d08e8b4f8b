//! One exchange on a stream: the request goes out while the answer is awaited.

use super::answer::AnswerStream;
use super::link::Open;
use super::request::{Translated, Way, translate};
use super::tunnel::Duplex;
use super::upload::Upload;
use crate::http1::{Framing, Timer, framing, websocket};
use crate::message::{self, Body, BodyError, Tunnel};
use crate::upstream::connection::Asked;
use crate::upstream::{Endpoint, Failed, Outgoing};
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::header::UPGRADE;
use http::{HeaderValue, Response, StatusCode, Version};
use http_body::Body as _;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// Sends a request on a stream and reads its answer into `taken`. The request stays whole where the endpoint has not looked
/// at it.
pub async fn exchange(
    open: Open,
    request: &mut Outgoing,
    asked: &Asked<'_>,
    endpoint: &Endpoint,
    taken: &mut message::Response,
) -> Result<(), Failed> {
    let websocket = asked.upgrade.is_some();
    let way = Way { https: open.link.https, endpoint, websocket };
    let ended = !websocket && request.body.is_end_stream();
    let written = std::mem::take(&mut request.head);
    let unfit = |why| Failed::Body(BodyError::Malformed(why));
    let Translated { request: head, accept } = translate(&written, &way).map_err(unfit)?;
    let sent = open.link.sender.borrow_mut().send_request(head, ended);
    let (response, stream) = match sent {
        Ok(sent) => sent,
        Err(error) => {
            request.head = written;
            return Err(Failed::Unreachable(io::Error::other(error)));
        }
    };
    if websocket {
        let duplex = |incoming| Duplex::new(incoming, stream);
        connect(open, response, asked, duplex, taken).await?;
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(accept)) = (taken.status, accept) {
            taken.headers.insert(websocket::ACCEPT, accept);
        }
        return Ok(());
    }
    let body = std::mem::take(&mut request.body);
    let mut waiting = Waiting::new(response, Some(Upload::new(stream, body, ended)), asked);
    match poll_fn(|cx| waiting.poll(cx)).await {
        Ok(response) => {
            open.link.heard();
            answer(open, response, waiting.upload, asked, taken)
        }
        Err(failed) => {
            let again = if failed.unprocessed { waiting.upload.and_then(Upload::into_body) } else { None };
            if let Some(body) = again {
                (request.head, request.body) = (written, body);
            }
            if matches!(failed.why, Failed::TimedOut) {
                open.link.suspect(asked.begun.into_std());
            }
            Err(failed.why)
        }
    }
}

/// An extended CONNECT (RFC 8441): the stream itself is what is switched to.
async fn connect(
    open: Open,
    response: ResponseFuture,
    asked: &Asked<'_>,
    duplex: impl FnOnce(RecvStream) -> Duplex,
    taken: &mut message::Response,
) -> Result<(), Failed> {
    let mut waiting = Waiting::new(response, None, asked);
    let response = poll_fn(|cx| waiting.poll(cx)).await.map_err(|failed| failed.why)?;
    open.link.heard();
    if !response.status().is_success() {
        return answer(open, response, None, asked, taken);
    }
    let (parts, incoming) = response.into_parts();
    (taken.status, taken.headers) = (StatusCode::SWITCHING_PROTOCOLS, parts.headers);
    taken.headers.insert(UPGRADE, HeaderValue::from_static(websocket::PROTOCOL));
    let upstream = Box::new(duplex(incoming).counted(open));
    taken.tunnel = Some(Box::new(Tunnel { upstream, read_ahead: Bytes::new(), held: None }));
    Ok(())
}

fn answer(
    open: Open,
    response: Response<RecvStream>,
    upload: Option<Upload>,
    asked: &Asked<'_>,
    taken: &mut message::Response,
) -> Result<(), Failed> {
    let (parts, incoming) = response.into_parts();
    if parts.status.is_informational() {
        return Err(Failed::Malformed("an interim status in the end"));
    }
    let framing = framing::of_response(asked.method, parts.status, Version::HTTP_11, &parts.headers);
    let left = match framing.map_err(Failed::Malformed)? {
        Framing::None => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked | Framing::UntilClose => None,
    };
    (taken.status, taken.headers) = (parts.status, parts.headers);
    if incoming.is_end_stream() || (left == Some(0) && asked.method == http::Method::HEAD) {
        return Ok(());
    }
    let upload = upload.filter(|upload| !upload.is_done()).map(|mut upload| {
        upload.forget();
        upload
    });
    taken.body = Body::Stream(Box::pin(AnswerStream { incoming, upload, open, left }));
    Ok(())
}

/// An answer's head waited for.
struct Waiting {
    response: ResponseFuture,
    upload: Option<Upload>,
    timer: Timer,
    deadline: Instant,
    patience: std::time::Duration,
}

struct NoAnswer {
    why: Failed,
    /// The endpoint says that it has not looked at the request.
    unprocessed: bool,
}

impl Waiting {
    fn new(response: ResponseFuture, upload: Option<Upload>, asked: &Asked<'_>) -> Self {
        let deadline = asked.begun + asked.patience;
        Self { response, upload, timer: Timer::default(), deadline, patience: asked.patience }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<RecvStream>, NoAnswer>> {
        if let Err(error) = self.poll_upload(cx) {
            return Poll::Ready(Err(NoAnswer { why: Failed::Body(error), unprocessed: false }));
        }
        match Pin::new(&mut self.response).poll(cx) {
            Poll::Ready(answered) => Poll::Ready(answered.map_err(NoAnswer::from)),
            Poll::Pending => {
                let late = |()| Err(NoAnswer { why: Failed::TimedOut, unprocessed: false });
                self.timer.poll_at(self.deadline, cx).map(late)
            }
        }
    }

    /// As over HTTP/1.1, the endpoint's time runs while it takes nothing, and once it has all.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        let Some(upload) = self.upload.as_mut().filter(|upload| !upload.is_done()) else { return Ok(()) };
        let written = upload.written();
        let sent = upload.poll(cx);
        let whole_at_once = written == 0 && sent.is_ready();
        if !whole_at_once && (upload.written() > written || !upload.is_blocked()) {
            self.deadline = Instant::now() + self.patience;
        }
        match sent {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

impl From<h2::Error> for NoAnswer {
    /// A stream above the last one that a GOAWAY names, or refused by name, was not processed (RFC 9113 §8.7). All others
    /// may have been.
    fn from(error: h2::Error) -> Self {
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        let unprocessed = error.is_remote() && (error.is_go_away() || refused);
        let why = if error.is_io() || error.is_remote() {
            Failed::Unanswered(io::Error::other(error))
        } else {
            Failed::Malformed("a breach of HTTP/2")
        };
        Self { why, unprocessed }
    }
}
