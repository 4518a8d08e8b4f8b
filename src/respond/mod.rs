//! The answers that are our own: what a limited route's answers tell of its limits, the refusal, the gateway's failures.
//!
//! Everything here is formatting. What is told was decided in `limit`; when it is told is `proxy`'s; what a configuration
//! wants of it comes as a `Style`, built once when a configuration is loaded. Status codes are named in this room only.

pub mod failure;
pub mod fields;
pub mod page;
pub mod problem;
pub mod refusal;

pub use failure::Failure;
pub use fields::{annotate, policy_of, room, strip};
pub use refusal::{is_grpc, refuse};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

/// How limits are told, from `[responses]`.
#[derive(Clone, Debug)]
pub struct Style {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    pub x_ratelimit: bool,
    pub reset: Reset,
    /// The IETF's `RateLimit` and `RateLimit-Policy`.
    pub ratelimit: bool,
    /// Of a refusal (gRPC calls excepted).
    pub status: StatusCode,
    pub body: RefusalBody,
}

/// The form of `X-RateLimit-Reset`; `t` of `RateLimit` is always a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Seconds since the Unix epoch.
    Epoch,
    /// Seconds from now.
    Delta,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// `application/problem+json`, RFC 9457.
    Problem,
    /// One line of `text/plain`.
    Text,
    /// As the operator wrote it.
    Custom { content_type: HeaderValue, text: Bytes },
}

impl Default for Style {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            reset: Reset::Epoch,
            ratelimit: true,
            status: StatusCode::TOO_MANY_REQUESTS,
            body: RefusalBody::Problem,
        }
    }
}

impl Style {
    /// The configured `status`; `None` unless it is 400 ..= 599 (the configuration has refused others).
    #[must_use]
    pub fn refusal_status(number: u16) -> Option<StatusCode> {
        StatusCode::from_u16(number).ok().filter(|status| status.is_client_error() || status.is_server_error())
    }
}
