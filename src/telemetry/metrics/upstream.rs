//! What is counted for one endpoint of an upstream, and for its retries. An endpoint leaves the page with the configuration.

use super::{ALL, Label, Retry};
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use std::sync::LazyLock;

struct Families {
    up: IntGaugeVec,
    ejections: IntCounterVec,
    connections: IntGaugeVec,
    retries: IntCounterVec,
}

static FAMILIES: LazyLock<Families> = LazyLock::new(|| {
    let r = &ALL.registry;
    let endpoint = &["upstream", "endpoint"];
    let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), endpoint);
    let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
    Families {
        up: made!(r, gauge("staunch_upstream_up", "1 while requests go to the endpoint; 0: unhealthy, or ejected.")),
        ejections: made!(
            r,
            counter(
                "staunch_upstream_ejections_total",
                "How often an endpoint was left out because requests failed on it.",
                endpoint
            )
        ),
        connections: made!(r, gauge("staunch_upstream_connections", "Open connections, idle ones included.")),
        retries: made!(
            r,
            counter(
                "staunch_upstream_retries_total",
                "Further tries of requests: sent, or kept back because the budget was used up.",
                &["upstream", "result"]
            )
        ),
    }
});

/// Counted for one endpoint.
#[derive(Debug)]
pub struct EndpointMetrics {
    labels: [String; 2],
    up: IntGauge,
    ejections: IntCounter,
    connections: IntGauge,
}

/// An open connection, counted until this is dropped.
#[derive(Debug)]
pub struct OpenConnection(IntGauge);

impl EndpointMetrics {
    #[must_use]
    pub fn new(upstream: &str, endpoint: &str) -> Self {
        let labels = &[upstream, endpoint];
        Self {
            labels: labels.map(str::to_owned),
            up: FAMILIES.up.with_label_values(labels),
            ejections: FAMILIES.ejections.with_label_values(labels),
            connections: FAMILIES.connections.with_label_values(labels),
        }
    }

    pub fn up(&self, up: bool) {
        self.up.set(i64::from(up));
    }

    pub fn ejected(&self) {
        self.ejections.inc();
    }

    #[must_use]
    pub fn open(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// Open connections now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        u64::try_from(self.connections.get()).unwrap_or(0)
    }

    pub fn retire(&self) {
        let labels = self.labels.each_ref().map(String::as_str);
        let _ = FAMILIES.up.remove_label_values(&labels);
        let _ = FAMILIES.ejections.remove_label_values(&labels);
        let _ = FAMILIES.connections.remove_label_values(&labels);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counted for one upstream.
#[derive(Debug)]
pub struct RetryMetrics([IntCounter; 2]);

impl RetryMetrics {
    #[must_use]
    pub fn new(upstream: &str) -> Self {
        Self(std::array::from_fn(|i| FAMILIES.retries.with_label_values(&[upstream, Retry::ALL[i].text()])))
    }

    pub fn count(&self, result: Retry) {
        self.0[result.index()].inc();
    }
}
