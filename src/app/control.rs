//! What the admin listener sees of the process and may do to it.

use super::{App, COMMIT, State, VERSION};
use crate::admin::status::{
    Configuration, Endpoint, Limit as LimitStatus, Listener, RejectedReload, Shard, Store, Upstream,
};
use crate::admin::{Control, ControlError, Counter, CounterView, Readiness, Status};
use crate::algorithm::{Decision, Quota};
use crate::clock;
use crate::lifecycle::Phase;
use crate::limit::hot::Hot;
use crate::limit::{Allowance, Limit};
use crate::store::{CounterKey, StoreError};
use crate::telemetry::timestamp;
use crate::telemetry::top::{Refused, Top};
use crate::units::{Secret, rate_text};
use crate::upstream::state::Condition;
use std::rc::Rc;
use std::sync::Arc;

impl Control for Rc<App> {
    fn readiness(&self) -> Readiness {
        match self.lifecycle.phase() {
            Phase::Starting => Readiness::Starting,
            Phase::Draining => Readiness::Draining,
            Phase::Serving => Readiness::Ready { degraded: degraded(&self.state.borrow()) },
        }
    }

    fn status(&self) -> Status {
        let state = self.state.borrow();
        Status {
            version: VERSION.to_owned(),
            commit: COMMIT.to_owned(),
            uptime_seconds: clock::now().duration_since(self.started).as_secs(),
            configuration: configuration(&self.source.name(), &state),
            listeners: listeners(&state),
            store: store(&state),
            upstreams: upstreams(&state),
            limits: state.compiled.limits.iter().flatten().map(|limit| limit_status(limit)).collect(),
        }
    }

    fn token(&self) -> Option<Secret> {
        self.state.borrow().config.admin.as_ref().and_then(|admin| admin.token.clone())
    }

    fn worst(&self) -> Vec<Refused> {
        Top::worst(self.cores.iter().map(|core| &*core.top), clock::now_us())
    }

    async fn reload(&self) -> Result<(), String> {
        App::reload(self).await
    }

    async fn inspect(&self, counter: &Counter) -> Result<CounterView, ControlError> {
        let found = self.find(counter)?;
        let quota = match found.allowance {
            Allowance::Limited(quota) => quota,
            Allowance::Unlimited => {
                return Err(ControlError::Unknown("This key is unlimited: nothing is counted.".into()));
            }
            Allowance::Nothing { .. } => return Ok(found.view(0, 0, 0)),
        };
        let (decision, held) = found.inspect(&quota).await.map_err(|error| unavailable(error.kind))?;
        let capacity = found.limit.algorithm.capacity(&quota);
        let remaining = (decision.before.remaining + held).min(capacity);
        Ok(found.view(capacity, remaining, decision.before.reset_us))
    }

    async fn reset(&self, counter: &Counter) -> Result<(), ControlError> {
        let found = self.find(counter)?;
        // What is held of it goes with it: before, so that nothing of it outlives the counter; after, what came meanwhile.
        let forget = || found.hot.iter().for_each(|hot| hot.forget(found.key, clock::now_us()));
        forget();
        let reset = found.store.reset(found.key).await;
        forget();
        reset.map(|_| ()).map_err(|error| unavailable(error.kind))
    }
}

/// A counter that an operator named, found.
struct Found {
    limit: Arc<Limit>,
    key: CounterKey,
    allowance: Allowance,
    store: crate::store::Store,
    hot: Option<Arc<Hot>>,
    shard: Option<String>,
}

/// How often a counter is read again because units were on their way meanwhile.
const READS_MAX: u32 = 20;

impl Found {
    /// The counter, and what this gateway holds of it: that is charged there, and not used.
    async fn inspect(&self, quota: &Quota) -> Result<(Decision, u64), StoreError> {
        let holds = || self.hot.as_ref().map_or(Some(0), |hot| hot.holds(self.key));
        let mut reads = 0;
        loop {
            let before = holds();
            let decision = self.store.inspect(self.key, self.limit.algorithm, quota).await?;
            let after = holds();
            reads += 1;
            if (before.is_some() && before == after) || reads == READS_MAX {
                return Ok((decision, after.unwrap_or(0)));
            }
        }
    }

    fn view(&self, capacity: u64, remaining: u64, reset_us: u64) -> CounterView {
        CounterView {
            policy: self.limit.policy.to_string(),
            limit: self.limit.name.to_string(),
            algorithm: self.limit.algorithm.name().to_owned(),
            quota: allowance_text(self.allowance),
            capacity,
            remaining,
            reset_ms: reset_us.div_ceil(1000),
            shard: self.shard.clone(),
        }
    }
}

