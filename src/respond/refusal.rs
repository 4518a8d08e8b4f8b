//! The refusal: status, `Retry-After`, the rate-limit fields and a body that says which limits refused and for how long.
//!
//! Promises a wait that is true: `Retry-After` is the longest of the refusing limits' waits, rounded up, and absent exactly
//! when one of them is past waiting for. A gRPC call is refused in gRPC's own form. No `Cache-Control`: a 429 is never
//! stored by caches (RFC 6585 §4). The server drops the body of an answer to HEAD.

use super::fields::{annotate, integer, retry_after_s, room};
use super::problem::{self, Problem};
use super::{RefusalBody, Style};
use crate::limit::{Name, Told};
use crate::message::{Body, Lines, Request, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::fmt::Write;

/// RFC 9457 §3.1.3: a title belongs to its type, so it stays when `status` is another than 429.
const TITLE: &str = "Too Many Requests";
/// A refusal's document up to its status. The type is registered in IANA's "HTTP Problem Types".
const QUOTA_EXCEEDED: &str =
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":"#;

const GRPC: &[u8] = b"application/grpc";
/// `RESOURCE_EXHAUSTED`.
const RESOURCE_EXHAUSTED: &[u8] = b"8";
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Makes `answer` the one to a request that at least one of `told` refused, complete with its fields. The request's content
/// type chooses between HTTP and gRPC; `wall_us` is the wall clock.
pub fn refuse(answer: &mut Response, request: &Request, told: &[Told], style: &Style, wall_us: u64) {
    let wait_us = wait_us(told);
    if request.names.may_have(&CONTENT_TYPE) && is_grpc(&request.headers) {
        grpc(answer, told, wait_us);
    } else {
        plain(answer, told, style, wait_us);
    }
    annotate(&mut answer.lines, told, style, wall_us);
}

/// Whether the content type is `application/grpc`, alone, with a `+format` or with parameters. `application/grpc-web` is
/// not: it travels as plain HTTP and its clients read the HTTP status.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) else { return false };
    let Some((head, rest)) = kind.split_at_checked(GRPC.len()) else { return false };
    head.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// When the whole request would pass: the longest wait of those that refuse. `None`: no wait helps.
fn wait_us(told: &[Told]) -> Option<u64> {
    let mut refusing = told.iter().filter(|told| told.refused).peekable();
    refusing.peek()?;
    refusing.try_fold(0, |longest, told| told.retry_after_us.map(|wait_us| wait_us.max(longest)))
}

fn plain(answer: &mut Response, told: &[Told], style: &Style, wait_us: Option<u64>) {
    let (content_type, body) = match &style.body {
        RefusalBody::Problem => (&problem::CONTENT_TYPE, document(told, style.status, wait_us)),
        RefusalBody::Text => (&PLAIN_TEXT, line(told, wait_us)),
        RefusalBody::Custom { content_type, text } => (content_type, text.clone()),
    };
    (answer.status, answer.body) = (style.status, Body::from(body));
    answer.lines = Lines::with_capacity(80 + room(told));
    answer.lines.add("content-type: ", |line| line.extend_from_slice(content_type.as_bytes()));
    if let Some(wait_us) = wait_us {
        answer.lines.add("retry-after: ", |line| integer(line, retry_after_s(wait_us)));
    }
}

fn document(told: &[Told], status: StatusCode, wait_us: Option<u64>) -> Bytes {
    let problem = Problem::begun(QUOTA_EXCEEDED, status)
        .escaped("detail", |text| detail(text, told, wait_us, Name::json))
        .list("violated-policies", refusing(told).map(Name::json));
    match wait_us {
        Some(wait_us) => problem.number("retry_after_ms", milliseconds(wait_us)).finish(),
        None => problem.finish(),
    }
}

fn line(told: &[Told], wait_us: Option<u64>) -> Bytes {
    let mut text = Vec::with_capacity(128);
    text.extend_from_slice(TITLE.as_bytes());
    text.extend_from_slice(b": ");
    detail(&mut text, told, wait_us, Name::text);
    text.push(b'\n');
    text.into()
}

/// Trailers-only: HTTP 200, the status among the headers, no body. Its length is not told either, as a gRPC stream has none.
fn grpc(answer: &mut Response, told: &[Told], wait_us: Option<u64>) {
    answer.status = StatusCode::OK;
    let lines = &mut answer.lines;
    lines.add("content-type: ", |line| line.extend_from_slice(GRPC));
    lines.add("grpc-status: ", |line| line.extend_from_slice(RESOURCE_EXHAUSTED));
    let mut message = Vec::new();
    detail(&mut message, told, wait_us, Name::text);
    lines.add("grpc-message: ", |line| line.extend_from_slice(percent_encoded(&message).as_bytes()));
    // gRFC A6: milliseconds to wait, or a negative number for "do not retry".
    lines.add("grpc-retry-pushback-ms: ", |line| match wait_us {
        Some(wait_us) => integer(line, milliseconds(wait_us)),
        None => line.extend_from_slice(b"-1"),
    });
}

/// One sentence for people, the limits' names as `spelt`.
fn detail(text: &mut Vec<u8>, told: &[Told], wait_us: Option<u64>, spelt: impl Fn(&Name) -> &str) {
    text.extend_from_slice(b"Over the limit ");
    for (index, name) in refusing(told).enumerate() {
        if index > 0 {
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(spelt(name).as_bytes());
    }
    match wait_us {
        Some(wait_us) => {
            text.extend_from_slice(b"; try again in ");
            integer(text, retry_after_s(wait_us));
            text.extend_from_slice(b" s.");
        }
        None => text.extend_from_slice(b"; waiting will not help."),
    }
}

fn refusing<'l>(told: &[Told<'l>]) -> impl Iterator<Item = &'l Name> {
    told.iter().filter(|told| told.refused).map(|told| told.name)
}

/// Rounded up, so that waiting as told is waiting long enough; never 0.
fn milliseconds(us: u64) -> u64 {
    us.div_ceil(1000).max(1)
}

/// gRPC over HTTP/2, "Responses": everything but printable ASCII, and `%` itself, is escaped.
fn percent_encoded(text: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len() + 8);
    for &byte in text {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
