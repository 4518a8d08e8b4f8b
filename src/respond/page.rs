//! The admin listener's answers: its pages, and what it says to a call it does not serve.
//!
//! None may be cached, sniffed or framed; what an operator reads there is true at that moment only.

use super::problem::{self, Problem};
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// No script, no image, no request to anywhere: the page is text and one style sheet of its own.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// A page that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    Text(String),
    /// In the Prometheus text format.
    Metrics(String),
    Json(Vec<u8>),
    Html(String),
    /// A readiness probe's answer while requests should go elsewhere.
    Unready(String),
}

/// A call that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    NotFound(String),
    /// With the methods that are.
    MethodNotAllowed(&'static str),
    /// A token is needed and was not sent, or is not the one.
    Unauthorized,
    Forbidden(&'static str),
    BadRequest(String),
    /// A configuration with problems, one a line.
    Invalid(String),
    Unavailable(String),
    TimedOut,
}

impl Page {
    #[must_use]
    pub fn response(self) -> Response<Bytes> {
        match self {
            Self::Text(text) => answer(StatusCode::OK, TEXT, text),
            Self::Metrics(text) => {
                answer(StatusCode::OK, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"), text)
            }
            Self::Json(document) => answer(StatusCode::OK, HeaderValue::from_static("application/json"), document),
            Self::Html(text) => {
                let mut page = answer(StatusCode::OK, HeaderValue::from_static("text/html; charset=utf-8"), text);
                page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
                page
            }
            Self::Unready(text) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text),
        }
    }
}

impl Denied {
    #[must_use]
    pub fn response(self) -> Response<Bytes> {
        let (status, detail) = match self {
            Self::NotFound(detail) => (StatusCode::NOT_FOUND, detail),
            Self::BadRequest(detail) => (StatusCode::BAD_REQUEST, detail),
            Self::Forbidden(detail) => (StatusCode::FORBIDDEN, detail.to_owned()),
            Self::Unavailable(detail) => (StatusCode::SERVICE_UNAVAILABLE, detail),
            Self::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "The call took too long.".to_owned()),
            Self::Invalid(problems) => return answer(StatusCode::UNPROCESSABLE_ENTITY, TEXT, problems),
            Self::MethodNotAllowed(allowed) => {
                let mut denied = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("This path takes {allowed}."));
                denied.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                return denied;
            }
            Self::Unauthorized => {
                let mut denied = problem(StatusCode::UNAUTHORIZED, "This call needs the admin token.");
                denied.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return denied;
            }
        };
        problem(status, &detail)
    }
}

fn problem(status: StatusCode, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let document = Problem::new("about:blank", title, status).member("detail", detail).finish();
    answer(status, problem::CONTENT_TYPE, document)
}

fn answer(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