impl App {
    fn find(&self, counter: &Counter) -> Result<Found, ControlError> {
        let state = self.state.borrow();
        let limits = state.compiled.limits.iter().flatten();
        let limit = limits.into_iter().find(|limit| *limit.policy == *counter.policy && *limit.name == *counter.limit);
        let unknown = || ControlError::Unknown(format!("No limit {}/{}.", counter.policy, counter.limit));
        let limit = limit.ok_or_else(unknown)?.clone();
        let parts: Result<Vec<&str>, _> = counter.key.iter().map(|part| std::str::from_utf8(part)).collect();
        let parts = parts.map_err(|_| ControlError::BadKey("A key is given as UTF-8.".into()))?;
        let digest = limit.keyer.digest_of_parts(&parts).map_err(|error| ControlError::BadKey(error.to_string()))?;
        let client = limit.keyer.client_ip_part().and_then(|part| parts.get(part)?.parse().ok());
        let allowance = limit.allowance_of(client, parts.join(",").as_bytes());
        let counters = state.store.counters();
        let key = CounterKey(digest);
        let shard = counters.shards().map(|shards| shards.home_of(key));
        Ok(Found { limit, key, allowance, store: counters.open(), hot: state.hot.clone(), shard })
    }
}

fn unavailable(kind: crate::store::ErrorKind) -> ControlError {
    ControlError::Unavailable(format!("The counter's shard gave no answer ({kind:?})."))
}

fn degraded(state: &State) -> Vec<String> {
    let health = state.store.counters().shards().map(|shards| shards.health()).unwrap_or_default();
    health.into_iter().filter(|shard| shard.degraded).map(|shard| shard.name).collect()
}

fn configuration(file: &str, state: &State) -> Configuration {
    Configuration {
        file: file.to_owned(),
        hash: state.hash.clone(),
        loaded_at: timestamp::text(state.loaded_at_us),
        last_error: state
            .rejected
            .as_ref()
            .map(|(at_us, problems)| RejectedReload { at: timestamp::text(*at_us), problems: problems.clone() }),
    }
}

fn listeners(state: &State) -> Vec<Listener> {
    let open = state.listeners.connections().into_iter();
    open.map(|(address, connections)| Listener { address: address.to_string(), connections }).collect()
}

fn store(state: &State) -> Store {
    let counters = state.store.counters();
    let health = counters.shards().map(|shards| shards.health()).unwrap_or_default();
    let shards = health.into_iter().map(|shard| Shard {
        name: shard.name,
        state: match (shard.up, shard.degraded) {
            (true, _) => "up",
            (false, true) => "down",
            (false, false) => "connecting",
        },
        degraded: shard.degraded,
        last_error: shard.last_error,
        clock_skew_ms: shard.clock_skew_us.map(|us| us / 1000),
    });
    Store {
        backend: if counters.shards().is_some() { "redis" } else { "memory" },
        memory_keys: counters.memory().len(),
        gateways: counters.shards().map_or(1, |shards| shards.gateways()),
        shards: shards.collect(),
    }
}

fn upstreams(state: &State) -> Vec<Upstream> {
    let upstream = |upstream: &Arc<crate::upstream::Upstream>| Upstream {
        name: upstream.name.clone(),
        endpoints: upstream.endpoints.iter().map(|endpoint| endpoint_status(upstream, endpoint)).collect(),
    };
    state.compiled.upstreams.iter().map(upstream).collect()
}

fn endpoint_status(upstream: &crate::upstream::Upstream, endpoint: &crate::upstream::Endpoint) -> Endpoint {
    let view = endpoint.state.view();
    Endpoint {
        address: endpoint.to_string(),
        resolved: endpoint.place.addresses().iter().map(ToString::to_string).collect(),
        state: match view.condition {
            Condition::Healthy => "healthy",
            Condition::Unhealthy => "unhealthy",
            Condition::Ejected => "ejected",
        },
        since: timestamp::text(view.since_us),
        weight: endpoint.weight,
        connections: endpoint.state.metrics.connections(),
        requests: upstream.counts_requests().then_some(view.in_flight),
        last_error: view.last_error,
    }
}

fn limit_status(limit: &Limit) -> LimitStatus {
    LimitStatus {
        policy: limit.policy.to_string(),
        limit: limit.name.to_string(),
        algorithm: limit.algorithm.name().to_owned(),
        quota: allowance_text(limit.allowance),
        mode: if limit.shadow { "shadow" } else { "enforce" },
        totals: (&*limit.metrics).into(),
    }
}

fn allowance_text(allowance: Allowance) -> String {
    match allowance {
        Allowance::Unlimited => "unlimited".to_owned(),
        Allowance::Nothing { period_us } => rate_text(0, period_us),
        Allowance::Limited(quota) => rate_text(quota.units, quota.period_us),
    }
}
