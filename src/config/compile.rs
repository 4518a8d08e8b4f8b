//! From the checked configuration to the policy in force. What must outlive a reload (connection slots, endpoints' states, metric handles) is
//! handed out from here, the same to each configuration that asks for it by the same name.

use super::model::{self, Config};
use crate::identify::{Identity, Keyer, Namespace, Prefixes};
use crate::limit::{Exceptions, Limit, Name, RouteLimit};
use crate::proxy::client_addr::ClientAddr;
use crate::proxy::{Bounds, Route, Snapshot};
use crate::respond::{self, RefusalBody, Reset, Style};
use crate::route::Table;
use crate::telemetry::access::Requests;
use crate::telemetry::metrics::{self, LimitMetrics, RetryMetrics, RouteMetrics};
use crate::upstream::balance::Rotation;
use crate::upstream::endpoint::{Transport, Wanted};
use crate::upstream::{Registry, Upstream};
use http::HeaderValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest pause within a request's body, and longest time that a client takes nothing of its answer (nginx's default for both).
const STALL: Duration = Duration::from_secs(60);

/// What configurations have in common over the life of the process.
#[derive(Debug, Default)]
pub struct Compiler {
    endpoints: Registry,
    limit_metrics: HashMap<(String, String), Arc<LimitMetrics>>,
    route_metrics: HashMap<String, Arc<RouteMetrics>>,
}

/// The policy in force with its parts by name, as the admin listener shows them.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub snapshot: Arc<Snapshot>,
    pub upstreams: Vec<Arc<Upstream>>,
    /// Per policy, in the order of the file.
    pub limits: Vec<Vec<Arc<Limit>>>,
}

impl Compiler {
    /// Compiles a checked configuration. An error means that the check let something through; nothing is changed then.
    pub fn compile(&mut self, config: &Config) -> Result<Compiled, String> {
        let upstreams: Vec<_> = config.upstreams.iter().map(|upstream| Arc::new(self.upstream(upstream))).collect();
        let limits: Vec<Vec<_>> = config.policies.iter().map(|policy| self.limits(config, policy)).collect();
        let routes = config.routes.iter().map(|route| {
            let compiled = self.route(route, config, &upstreams, &limits);
            (route.matches.clone(), Arc::new(compiled))
        });
        let routes = Table::new(routes.collect())
            .map_err(|conflict| format!("two routes match the same requests: {conflict:?}"))?;
        let client_addr = ClientAddr::new(&config.client_ip.trusted_proxies, &config.client_ip.header)
            .map_err(|error| format!("client_ip.header: {error}"))?;
        let snapshot =
            Snapshot { client_addr, routes, style: style(&config.responses)?, access: access(config.log.access) };
        Ok(Compiled { snapshot: Arc::new(snapshot), upstreams, limits })
    }

    fn upstream(&mut self, upstream: &model::Upstream) -> Upstream {
        if upstream.tls.as_ref().is_some_and(|tls| !tls.verifies()) {
            tracing::warn!(
                upstream = upstream.name,
                "tls.verify is false: anybody on the way can pose as the upstream"
            );
        }
        let weights: Vec<u32> = upstream.endpoints.iter().map(|endpoint| endpoint.weight).collect();
        let endpoints = upstream.endpoints.iter().map(|endpoint| {
            let tls = upstream.tls.clone().filter(|_| endpoint.https);
            self.endpoints.endpoint(&Wanted {
                upstream: &upstream.name,
                host: &endpoint.host,
                port: endpoint.port,
                transport: &Transport { tls, http2: upstream.http2 },
                weight: endpoint.weight,
                idle_timeout: upstream.idle_timeout,
                resolve_every: upstream.resolve_every,
                health: upstream.health.as_ref(),
            })
        });
        Upstream {
            name: upstream.name.clone(),
            endpoints: endpoints.collect(),
            balance: upstream.balance,
            rotation: Rotation::new(&weights),
            connect_timeout: upstream.connect_timeout,
            idle_timeout: upstream.idle_timeout,
            retries: upstream.retries,
            retry_budget: upstream.retry_budget,
            budget: self.endpoints.budget(&upstream.name),
            ejection: upstream.ejection,
            health: upstream.health.clone(),
            slow_start: upstream.slow_start,
            max_connections: upstream.max_connections,
            duration: metrics::upstream_duration(&upstream.name),
            retried: RetryMetrics::new(&upstream.name),
        }
    }

    /// Forgets what this configuration, which is in force now, does not have.
    pub fn retain(&mut self, compiled: &Compiled) {
        self.endpoints.retain(&compiled.upstreams);
    }

