//! One HTTP/1.1 connection to an endpoint, and one exchange on it: the request goes out while the answer is awaited.
//!
//! No task and no channel of its own: the client's task drives it, and dropping the exchange closes the connection.

use super::answer::AnswerBody;
use super::pool::Pool;
use super::stream::Stream;
use crate::http1::{Decoder, Framing, HeadError, SendError, Sender, Timer, framing, head};
use crate::message::{BodyError, Response, Tunnel};
use crate::telemetry::metrics::OpenConnection;
use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

/// An answer's head may not be larger; nginx's default is 8 KiB, and cookies have grown since.
const MAX_HEAD: usize = 64 * 1024;
/// Room made for each read.
pub(super) const READ: usize = 16 * 1024;

#[derive(Debug)]
pub struct Connection {
    pub(super) io: Stream,
    pub(super) input: BytesMut,
    timer: Timer,
    /// Taken from the pool: the endpoint may have closed it meanwhile.
    pub(super) reused: bool,
    /// Counts it among the open ones.
    open: Option<OpenConnection>,
}

/// Why an exchange gave no answer.
#[derive(Debug)]
pub enum ExchangeError {
    /// The connection ended before an octet of the answer came.
    Unanswered(io::Error),
    /// The answer broke off within its head, or is no HTTP/1.1 that we pass on.
    Malformed(&'static str),
    TimedOut,
    /// The client's body failed; the upstream is not to blame.
    Body(BodyError),
}

/// What an answer depends on besides itself.
pub struct Asked<'a> {
    pub method: &'a Method,
    /// The protocol that the request asked to change to: a 101 to it may be passed on.
    pub upgrade: Option<&'a HeaderValue>,
    pub begun: Instant,
    /// How long the answer's head is waited for, once the request is there.
    pub patience: Duration,
}

impl Connection {
    #[must_use]
    pub fn new(io: Stream) -> Self {
        Self { io, input: BytesMut::new(), timer: Timer::default(), reused: false, open: None }
    }

    /// The same, counted while it is open.
    #[must_use]
    pub fn counted(mut self, open: OpenConnection) -> Self {
        self.open = Some(open);
        self
    }

