//! What a good file says, section by section. Every default is filled in, every name resolved to an index, every number
//! in its unit; nothing here is on the request path (that is `proxy::policy`, compiled from this).

use super::certificates::KeyPair;
use crate::algorithm::Algorithm;
use crate::identify::KeySpec;
pub use crate::limit::{Allowance, Matcher, OnFailure, OnMissingKey};
use crate::units::Secret;
pub use crate::upstream::balance::Balance;
pub use crate::upstream::eject::Ejection;
pub use crate::upstream::health::Health;
use crate::upstream::tls::Tls;
use ipnet::IpNet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listeners: Vec<Listener>,
    pub admin: Option<Admin>,
    pub client_ip: ClientIp,
    pub store: Store,
    pub hot_keys: HotKeys,
    pub log: Log,
    pub responses: Responses,
    /// In the order of the file.
    pub upstreams: Vec<Upstream>,
    pub policies: Vec<Policy>,
    pub routes: Vec<Route>,
}

/// How much a file holds: what `check` says of a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub routes: usize,
    pub policies: usize,
    pub limits: usize,
}

impl Config {
    #[must_use]
    pub fn counts(&self) -> Counts {
        let limits = self.policies.iter().map(|policy| policy.limits.len()).sum();
        Counts { routes: self.routes.len(), policies: self.policies.len(), limits }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} routes, {} policies, {} limits", self.routes, self.policies, self.limits)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    pub address: SocketAddr,
    /// `None`: plain.
    pub tls: Option<ListenerTls>,
    pub proxy_protocol: bool,
    pub max_connections: usize,
    /// `None`: unlimited.
    pub max_connections_per_client: Option<usize>,
    pub header_timeout: Duration,
    pub keep_alive_timeout: Duration,
    pub max_header_bytes: usize,
    /// `None`: unlimited.
    pub max_body_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The first is for clients that name no server, or none that is known.
    pub pairs: Vec<KeyPair>,
    pub min_version: TlsVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub address: SocketAddr,
    pub token: Option<Secret>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClientIp {
    pub trusted_proxies: Vec<IpNet>,
    /// Lower case.
    pub header: String,
    pub ipv4_prefix: u8,
    pub ipv6_prefix: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    pub backend: Backend,
    pub max_keys: usize,
    pub on_failure: OnFailure,
    pub key_prefix: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    Memory,
    Redis(Redis),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Redis {
    pub topology: Topology,
    pub nodes: Vec<Node>,
    pub timeout: Duration,
    pub breaker: Breaker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Independent nodes.
    Sharded,
    Cluster,
    /// The nodes are sentinels, which know the primary of this name.
    Sentinel {
        master: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its own name, or host:port of the URL.
    pub name: String,
    /// May hold a password.
    pub url: Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    pub failures: u32,
    pub retry_after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKeys {
    /// Zero: off.
    pub ttl: Duration,
    pub capacity: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    All,
    Refused,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: tracing::level_filters::LevelFilter,
    pub format: LogFormat,
    pub access: AccessLog,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Responses {
    pub x_ratelimit: bool,
    pub x_ratelimit_reset: ResetForm,
    pub ratelimit: bool,
    /// 400 ..= 599
    pub status: u16,
    pub body: RefusalBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetForm {
    Epoch,
    Delta,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RefusalBody {
    Problem,
    Text,
    Custom { content_type: String, text: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    pub name: String,
    pub endpoints: Vec<Endpoint>,
    pub balance: Balance,
    pub connect_timeout: Duration,
    pub response_timeout: Duration,
    pub idle_timeout: Duration,
    pub retries: u32,
    pub http2: bool,
    /// How its `https` endpoints are verified; none where it has no such endpoint.
    pub tls: Option<Arc<Tls>>,
    /// Percent of the requests.
    pub retry_budget: u64,
    pub health: Option<Health>,
    pub ejection: Ejection,
    /// Zero: none.
    pub slow_start: Duration,
    /// Of each endpoint.
    pub max_connections: Option<usize>,
    pub resolve_every: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    pub https: bool,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: String,
    pub on_store_failure: OnFailure,
    pub limits: Vec<Limit>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub name: String,
    pub key: KeySpec,
    pub algorithm: Algorithm,
    pub quota: Allowance,
    pub cost: u64,
    pub on_missing_key: OnMissingKey,
    pub shadow: bool,
    pub exempt: Vec<Matcher>,
    /// The smallest network first; the first that fits holds.
    pub overrides: Vec<(Matcher, Allowance)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Default: the path as written.
    pub name: String,
    pub matches: crate::route::Pattern,
    /// An index into `upstreams`.
    pub upstream: usize,
    /// Indices into `policies`.
    pub policies: Vec<usize>,
    pub strip_prefix: Option<String>,
    /// Its own, or the upstream's.
    pub response_timeout: Duration,
}
