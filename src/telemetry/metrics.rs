//! Every metric: its name, help, labels and buckets; nothing else names `prometheus`.
//!
//! Handles are looked up when a configuration is loaded and kept beside what they count, so a request pays one atomic
//! addition and no label lookup. Children live in one registry for the life of the process: a reload continues them.
//! Labels come from the configuration or from closed sets, never from a request.

/// A name or label that Prometheus does not allow would be a mistake in this file, and every test would see it.
macro_rules! made {
    ($registry:expr, $metric:expr) => {{
        #[allow(clippy::expect_used, reason = "constant names, checked by the first test that renders the page")]
        let metric = $metric.expect("a well-formed metric");
        #[allow(clippy::expect_used, reason = "each name is registered once, here")]
        $registry.register(Box::new(metric.clone())).expect("a name of its own");
        metric
    }};
}

mod shard;
mod upstream;

pub use super::labels::{HandshakeFailure, Label, Outcome, Reload, Retry, Source, StoreErrorKind, Verdict};
use crate::clock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
pub use shard::ShardMetrics;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;
pub use upstream::{EndpointMetrics, OpenConnection, RetryMetrics};

/// 10 µs to 10 s: a decision in memory is below the first, a stuck upstream above the last.
const SECONDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0,
];

struct All {
    registry: Registry,
    requests: IntCounterVec,
    request_duration: HistogramVec,
    upstream_duration: HistogramVec,
    decisions: IntCounterVec,
    uncounted: IntCounterVec,
    decision_duration: HistogramVec,
    store_requests: IntCounterVec,
    store_duration: HistogramVec,
    store_errors: IntCounterVec,
    store_up: IntGaugeVec,
    store_degraded: IntGaugeVec,
    store_clock_skew: GaugeVec,
    store_uncharged: IntCounterVec,
    hot_keys: IntGauge,
    lease_units_lost: IntCounter,
    memory_keys: IntGauge,
    memory_evictions: IntCounter,
    reloads: IntCounterVec,
    last_reload: Gauge,
    build_info: GaugeVec,
    connections_active: IntGaugeVec,
    connections_rejected: IntCounterVec,
    handshake_failures: IntCounterVec,
    certificate_reloads: IntCounterVec,
    log_lines_dropped: IntCounter,
}

