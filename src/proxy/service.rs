//! The life of a request, on one page. Each step is a call into one room; what a step leaves is used by the next.

use super::forward::{self, Admitted};
use super::peer::Peer;
use super::policy::Snapshot;
use super::record::{self, Arrival, Record};
use crate::clock;
use crate::identify::Facts;
use crate::limit::{Limiter, Outcome, Ruling};
use crate::message::{Body, Lines, Request, Response};
use crate::respond::{self, Failure};
use crate::route::{normalise, split_target};
use crate::telemetry::access::{AccessLog, Entry};
use crate::telemetry::metrics::RouteMetrics;
use crate::upstream::Upstreams;
use http_body::Body as _;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// One core's gateway: the policy in force and what it works with.
#[derive(Debug)]
pub struct Gateway {
    in_force: RefCell<InForce>,
    upstreams: Upstreams,
    access: Rc<AccessLog>,
    unrouted: RouteMetrics,
}

#[derive(Clone, Debug)]
struct InForce {
    snapshot: Rc<Arc<Snapshot>>,
    limiter: Rc<Limiter>,
}

impl Gateway {
    #[must_use]
    pub fn new(snapshot: Arc<Snapshot>, limiter: Limiter) -> Rc<Self> {
        Rc::new(Self {
            in_force: RefCell::new(InForce { snapshot: Rc::new(snapshot), limiter: Rc::new(limiter) }),
            upstreams: Upstreams::default(),
            access: Rc::new(AccessLog::new()),
            unrouted: RouteMetrics::new(""),
        })
    }

    /// Puts another policy in force, for the requests that begin from now on.
    pub fn replace(&self, snapshot: Arc<Snapshot>, limiter: Limiter) {
        self.in_force.replace(InForce { snapshot: Rc::new(snapshot), limiter: Rc::new(limiter) });
    }

    /// Answers one request in `response`, which was empty. Dropped midway, it ends all work for it.
    pub async fn serve(self: &Rc<Self>, peer: &Peer, request: &mut Request, response: &mut Response) {
        let InForce { snapshot, limiter } = self.in_force.borrow().clone();
        let begun = clock::now();
        let client = snapshot.client_addr.client(peer.address.ip(), &request.headers);
        let mut record = Record::begin(self.clone(), snapshot.clone(), Arrival { begun, client }, request);
        let known = Known { snapshot: &snapshot, limiter: &limiter, peer, client, begun };
        if let Err(failure) = self.handle(&known, request, &mut record, response).await {
            fail(&failure, &mut record, response);
        }
        record.finish(response);
    }

    async fn handle(
        &self,
        known: &Known<'_>,
        request: &mut Request,
        record: &mut Record,
        response: &mut Response,
    ) -> Result<(), Failure> {
        // normalise: the path and the host, once, for matching and for forwarding
        let target = std::mem::take(&mut request.target);
        let (raw_path, query) = split_target(&target).map_err(bad)?;
        let path = normalise(raw_path).map_err(bad)?;
        let host = known.peer.last_host.normalise(forward::host(request).unwrap_or_default()).map_err(bad)?;

        // route
        let found = known.snapshot.routes.find(&host, path.matching(), &request.method, &request.headers);
        let route = found.ok_or(Failure::NoRoute)?;
        record.routed(route.clone(), path.forwarded());
        if request.body.size_hint().lower() > known.peer.bounds.max_body_bytes {
            return Err(Failure::BodyTooLarge);
        }

        // identify and decide: all limits together
        let facts = Facts {
            client: known.client,
            method: &request.method,
            host: &host,
            path: path.matching(),
            query,
            headers: &request.headers,
            route: &route.name,
        };
        let mut ruling = Ruling::pass(known.begun);
        if !route.limits.is_empty() {
            known.limiter.decide(&route.limits, &facts, known.begun, &mut ruling).await;
        }
        record.ruled(&ruling);

        // respond, or forward
        let style = &known.snapshot.style;
        // The moment before the decision: told from after it, a window's end on a whole second would be a second late.
        let wall_us = || clock::wall_us_at(known.begun);
        match ruling.outcome {
            Outcome::Refused => {
                record.refused(ruling.took);
                respond::refuse(response, request, &ruling.told, style, wall_us());
                response.at = Some(ruling.at);
                return Ok(());
            }
            Outcome::Closed { retry_after } => fail(&Failure::StoreClosed { retry_after }, record, response),
            Outcome::MissingKey(name) => fail(&Failure::MissingKey(name), record, response),
            Outcome::Pass => {
                record.passed();
                let affinity = route.affinity(&facts);
                let trusted = known.snapshot.client_addr.trusts(known.peer.address.ip());
                let admitted = Admitted { request, path, query, peer: known.peer, trusted, affinity };
                if let Err(failure) = forward::forward(self, route, admitted, record, response).await {
                    fail(&failure, record, response);
                }
            }
        }

        // annotate: whatever answer goes out
        if !route.limits.is_empty() {
            respond::strip(&mut response.headers);
            response.lines = Lines::with_capacity(respond::room(&ruling.told));
            respond::annotate(&mut response.lines, &ruling.told, style, wall_us());
        }
        Ok(())
    }

    /// Whether a peer is one of the proxies in front of this gateway.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.in_force.borrow().snapshot.client_addr.trusts(peer)
    }

    pub(super) fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    pub(super) fn unrouted(&self) -> &RouteMetrics {
        &self.unrouted
    }

    /// Counts and logs what could not be read as a request, and how it was answered.
    pub fn record_unread(&self, peer: &Peer, failure: &Failure) {
        self.unrouted.count(failure.outcome(), 0.0);
        if self.in_force.borrow().snapshot.access.include(failure.outcome()) {
            self.log(&record::unread(peer.address.ip(), failure));
        }
    }

    /// Writes an access line; the lines of one turn of the event loop leave together.
    pub(super) fn log(&self, entry: &Entry<'_>) {
        if self.access.line(entry) {
            let access = self.access.clone();
            tokio::task::spawn_local(async move {
                tokio::task::yield_now().await;
                access.flush();
            });
        }
    }

    /// Closes upstream connections that have been idle for too long; called every few seconds.
    pub fn sweep(&self) {
        self.upstreams.sweep();
    }
}

/// What is known of a request before its route.
struct Known<'a> {
    snapshot: &'a Snapshot,
    limiter: &'a Limiter,
    peer: &'a Peer,
    client: IpAddr,
    begun: Instant,
}

fn bad(error: impl std::fmt::Display) -> Failure {
    Failure::BadRequest(error.to_string().into())
}

fn fail(failure: &Failure, record: &mut Record, response: &mut Response) {
    record.outcome(failure.outcome());
    let (parts, body) = failure.response().into_parts();
    *response = Response::new(parts.status, parts.headers, Body::from(body));
    response.close = failure.ends_connection();
}
