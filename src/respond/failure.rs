//! The gateway's own failures: which status, which words, and the outcome they are counted as.
//!
//! All are problem documents of type `about:blank`. A gRPC call gets the same plain HTTP answer: its library turns the
//! status into a code by gRPC's own table (400 → INTERNAL, 404 → UNIMPLEMENTED, 502/503/504 → UNAVAILABLE), which is what
//! every other proxy in front of it makes it do. Words are fixed or from the configuration; nothing a client sent is echoed.

use super::fields::retry_after_s;
use super::problem::{self, Problem};
use crate::clock;
use crate::telemetry::metrics::Outcome;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    NoRoute,
    /// What is wrong with the request.
    BadRequest(Cow<'static, str>),
    /// A limit with `on_missing_key = "reject"`, by name.
    MissingKey(Arc<str>),
    /// The request's head or body came too slowly.
    RequestTimeout,
    BodyTooLarge,
    HeadersTooLarge,
    UpstreamFailed(UpstreamFault),
    UpstreamTimedOut,
    /// The health checks of every endpoint fail; they are asked again within this.
    NoHealthyUpstream {
        retry_after: Duration,
    },
    /// Every endpoint that could take it has as many requests as it may have.
    UpstreamFull,
    /// The store is away and the policy says `closed`; it is asked again after this.
    StoreClosed {
        retry_after: Duration,
    },
}

/// How the upstream failed, as far as a client may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFault {
    Connect,
    /// Closed or reset before a whole answer head.
    Closed,
    /// Its answer is not HTTP as we accept it.
    Malformed,
}

impl Failure {
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::BadRequest(_) | Self::MissingKey(_) => StatusCode::BAD_REQUEST,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UpstreamFailed(_) => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::NoHealthyUpstream { .. } | Self::UpstreamFull | Self::StoreClosed { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// What `staunch_requests_total` and the access log call it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NoRoute => Outcome::NoRoute,
            Self::BadRequest(_)
            | Self::MissingKey(_)
            | Self::RequestTimeout
            | Self::BodyTooLarge
            | Self::HeadersTooLarge => Outcome::BadRequest,
            Self::UpstreamFailed(_) | Self::UpstreamTimedOut | Self::NoHealthyUpstream { .. } | Self::UpstreamFull => {
                Outcome::UpstreamError
            }
            Self::StoreClosed { .. } => Outcome::Unavailable,
        }
    }

    /// Whether the client's connection should end with it: its next octets may not be what a request would be.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::BadRequest(_) | Self::RequestTimeout | Self::HeadersTooLarge)
    }

    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let mut answer = Response::new(self.body());
        *answer.status_mut() = self.status();
        answer.headers_mut().insert(CONTENT_TYPE, problem::CONTENT_TYPE);
        if let Some(seconds) = self.retry_after_s() {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }

    /// The same answer as it stands on the wire of an HTTP/1.1 connection that ends with it: for a head that could not be
    /// parsed, where no HTTP library has a request to answer.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let status = self.status();
        let body = self.body();
        let retry_after = self.retry_after_s().map(|s| format!("retry-after: {s}\r\n")).unwrap_or_default();
        let mut wire = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n{retry_after}date: {}\r\n\
             connection: close\r\n\r\n",
            status.as_u16(),
            title(status),
            body.len(),
            httpdate::fmt_http_date(clock::wall()),
        )
        .into_bytes();
        wire.extend_from_slice(&body);
        wire
    }

    fn body(&self) -> Bytes {
        let status = self.status();
        Problem::new("about:blank", title(status), status).member("detail", &self.detail()).finish()
    }

    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::StoreClosed { retry_after } | Self::NoHealthyUpstream { retry_after } => {
                Some(retry_after_s(clock::micros(*retry_after)))
            }
            // Nobody knows when a request will end; the least that can be told.
            Self::UpstreamFull => Some(1),
            _ => None,
        }
    }

    fn detail(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::NoRoute => "No route takes this request.",
            Self::BadRequest(reason) => return reason.clone(),
            Self::MissingKey(limit) => {
                return Cow::Owned(format!("The request lacks what the limit {limit} counts by."));
            }
            Self::RequestTimeout => "The request did not arrive in time.",
            Self::BodyTooLarge => "The request's body is larger than this server takes.",
            Self::HeadersTooLarge => "The request's header fields are larger than this server takes.",
            Self::UpstreamFailed(UpstreamFault::Connect) => "The upstream could not be reached.",
            Self::UpstreamFailed(UpstreamFault::Closed) => "The upstream closed the connection before it answered.",
            Self::UpstreamFailed(UpstreamFault::Malformed) => "The upstream's answer was malformed.",
            Self::UpstreamTimedOut => "The upstream did not answer in time.",
            Self::NoHealthyUpstream { .. } => "No endpoint of the upstream is healthy.",
            Self::UpstreamFull => "The upstream has as many requests as it may have.",
            Self::StoreClosed { .. } => "Limits cannot be checked at the moment.",
        })
    }
}

/// RFC 9457 §4.2.1: of `about:blank`, the status's own phrase.
fn title(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Error")
}
