//! The way to the upstream and back: the request written anew, the answer passed on.

use super::headers::{self, Hop};
use super::peer::Peer;
use super::policy::Route;
use super::record::Record;
use super::service::Gateway;
use crate::http1::{Mode, encode};
use crate::message::{BodyError, Request, Response};
use crate::respond::Failure;
use crate::respond::failure::UpstreamFault;
use crate::route::NormalPath;
use crate::upstream::choose::NoEndpoint;
use crate::upstream::{Endpoint, Failed, Outgoing, Sent, Wish};
use http::{HeaderValue, Method, Version};
use http_body::Body as _;
use std::fmt::Display;

/// A request that every limit has let pass, and what has been found out about it.
pub struct Admitted<'a> {
    pub request: &'a mut Request,
    pub path: NormalPath<'a>,
    pub query: Option<&'a str>,
    pub peer: &'a Peer,
    pub trusted: bool,
    /// What holds it to one endpoint, where the upstream wants that.
    pub affinity: Option<u128>,
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
    let wish = Wish { response_timeout: route.response_timeout, affinity: admitted.affinity };
    let outgoing = outgoing(route, admitted, &request_id);
    let Sent { result, endpoint, held } = gateway.upstreams().send(&route.upstream, outgoing, wish, response).await;
    record.forwarded(&request_id, endpoint, held);
    result.map_err(|failed| failure(route, endpoint, &failed))?;
    let headers = &mut response.headers;
    let protocol = response.tunnel.as_ref().and_then(|_| headers.remove(http::header::UPGRADE));
    headers::strip_answer(headers);
    headers.extend(protocol.map(|protocol| (http::header::UPGRADE, protocol)));
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
        peer: &admitted.peer.text,
        scheme: admitted.peer.scheme,
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

fn failure(route: &Route, endpoint: Option<&Endpoint>, failed: &Failed) -> Failure {
    let upstream = &route.upstream;
    let (failure, told, error): (_, _, &dyn Display) = match failed {
        Failed::Body(BodyError::TooLarge) => return Failure::BodyTooLarge,
        Failed::Body(BodyError::TooSlow) => return Failure::RequestTimeout,
        Failed::Body(BodyError::Malformed(why)) => return Failure::BadRequest((*why).into()),
        Failed::Body(_) => return Failure::BadRequest("the body ended before its end".into()),
        // That it came to this was told when it did; each request after that would say no more.
        Failed::NoEndpoint(NoEndpoint::Unhealthy) => {
            return Failure::NoHealthyUpstream { retry_after: upstream.recovers_within() };
        }
        Failed::NoEndpoint(NoEndpoint::Full) => return Failure::UpstreamFull,
        Failed::TimedOut => (Failure::UpstreamTimedOut, "the upstream did not answer in time", &""),
        Failed::Unreachable(error) => {
            (Failure::UpstreamFailed(UpstreamFault::Connect), "could not connect to the upstream", error)
        }
        Failed::Unanswered(error) => {
            (Failure::UpstreamFailed(UpstreamFault::Closed), "the upstream closed without an answer", error)
        }
        Failed::Malformed(why) => {
            (Failure::UpstreamFailed(UpstreamFault::Malformed), "the upstream gave no proper answer", why)
        }
    };
    let endpoint = endpoint.map(tracing::field::display);
    tracing::warn!(upstream = upstream.name, endpoint, %error, "{told}");
    failure
}
