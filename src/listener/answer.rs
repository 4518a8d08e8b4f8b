//! An answer written to an HTTP/1.1 client: its framing chosen, its head in one piece, its body as it comes.

use super::connection::Socket;
use super::pace::Pace;
use crate::clock;
use crate::http1::{Mode, SendError, Sender, encode};
use crate::message::{Body, Response};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use http_body::Body as _;
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// What the framing depends on besides the answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub version: Version,
    /// HEAD: the answer's fields without its body.
    pub head_only: bool,
    pub keep_alive: bool,
}

/// The client left, was too slow, or the body's source failed: the connection is of no further use.
#[derive(Debug)]
pub struct CutShort;

/// The answer, which begins `at` this moment, as it goes out.
pub fn sender(response: &mut Response, asked: &Asked, close: bool, at: Instant) -> Sender {
    let mode = mode(response, asked);
    let close = close || mode == Mode::UntilClose;
    // Room for a short body behind the head, which leaves with it.
    let mut head = Vec::with_capacity(1024);
    encode::status_line(&mut head, response.status);
    fields(&mut head, response, mode, at);
    match (response.status, close) {
        (StatusCode::SWITCHING_PROTOCOLS, _) => encode::field(&mut head, "connection", b"upgrade"),
        (_, true) => encode::field(&mut head, "connection", b"close"),
        (_, false) if asked.version == Version::HTTP_10 => encode::field(&mut head, "connection", b"keep-alive"),
        _ => {}
    }
    encode::head_end(&mut head);
    Sender::new(head, std::mem::take(&mut response.body), mode)
}

fn mode(response: &Response, asked: &Asked) -> Mode {
    let bodiless = response.status.is_informational()
        || matches!(response.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    match response.body.size_hint().exact() {
        _ if bodiless || asked.head_only => Mode::None,
        Some(length) => Mode::Sized(length),
        None if asked.version == Version::HTTP_10 => Mode::UntilClose,
        None => Mode::Chunked,
    }
}

/// The framing fields are ours; only where there is no body (HEAD, 304) does the upstream's Content-Length tell of one.
fn fields(head: &mut Vec<u8>, response: &Response, mode: Mode, at: Instant) {
    for (name, value) in &response.headers {
        let framing = name == CONTENT_LENGTH || name == TRANSFER_ENCODING || name == CONNECTION;
        if !framing {
            encode::field(head, name.as_str(), value.as_bytes());
        }
    }
    head.extend_from_slice(response.lines.as_bytes());
    if !response.headers.contains_key(DATE) {
        write_date(head, at);
    }
    match mode {
        Mode::Sized(length) => encode::content_length(head, length),
        Mode::Chunked => encode::field(head, "transfer-encoding", b"chunked"),
        Mode::None => kept_length(head, response),
        Mode::UntilClose => {}
    }
}

fn kept_length(head: &mut Vec<u8>, response: &Response) {
    if response.status.is_informational() || response.status == StatusCode::NO_CONTENT {
        return;
    }
    match (response.headers.get(CONTENT_LENGTH), &response.body) {
        (Some(length), _) => encode::field(head, "content-length", length.as_bytes()),
        (None, Body::Full(bytes)) => encode::content_length(head, bytes.len() as u64),
        _ => {}
    }
}

/// The moment as an IMF-fixdate (RFC 9110 §5.6.7); the line is written once a second.
fn write_date(head: &mut Vec<u8>, at: Instant) {
    thread_local! {
        static WRITTEN: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = clock::wall_us_at(at.into_std()) / 1_000_000;
    WRITTEN.with_borrow_mut(|(written, text)| {
        if *written != second {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            (*written, *text) = (second, format!("date: {date}\r\n"));
        }
        head.extend_from_slice(text.as_bytes());
    });
}

/// Sends the whole answer that began at `begun`, unless the client leaves, takes nothing for `stall`, or takes it at a
/// trickle; says when it was sent.
pub async fn send<IO>(
    socket: &Socket<IO>,
    sender: &mut Sender,
    stall: Duration,
    begun: Instant,
) -> Result<Instant, CutShort>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut pace, mut seen, mut waited) = (Pace::new(stall, stall), 0, false);
    poll_fn(|cx| {
        let sent = sender.poll_send(&mut socket.writer(), cx);
        match sent {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(if waited { Instant::now() } else { begun })),
            Poll::Ready(Err(SendError::Io(_) | SendError::Body(_))) => return Poll::Ready(Err(CutShort)),
            Poll::Pending => waited = true,
        }
        if socket.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(CutShort));
        }
        if sender.written() > seen || !sender.is_blocked() {
            pace.moved(sender.written() - seen);
            seen = sender.written();
        }
        if sender.is_blocked() { socket.poll_deadline(pace.wait(), cx).map(|()| Err(CutShort)) } else { Poll::Pending }
    })
    .await
}
