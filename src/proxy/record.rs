//! The end of a request, told once: one metric update, one access line. A request that is dropped midway is told too.

use super::policy::{Route, Snapshot};
use super::service::Gateway;
use crate::clock;
use crate::limit::Ruling;
use crate::message::{Body, BodyError, Request, Response};
use crate::respond::Failure;
use crate::telemetry::access::{Entry, Requests};
use crate::telemetry::log;
use crate::telemetry::metrics::{Outcome, Verdict};
use crate::upstream::Endpoint;
use crate::upstream::state::InFlight;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What the log says of a client that left before its answer; nginx's number for the same.
const CLIENT_LEFT: u16 = 499;

#[derive(Debug)]
pub struct Record {
    gateway: Rc<Gateway>,
    snapshot: Rc<Arc<Snapshot>>,
    arrival: Arrival,
    /// Where that was known before this record's own end.
    took: Option<Duration>,
    route: Option<Arc<Route>>,
    outcome: Outcome,
    status: u16,
    bytes_out: u64,
    /// The limit that decided, by its index in the route's list, and what it said.
    decided_by: Option<usize>,
    decision: Option<Verdict>,
    /// A counter could not be reached, and `on_failure` had its part.
    degraded: bool,
    held: Option<InFlight>,
    /// What only the access log needs; absent where none is kept.
    line: Option<Box<Line>>,
}

/// When a request came, and from whom.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub begun: Instant,
    pub client: IpAddr,
}

#[derive(Debug)]
struct Line {
    method: http::Method,
    host: String,
    path: String,
    proto: http::Version,
    request_id: String,
    upstream: String,
}

impl Record {
    pub fn begin(gateway: Rc<Gateway>, snapshot: Rc<Arc<Snapshot>>, arrival: Arrival, request: &Request) -> Self {
        let logs = snapshot.access != Requests::Off && log::at_info();
        let line = logs.then(|| {
            let path = request.target.split(|octet| *octet == b'?').next().unwrap_or_default();
            let host =
                request.authority.as_deref().or_else(|| request.headers.get(http::header::HOST).map(|h| h.as_bytes()));
            Box::new(Line {
                method: request.method.clone(),
                host: String::from_utf8_lossy(without_user(host.unwrap_or_default())).into_owned(),
                path: String::from_utf8_lossy(path).into_owned(),
                proto: request.version,
                request_id: super::headers::given_request_id(request).unwrap_or_default().to_owned(),
                upstream: String::new(),
            })
        });
        Self {
            gateway,
            snapshot,
            arrival,
            took: None,
            route: None,
            // Of what has not come to a decision when its client leaves.
            outcome: Outcome::Unavailable,
            status: CLIENT_LEFT,
            bytes_out: 0,
            decided_by: None,
            decision: None,
            degraded: false,
            held: None,
            line,
        }
    }

    pub fn routed(&mut self, route: Arc<Route>, path: &str) {
        if let Some(line) = &mut self.line {
            path.clone_into(&mut line.path);
        }
        self.route = Some(route);
    }

    pub fn ruled(&mut self, ruling: &Ruling<'_>) {
        self.decided_by = ruling.decided_by;
        self.decision = ruling.verdict;
        self.degraded = ruling.degraded;
    }

    /// It is on its way upstream from now on, whatever becomes of it there.
    pub fn passed(&mut self) {
        self.outcome = Outcome::Forwarded;
    }

    pub fn outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// By its limits, after this time; to write the refusal takes none that would be worth another look at the clock.
    pub fn refused(&mut self, took: Duration) {
        (self.outcome, self.took) = (Outcome::Limited, Some(took));
    }

    /// `endpoint`: the last that was tried. `held`: counts the request there, until this record ends.
    pub fn forwarded(&mut self, request_id: &str, endpoint: Option<&Endpoint>, held: Option<InFlight>) {
        self.held = held;
        if let Some(line) = &mut self.line {
            request_id.clone_into(&mut line.request_id);
            line.upstream = endpoint.map(ToString::to_string).unwrap_or_default();
        }
    }

    /// Hands the answer on; the record is told when its body has ended.
    pub fn finish(mut self, response: &mut Response) {
        self.status = response.status.as_u16();
        match (&response.body, &mut response.tunnel) {
            (_, Some(tunnel)) => tunnel.held = Some(Box::new(self)),
            (Body::Empty, None) => {}
            (Body::Full(bytes), None) => self.bytes_out = bytes.len() as u64,
            (Body::Stream(_), None) => {
                let body = std::mem::take(&mut response.body);
                response.body = Body::Stream(Box::pin(Recorded { body, record: self }));
            }
        }
    }

    fn limit(&self) -> Option<(&str, &str)> {
        let limit = &self.route.as_ref()?.limits.get(self.decided_by?)?.limit;
        Some((&limit.policy, &limit.name))
    }

    fn write_line(&self, duration: Duration) {
        let Some(line) = self.line.as_ref().filter(|_| self.snapshot.access.include(self.outcome)) else { return };
        self.gateway.log(&Entry {
            wall_us: clock::wall_us(),
            client: self.arrival.client,
            method: line.method.as_str(),
            host: &line.host,
            path: &line.path,
            proto: proto(line.proto),
            route: self.route.as_ref().map_or("", |route| &route.name),
            status: self.status,
            outcome: self.outcome,
            limit: self.limit(),
            decision: self.decision,
            degraded: self.degraded,
            duration_us: clock::micros(duration),
            bytes_out: self.bytes_out,
            request_id: &line.request_id,
            upstream: &line.upstream,
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let metrics = self.route.as_ref().map_or(self.gateway.unrouted(), |route| &route.metrics);
        let duration = self.took.unwrap_or_else(|| clock::now().duration_since(self.arrival.begun));
        metrics.count(self.outcome, duration.as_secs_f64());
        self.write_line(duration);
    }
}

/// Such a host is refused, and its password is nothing for the log.
fn without_user(host: &[u8]) -> &[u8] {
    host.rsplit(|octet| *octet == b'@').next().unwrap_or_default()
}

/// The access line of what could not be read as a request: who sent it, and how it was answered.
pub fn unread(client: IpAddr, failure: &Failure) -> Entry<'static> {
    Entry {
        wall_us: clock::wall_us(),
        client: client.to_canonical(),
        method: "",
        host: "",
        path: "",
        proto: "",
        route: "",
        status: failure.status().as_u16(),
        outcome: failure.outcome(),
        limit: None,
        decision: None,
        degraded: false,
        duration_us: 0,
        bytes_out: 0,
        request_id: "",
        upstream: "",
    }
}

fn proto(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "HTTP/1.0",
        http::Version::HTTP_11 => "HTTP/1.1",
        _ => "HTTP/2.0",
    }
}

/// A body with the record of its request.
struct Recorded {
    body: Body,
    record: Record,
}

impl http_body::Body for Recorded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let recorded = self.get_mut();
        let next = Pin::new(&mut recorded.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &next {
            recorded.record.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        if let Poll::Ready(Some(Err(BodyError::UpstreamBroke))) = &next {
            recorded.record.outcome = Outcome::UpstreamError;
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