    /// Whether an idle connection can still be used: nothing has come, not even its end.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut octet = [0];
        self.input.is_empty()
            && matches!(self.io.read_now(&mut octet), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the head of its answer into `answer`, with the body or, after a 101, the tunnel that follows
    /// it. What is left of the request goes on while the answer's body is read.
    pub async fn exchange(
        mut self,
        request: Sender,
        asked: &Asked<'_>,
        pool: &Rc<Pool>,
        answer: &mut Response,
    ) -> Result<(), ExchangeError> {
        let mut upload =
            Upload { request, sending: true, deadline: asked.begun + asked.patience, patience: asked.patience };
        loop {
            let version = poll_fn(|cx| self.poll_head(&mut upload, answer, cx)).await?;
            if answer.status == StatusCode::SWITCHING_PROTOCOLS {
                if !asked.upgrade.is_some_and(|protocol| changes_to(protocol, &answer.headers)) {
                    return Err(UNASKED);
                }
                answer.tunnel = Some(Box::new(self.into_tunnel()));
                return Ok(());
            }
            if answer.status.is_informational() {
                continue; // 100 was answered by us; the others are hints that a proxy need not pass on
            }
            let framing = framing::of_response(asked.method, answer.status, version, &answer.headers)
                .map_err(ExchangeError::Malformed)?;
            let reusable = framing != Framing::UntilClose
                && framing::keeps_alive(version, &answer.headers)
                && !upload.sending
                && !announces_more(answer);
            let upload = upload.sending.then_some(upload.request);
            let body = AnswerBody::new(self, Decoder::new(framing), upload, reusable.then(|| pool.clone()));
            answer.body = body.into_body();
            return Ok(());
        }
    }

    fn into_tunnel(self) -> Tunnel {
        Tunnel { upstream: Box::new(self.io), read_ahead: self.input.freeze(), held: None }
    }

    fn poll_head(
        &mut self,
        upload: &mut Upload,
        answer: &mut Response,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Version, ExchangeError>> {
        match upload.poll(&mut self.io, cx) {
            Err(SendError::Body(error)) => return Poll::Ready(Err(ExchangeError::Body(error))),
            // An endpoint may answer and close without reading on: its answer still counts.
            Err(SendError::Io(error)) if self.input.is_empty() => return Poll::Ready(self.last_words(error, answer)),
            Err(SendError::Io(_)) | Ok(()) => {}
        }
        loop {
            match head::take_response(&mut self.input, MAX_HEAD, answer) {
                Ok(Some(version)) => return Poll::Ready(Ok(version)),
                Ok(None) => {}
                Err(HeadError::TooLarge) => return Poll::Ready(Err(TOO_LARGE)),
                Err(HeadError::Malformed(why)) => return Poll::Ready(Err(ExchangeError::Malformed(why))),
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(self.ended(io::ErrorKind::UnexpectedEof.into()))),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.ended(error))),
                Poll::Pending => return self.timer.poll_at(upload.deadline, cx).map(|()| Err(ExchangeError::TimedOut)),
            }
        }
    }

    /// The request could not be written to its end: takes an answer that may be there all the same.
    fn last_words(&mut self, error: io::Error, answer: &mut Response) -> Result<Version, ExchangeError> {
        self.input.resize(READ, 0);
        let length = self.io.read_now(&mut self.input).unwrap_or(0);
        self.input.truncate(length);
        match head::take_response(&mut self.input, MAX_HEAD, answer) {
            Ok(Some(version)) => Ok(version),
            _ => Err(ExchangeError::Unanswered(error)),
        }
    }

    fn ended(&self, error: io::Error) -> ExchangeError {
        if self.input.is_empty() {
            ExchangeError::Unanswered(error)
        } else {
            ExchangeError::Malformed("a head cut short")
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.reserve(READ);
        pin!(self.io.read_buf(&mut self.input)).poll(cx)
    }
}

/// The request on its way out, and until when the head of its answer is waited for.
struct Upload {
    request: Sender,
    sending: bool,
    deadline: Instant,
    patience: Duration,
}

impl Upload {
    /// Sends on. The endpoint's time runs while it takes nothing, and once it has all; how slowly the client may send is
    /// bounded where its body is read.
    fn poll(&mut self, io: &mut Stream, cx: &mut Context<'_>) -> Result<(), SendError> {
        if !self.sending {
            return Ok(());
        }
        let written = self.request.written();
        let sent = self.request.poll_send(io, cx);
        let whole_at_once = written == 0 && sent.is_ready();
        if !whole_at_once && (self.request.written() > written || !self.request.is_blocked()) {
            self.deadline = Instant::now() + self.patience;
        }
        match sent {
            Poll::Ready(result) => {
                self.sending = result.is_err();
                result
            }
            Poll::Pending => Ok(()),
        }
    }
}

const UNASKED: ExchangeError = ExchangeError::Malformed("a 101 that nobody asked for");
const TOO_LARGE: ExchangeError = ExchangeError::Malformed("a head that is too large");

/// A 101 to another protocol than was asked for is no answer to that.
fn changes_to(asked: &HeaderValue, answered: &HeaderMap) -> bool {
    let protocol = answered.get(http::header::UPGRADE);
    protocol.is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(asked.as_bytes()))
}

/// A 204 has no body and tells no length (RFC 9110 §8.6). From an endpoint that tells one it may come all the same, later, and
/// would be taken for the next answer.
fn announces_more(answer: &Response) -> bool {
    use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
    answer.status == StatusCode::NO_CONTENT
        && (answer.headers.contains_key(CONTENT_LENGTH) || answer.headers.contains_key(TRANSFER_ENCODING))
}