static ALL: LazyLock<All> = LazyLock::new(|| {
    let r = Registry::new();
    let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
    let gauge = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
    let seconds = |name: &str, help: &str, labels: &[&str]| {
        HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels)
    };
    All {
        requests: made!(r, counter("staunch_requests_total", "Requests by route and outcome.", &["route", "outcome"])),
        request_duration: made!(
            r,
            seconds(
                "staunch_request_duration_seconds",
                "From the request's head to the end of the answer's body.",
                &["route"]
            )
        ),
        upstream_duration: made!(
            r,
            seconds(
                "staunch_upstream_duration_seconds",
                "From sending the request to the upstream to the head of its answer.",
                &["upstream"]
            )
        ),
        decisions: made!(
            r,
            counter(
                "staunch_decisions_total",
                "What each limit said, and who answered.",
                &["policy", "limit", "decision", "source"]
            )
        ),
        uncounted: made!(
            r,
            counter(
                "staunch_uncounted_total",
                "Requests let through because a counter could not be reached and on_failure is open.",
                &["policy", "limit"]
            )
        ),
        decision_duration: made!(
            r,
            seconds("staunch_decision_duration_seconds", "All limits of one request, by who answered.", &["source"])
        ),
        store_requests: made!(r, counter("staunch_store_requests_total", "Calls to a shard.", &["shard"])),
        store_duration: made!(
            r,
            seconds("staunch_store_duration_seconds", "One call to a shard, waiting included.", &["shard"])
        ),
        store_uncharged: made!(
            r,
            counter(
                "staunch_store_uncharged_units_total",
                "Units admitted while a shard was away that could not be charged to it afterwards.",
                &["shard"]
            )
        ),
        store_errors: made!(
            r,
            counter("staunch_store_errors_total", "Calls, connections and probes that failed.", &["shard", "kind"])
        ),
        store_up: made!(r, gauge("staunch_store_up", "1 while the shard answers, 0 while it does not.", &["shard"])),
        store_degraded: made!(
            r,
            gauge(
                "staunch_store_degraded",
                "1 while the shard's breaker is open and its keys are decided by on_failure.",
                &["shard"]
            )
        ),
        store_clock_skew: made!(
            r,
            GaugeVec::new(
                Opts::new(
                    "staunch_store_clock_skew_seconds",
                    "How far the shard's clock is ahead of the gateway's; decides nothing."
                ),
                &["shard"]
            )
        ),
        hot_keys: made!(r, IntGauge::new("staunch_hot_keys", "Keys in the local cache.")),
        lease_units_lost: made!(
            r,
            IntCounter::new(
                "staunch_lease_units_lost_total",
                "Charged in a shard and neither used nor given back, at most."
            )
        ),
        memory_keys: made!(r, IntGauge::new("staunch_memory_keys", "Counters in the memory store.")),
        memory_evictions: made!(
            r,
            IntCounter::new("staunch_memory_evictions_total", "Counters in use that a full store forgot.")
        ),
        reloads: made!(r, counter("staunch_config_reloads_total", "Reloads by result.", &["result"])),
        last_reload: made!(
            r,
            Gauge::new("staunch_config_last_reload_timestamp_seconds", "When the configuration in force was loaded.")
        ),
        build_info: made!(
            r,
            GaugeVec::new(
                Opts::new("staunch_build_info", "1; the version and commit are in the labels."),
                &["version", "commit"]
            )
        ),
        connections_active: made!(r, gauge("staunch_connections_active", "Open client connections.", &["listener"])),
        connections_rejected: made!(
            r,
            counter(
                "staunch_connections_rejected_total",
                "Connections closed at once because of max_connections or max_connections_per_client.",
                &["listener"]
            )
        ),
        handshake_failures: made!(
            r,
            counter(
                "staunch_handshake_failures_total",
                "Connections that ended before HTTP began on them, by what was wrong.",
                &["listener", "reason"]
            )
        ),
        certificate_reloads: made!(
            r,
            counter(
                "staunch_certificate_reloads_total",
                "Certificates and keys read anew because a file changed, by result.",
                &["listener", "result"]
            )
        ),
        log_lines_dropped: made!(
            r,
            IntCounter::new(
                "staunch_log_lines_dropped_total",
                "Log lines that were dropped because stderr was not read."
            )
        ),
        registry: r,
    }
});

/// Counters of one closed label beside labels fixed at load time; made when first counted, so that a page with a thousand
/// routes lists what happened and not every thing that might.
#[derive(Debug)]
struct Lazily<const N: usize> {
    made: [OnceLock<IntCounter>; N],
}

impl<const N: usize> Lazily<N> {
    fn new() -> Self {
        Self { made: std::array::from_fn(|_| OnceLock::new()) }
    }

    fn at(&self, index: usize, make: impl FnOnce() -> IntCounter) -> &IntCounter {
        self.made[index].get_or_init(make)
    }
}

/// A distribution of durations.
#[derive(Clone, Debug)]
pub struct Seconds(Histogram);

impl Seconds {
    pub fn observe(&self, duration: Duration) {
        self.0.observe(duration.as_secs_f64());
    }

    /// How many were observed so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.get_sample_count()
    }
}

/// Counted for one route.
#[derive(Debug)]
pub struct RouteMetrics {
    route: String,
    outcomes: Lazily<7>,
    duration: Histogram,
}

impl RouteMetrics {
    #[must_use]
    pub fn new(route: &str) -> Self {
        Self {
            route: route.to_owned(),
            outcomes: Lazily::new(),
            duration: ALL.request_duration.with_label_values(&[route]),
        }
    }

    pub fn count(&self, outcome: Outcome, seconds: f64) {
        self.outcomes
            .at(outcome.index(), || ALL.requests.with_label_values(&[self.route.as_str(), outcome.text()]))
            .inc();
        self.duration.observe(seconds);
    }
}

/// Counted for one limit of one policy.
#[derive(Debug)]
pub struct LimitMetrics {
    policy: String,
    limit: String,
    counts: Lazily<24>,
    uncounted: OnceLock<IntCounter>,
}

