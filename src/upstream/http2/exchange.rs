//! One exchange on a stream: the request goes out while the answer is awaited.

use super::answer::AnswerStream;
use super::link::Open;
use super::request::{Translated, Way, translate};
use super::tunnel::Duplex;
use super::upload::Upload;
use crate::http1::{Framing, ResponseHead, Timer, framing, websocket};
use crate::message::{Body, BodyError, Tunnel};
use crate::upstream::connection::{Asked, Exchanged};
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

/// Sends a request on a stream and reads the head of its answer. The request comes back where the endpoint has not looked
/// at it.
pub async fn exchange(
    open: Open,
    request: Outgoing,
    asked: &Asked<'_>,
    endpoint: &Endpoint,
) -> Result<Exchanged, (Failed, Option<Outgoing>)> {
    let websocket = asked.upgrade.is_some();
    let way = Way { https: open.link.https, endpoint, websocket };
    let unfit = |why| (Failed::Body(BodyError::Malformed(why)), None);
    let Translated { request: head, accept } = translate(&request.head, &way).map_err(unfit)?;
    let ended = !websocket && request.body.is_end_stream();
    let sent = open.link.sender.borrow_mut().send_request(head, ended);
    let (response, stream) = match sent {
        Ok(sent) => sent,
        Err(error) => return Err((Failed::Unreachable(io::Error::other(error)), Some(request))),
    };
    if websocket {
        return connect(open, response, asked, |incoming| Duplex::new(incoming, stream), accept).await;
    }
    let Outgoing { method, head, body, mode, upgrade } = request;
    let mut waiting = Waiting::new(response, Some(Upload::new(stream, body, ended)), asked);
    match poll_fn(|cx| waiting.poll(cx)).await {
        Ok(response) => {
            open.link.heard();
            answer(open, response, waiting.upload, asked).map_err(|failed| (failed, None))
        }
        Err(failed) => {
            let again = if failed.unprocessed { waiting.upload.and_then(Upload::into_body) } else { None };
            if matches!(failed.why, Failed::TimedOut) {
                open.link.suspect(asked.begun.into_std());
            }
            Err((failed.why, again.map(|body| Outgoing { method, head, body, mode, upgrade })))
        }
    }
}

/// An extended CONNECT (RFC 8441): the stream itself is what is switched to.
async fn connect(
    open: Open,
    response: ResponseFuture,
    asked: &Asked<'_>,
    duplex: impl FnOnce(RecvStream) -> Duplex,
    accept: Option<HeaderValue>,
) -> Result<Exchanged, (Failed, Option<Outgoing>)> {
    let mut waiting = Waiting::new(response, None, asked);
    let response = poll_fn(|cx| waiting.poll(cx)).await.map_err(|failed| (failed.why, None))?;
    open.link.heard();
    if !response.status().is_success() {
        return answer(open, response, None, asked).map_err(|failed| (failed, None));
    }
    let (parts, incoming) = response.into_parts();
    let mut head =
        ResponseHead { status: StatusCode::SWITCHING_PROTOCOLS, version: parts.version, headers: parts.headers };
    head.headers.insert(UPGRADE, HeaderValue::from_static(websocket::PROTOCOL));
    if let Some(accept) = accept {
        head.headers.insert(websocket::ACCEPT, accept);
    }
    let upstream = Box::new(duplex(incoming).counted(open));
    Ok(Exchanged::Switched(head, Tunnel { upstream, read_ahead: Bytes::new(), held: None }))
}

fn answer(
    open: Open,
    response: Response<RecvStream>,
    upload: Option<Upload>,
    asked: &Asked<'_>,
) -> Result<Exchanged, Failed> {
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
    let head = ResponseHead { status: parts.status, version: parts.version, headers: parts.headers };
    if incoming.is_end_stream() || (left == Some(0) && asked.method == http::Method::HEAD) {
        return Ok(Exchanged::Answer(head, Body::Empty));
    }
    let upload = upload.filter(|upload| !upload.is_done()).map(|mut upload| {
        upload.forget();
        upload
    });
    Ok(Exchanged::Answer(head, Body::Stream(Box::pin(AnswerStream { incoming, upload, open, left }))))
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
