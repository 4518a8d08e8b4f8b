//! The way to the upstream and back: the request written anew, the answer passed on.

use super::headers::{self, Hop};
use super::policy::Route;
use super::record::Record;
use super::service::Gateway;
use crate::http1::{Mode, encode};
use crate::message::{BodyError, Request, Response};
use crate::respond::Failure;
use crate::respond::failure::UpstreamFault;
use crate::route::NormalPath;
use crate::upstream::connection::Exchanged;
use crate::upstream::{Failed, Outgoing};
use http::{HeaderValue, Method, Version};
use http_body::Body as _;

/// A request that every limit has let pass, and what has been found out about it.
pub struct Admitted<'a> {
    pub request: &'a mut Request,
    pub path: NormalPath<'a>,
    pub query: Option<&'a str>,
    /// The peer's address as text.
    pub peer: &'a str,
    pub trusted: bool,
}

/// Sends the request on and puts the upstream's answer, without its hop-by-hop fields, in `response`.
pub async fn forward(
    gateway: &Gateway,
    route: &Route,
    admitted: Admitted<'_>,
    record: &mut Record,
    response: &mut Response,
) -> Result<(), Failure> {
    let request_id = headers::request_id(admitted.request);
    let outgoing = outgoing(route, admitted, &request_id);
    let (sent, endpoint) = gateway.upstreams().send(&route.upstream, outgoing, route.response_timeout).await;
    record.forwarded(&request_id, endpoint);
    match sent {
        Ok(Exchanged::Answer(mut head, body)) => {
            headers::strip_answer(&mut head.headers);
            (response.status, response.headers, response.body) = (head.status, head.headers, body);
        }
        Ok(Exchanged::Switched(mut head, tunnel)) => {
            let protocol = head.headers.remove(http::header::UPGRADE);
            headers::strip_answer(&mut head.headers);
            head.headers.extend(protocol.map(|protocol| (http::header::UPGRADE, protocol)));
            (response.status, response.headers) = (head.status, head.headers);
            response.tunnel = Some(Box::new(tunnel));
        }
        Err(failed) => return Err(failure(route, endpoint, &failed)),
    }
    Ok(())
}

fn outgoing(route: &Route, admitted: Admitted<'_>, request_id: &str) -> Outgoing {
    // Let go of here: what holds the request's head keeps its connection's read buffer for as long as the answer takes.
    let request = std::mem::take(admitted.request);
    let upgrade = (request.version != Version::HTTP_10 && request.body.is_end_stream())
        .then(|| headers::wanted_upgrade(&request))
        .flatten();
    let mut head = Vec::with_capacity(1024);
    encode::request_line(&mut head, &request.method, |head| write_target(head, route, &admitted.path, admitted.query));
    let hop = Hop {
        peer: admitted.peer,
        trusted: admitted.trusted,
        host: host(&request).unwrap_or_default(),
        request_id,
        upgrade: upgrade.as_ref(),
    };
    headers::write_request(&mut head, &request, &hop);
    let mode = framing(&request, &mut head);
    encode::head_end(&mut head);
    Outgoing { method: request.method, head, body: request.body, mode, upgrade }
}

/// The authority of the target outranks `Host` (RFC 9112 §3.2.2).
pub fn host(request: &Request) -> Option<&[u8]> {
    request.authority.as_deref().or_else(|| request.headers.get(http::header::HOST).map(HeaderValue::as_bytes))
}

fn write_target(head: &mut Vec<u8>, route: &Route, path: &NormalPath<'_>, query: Option<&str>) {
    let path = path.forwarded();
    let path = route.strip_prefix.as_deref().and_then(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
    if !path.starts_with('/') {
        head.push(b'/');
    }
    head.extend_from_slice(path.as_bytes());
    if let Some(query) = query {
        head.push(b'?');
        head.extend_from_slice(query.as_bytes());
    }
}

/// Writes the framing field. A method that anticipates content tells its absence too (RFC 9110 §8.6).
fn framing(request: &Request, head: &mut Vec<u8>) -> Mode {
    match request.body.size_hint().exact() {
        Some(0) => {
            if matches!(request.method, Method::POST | Method::PUT | Method::PATCH) {
                encode::content_length(head, 0);
            }
            Mode::None
        }
        Some(length) => {
            encode::content_length(head, length);
            Mode::Sized(length)
        }
        None => {
            encode::field(head, "transfer-encoding", b"chunked");
            Mode::Chunked
        }
    }
}

fn failure(route: &Route, endpoint: &dyn std::fmt::Display, failed: &Failed) -> Failure {
    match failed {
        Failed::Body(BodyError::TooLarge) => Failure::BodyTooLarge,
        Failed::Body(BodyError::TooSlow) => Failure::RequestTimeout,
        Failed::Body(BodyError::Malformed(why)) => Failure::BadRequest((*why).into()),
        Failed::Body(_) => Failure::BadRequest("the body ended before its end".into()),
        Failed::TimedOut => {
            tracing::warn!(upstream = route.upstream.name, %endpoint, "the upstream did not answer in time");
            Failure::UpstreamTimedOut
        }
        Failed::Unreachable(error) => {
            tracing::warn!(upstream = route.upstream.name, %endpoint, %error, "could not connect to the upstream");
            Failure::UpstreamFailed(UpstreamFault::Connect)
        }
        Failed::Unanswered(error) => {
            tracing::warn!(upstream = route.upstream.name, %endpoint, %error, "the upstream closed without an answer");
            Failure::UpstreamFailed(UpstreamFault::Closed)
        }
        Failed::Malformed(why) => {
            tracing::warn!(upstream = route.upstream.name, %endpoint, error = why, "the upstream gave no proper answer");
            Failure::UpstreamFailed(UpstreamFault::Malformed)
        }
    }
}