impl LimitMetrics {
    #[must_use]
    pub fn new(policy: &str, limit: &str) -> Self {
        Self { policy: policy.to_owned(), limit: limit.to_owned(), counts: Lazily::new(), uncounted: OnceLock::new() }
    }

    pub fn count(&self, verdict: Verdict, source: Source) {
        let index = verdict.index() * Source::ALL.len() + source.index();
        let labels = || [self.policy.as_str(), self.limit.as_str(), verdict.text(), source.text()];
        self.counts.at(index, || ALL.decisions.with_label_values(&labels())).inc();
    }

    /// A request that was let through although its counter could not be reached (`on_failure = "open"`).
    pub fn uncounted(&self) {
        let made = || ALL.uncounted.with_label_values(&[self.policy.as_str(), self.limit.as_str()]);
        self.uncounted.get_or_init(made).inc();
    }

    /// The totals so far, by verdict, for `/status`.
    #[must_use]
    pub fn total(&self, verdict: Verdict) -> u64 {
        let first = verdict.index() * Source::ALL.len();
        self.counts.made[first..first + Source::ALL.len()].iter().filter_map(OnceLock::get).map(IntCounter::get).sum()
    }
}

/// Counted for one listener.
#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    listener: Arc<str>,
    pub active: IntGauge,
    pub rejected: IntCounter,
}

impl ListenerMetrics {
    #[must_use]
    pub fn new(listener: &str) -> Self {
        Self {
            listener: listener.into(),
            active: ALL.connections_active.with_label_values(&[listener]),
            rejected: ALL.connections_rejected.with_label_values(&[listener]),
        }
    }

    pub fn handshake_failed(&self, reason: HandshakeFailure) {
        ALL.handshake_failures.with_label_values(&[&*self.listener, reason.text()]).inc();
    }

    pub fn certificates_reloaded(&self, result: Reload) {
        ALL.certificate_reloads.with_label_values(&[&*self.listener, result.text()]).inc();
    }
}

/// Seconds from sending a request to an upstream to the head of its answer.
#[must_use]
pub fn upstream_duration(upstream: &str) -> Seconds {
    Seconds(ALL.upstream_duration.with_label_values(&[upstream]))
}

/// Seconds for all limits of one request, by who answered; indexed by `Source::index`.
#[must_use]
pub fn decision_durations() -> [Seconds; 4] {
    std::array::from_fn(|i| Seconds(ALL.decision_duration.with_label_values(&[Source::ALL[i].text()])))
}

#[allow(clippy::cast_precision_loss, reason = "seconds since the epoch are far below 2^53")]
pub fn reloaded(result: Reload) {
    ALL.reloads.with_label_values(&[result.text()]).inc();
    if result == Reload::Ok {
        loaded();
    }
}

/// The configuration in force was loaded now.
#[allow(clippy::cast_precision_loss, reason = "microseconds since the epoch stay below 2^53 until 2255")]
pub fn loaded() {
    ALL.last_reload.set(clock::wall_us() as f64 / 1e6);
}

pub fn keys_in_memory(count: usize, newly_evicted: u64) {
    ALL.memory_keys.set(i64::try_from(count).unwrap_or(i64::MAX));
    ALL.memory_evictions.inc_by(newly_evicted);
}

/// So many more, or fewer.
pub fn hot_keys(change: isize) {
    ALL.hot_keys.add(change as i64);
}

/// Could not be given back, or nobody was told of them.
pub fn lease_units_lost(units: u64) {
    ALL.lease_units_lost.inc_by(units);
}

pub fn build(version: &str, commit: &str) {
    ALL.build_info.with_label_values(&[version, commit]).set(1.0);
    for result in Reload::ALL {
        ALL.reloads.with_label_values(&[result.text()]).inc_by(0);
    }
}

pub fn log_lines_dropped(count: u64) {
    ALL.log_lines_dropped.inc_by(count);
}

/// The page of `GET /metrics`, in the Prometheus text format.
#[must_use]
pub fn render() -> String {
    TextEncoder::new().encode_to_string(&ALL.registry.gather()).unwrap_or_default()
}
