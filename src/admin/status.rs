//! The shape of `GET /status`: `Status`, with the process's `state` before it.

use crate::telemetry::metrics::{LimitMetrics, Verdict};
use serde::Serialize;

/// The whole document.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// `starting`, `ready` or `draining`.
    pub state: &'static str,
    #[serde(flatten)]
    pub status: Status,
}

/// What the process tells of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub version: String,
    pub commit: String,
    pub uptime_seconds: u64,
    pub configuration: Configuration,
    pub listeners: Vec<Listener>,
    pub store: Store,
    pub upstreams: Vec<Upstream>,
    pub limits: Vec<Limit>,
}

/// The configuration in force.
#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    pub file: String,
    /// Of the file's bytes, to compare gateways with each other.
    pub hash: String,
    /// RFC 3339.
    pub loaded_at: String,
    /// The last reload, if it was rejected; `null` after a good one.
    pub last_error: Option<RejectedReload>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RejectedReload {
    /// RFC 3339.
    pub at: String,
    /// The problems, one a line.
    pub problems: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Listener {
    pub address: String,
    pub connections: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// `memory` or `redis`.
    pub backend: &'static str,
    /// Counters in this process's memory: all of them, or those of shards that are away.
    pub memory_keys: usize,
    /// Seen alive in the store, this one included: among so many a limit is divided that is decided locally.
    pub gateways: u64,
    /// Empty with `memory`.
    pub shards: Vec<Shard>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Shard {
    pub name: String,
    /// `up`, `down` or `connecting`.
    pub state: &'static str,
    /// Whether its keys are decided by `on_failure`.
    pub degraded: bool,
    /// The last failure's kind (`timeout`, `connect`, …), until it answers again.
    pub last_error: Option<String>,
    /// How far its clock is ahead of the gateway's; `null` until measured.
    pub clock_skew_ms: Option<i64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Upstream {
    pub name: String,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Endpoint {
    pub address: String,
    /// What its name was last resolved to, or its own address; empty until the name is known.
    pub resolved: Vec<String>,
    /// `healthy`, `unhealthy` (its health checks fail) or `ejected` (requests failed on it).
    pub state: &'static str,
    /// When that began, RFC 3339.
    pub since: String,
    pub weight: u32,
    /// Open connections, idle ones included.
    pub connections: u64,
    /// Requests under way; `null` where they are not counted (neither `least_requests` nor `max_connections`).
    pub requests: Option<usize>,
    /// Why a request or a health check failed last, until one goes well again.
    pub last_error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    pub policy: String,
    pub limit: String,
    pub algorithm: String,
    /// As in the file: `100/1m`.
    pub quota: String,
    /// `enforce` or `shadow`.
    pub mode: &'static str,
    pub totals: Totals,
}

/// Requests by what the limit said, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub allowed: u64,
    pub limited: u64,
    pub shadow_limited: u64,
    pub delayed: u64,
    pub exempt: u64,
    pub skipped: u64,
}

impl From<&LimitMetrics> for Totals {
    fn from(metrics: &LimitMetrics) -> Self {
        Self {
            allowed: metrics.total(Verdict::Allowed),
            limited: metrics.total(Verdict::Limited),
            shadow_limited: metrics.total(Verdict::ShadowLimited),
            delayed: metrics.total(Verdict::Delayed),
            exempt: metrics.total(Verdict::Exempt),
            skipped: metrics.total(Verdict::Skipped),
        }
    }
}