    fn limits(&mut self, config: &Config, policy: &model::Policy) -> Vec<Arc<Limit>> {
        let namespace = Namespace::new(&config.store.key_prefix);
        let prefixes = Prefixes { ipv4: config.client_ip.ipv4_prefix, ipv6: config.client_ip.ipv6_prefix };
        let name: Arc<str> = policy.name.as_str().into();
        let compiled = policy.limits.iter().map(|limit| {
            let identity = Identity { policy: &policy.name, limit: &limit.name, algorithm: limit.algorithm.name() };
            let metrics = self.limit_metrics.entry((policy.name.clone(), limit.name.clone()));
            Arc::new(Limit {
                policy: name.clone(),
                name: limit.name.as_str().into(),
                keyer: Keyer::new(namespace, identity, &limit.key, prefixes),
                algorithm: limit.algorithm,
                allowance: limit.quota,
                cost: limit.cost,
                on_missing_key: limit.on_missing_key,
                shadow: limit.shadow,
                exceptions: Exceptions::new(&limit.exempt, &limit.overrides),
                on_failure: policy.on_store_failure,
                metrics: metrics.or_insert_with(|| Arc::new(LimitMetrics::new(&policy.name, &limit.name))).clone(),
            })
        });
        compiled.collect()
    }

    fn route(
        &mut self,
        route: &model::Route,
        config: &Config,
        upstreams: &[Arc<Upstream>],
        limits: &[Vec<Arc<Limit>>],
    ) -> Route {
        let applied: Vec<&Arc<Limit>> = in_file_order(route, config, limits);
        let told_as = |limit: &Arc<Limit>| {
            let twins = applied.iter().filter(|other| other.name == limit.name).count();
            if twins > 1 { Name::new(&format!("{}/{}", limit.policy, limit.name)) } else { Name::new(&limit.name) }
        };
        let metrics = self.route_metrics.entry(route.name.clone());
        Route {
            name: route.name.as_str().into(),
            upstream: upstreams[route.upstream].clone(),
            limits: applied
                .iter()
                .map(|limit| {
                    let told_as = told_as(limit);
                    RouteLimit { limit: (*limit).clone(), policy: respond::policy_of(limit, &told_as), told_as }
                })
                .collect(),
            strip_prefix: route.strip_prefix.clone(),
            response_timeout: route.response_timeout,
            metrics: metrics.or_insert_with(|| Arc::new(RouteMetrics::new(&route.name))).clone(),
        }
    }
}

/// Each limit of each policy the route names, once. "First in the file" decides ties between limits, so the order of the
/// file is kept and not that of the route's list.
fn in_file_order<'l>(route: &model::Route, config: &Config, limits: &'l [Vec<Arc<Limit>>]) -> Vec<&'l Arc<Limit>> {
    (0..config.policies.len()).filter(|index| route.policies.contains(index)).flat_map(|index| &limits[index]).collect()
}

fn style(responses: &model::Responses) -> Result<Style, String> {
    let body = match &responses.body {
        model::RefusalBody::Problem => RefusalBody::Problem,
        model::RefusalBody::Text => RefusalBody::Text,
        model::RefusalBody::Custom { content_type, text } => RefusalBody::Custom {
            content_type: HeaderValue::from_str(content_type).map_err(|error| format!("responses.body: {error}"))?,
            text: text.clone().into(),
        },
    };
    Ok(Style {
        x_ratelimit: responses.x_ratelimit,
        reset: match responses.x_ratelimit_reset {
            model::ResetForm::Epoch => Reset::Epoch,
            model::ResetForm::Delta => Reset::Delta,
        },
        ratelimit: responses.ratelimit,
        status: Style::refusal_status(responses.status).ok_or("responses.status: not 400 to 599")?,
        body,
    })
}

fn access(access: model::AccessLog) -> Requests {
    match access {
        model::AccessLog::All => Requests::All,
        model::AccessLog::Refused => Requests::Refused,
        model::AccessLog::Off => Requests::Off,
    }
}

/// A listener's bounds on its connections.
#[must_use]
pub fn bounds(listener: &model::Listener) -> Arc<Bounds> {
    Arc::new(Bounds {
        header_timeout: listener.header_timeout,
        keep_alive_timeout: listener.keep_alive_timeout,
        stall_timeout: STALL,
        max_header_bytes: listener.max_header_bytes,
        max_body_bytes: listener.max_body_bytes.unwrap_or(u64::MAX),
    })
}
