//! The policy in force: the configuration compiled for the request path. A request takes it once and keeps it to its end.

use super::client_addr::ClientAddr;
use crate::identify::Facts;
use crate::limit::RouteLimit;
use crate::respond::Style;
use crate::route::Table;
use crate::telemetry::access::Requests;
use crate::telemetry::metrics::RouteMetrics;
use crate::upstream::Upstream;
use crate::upstream::balance::Balance;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub struct Snapshot {
    pub client_addr: ClientAddr,
    pub routes: Table<Arc<Route>>,
    pub style: Style,
    pub access: Requests,
}

#[derive(Debug)]
pub struct Route {
    pub name: Arc<str>,
    pub upstream: Arc<Upstream>,
    /// Every limit of every policy the route names, in the order of the file.
    pub limits: Vec<RouteLimit>,
    /// Taken off the path on the way on; whole segments.
    pub strip_prefix: Option<String>,
    /// Until the head of the answer.
    pub response_timeout: Duration,
    pub metrics: Arc<RouteMetrics>,
}

impl Route {
    /// The first limit's key, where the upstream shares out by it; else, or where the request has none, `None`.
    pub fn affinity(&self, facts: &Facts<'_>) -> Option<u128> {
        if self.upstream.balance != Balance::ConsistentHash {
            return None;
        }
        self.limits.first()?.limit.keyer.digest(facts)
    }
}
