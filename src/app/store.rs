//! The store of the configuration in force, the cache in front of it, and what tends them. Counters survive a reload: memory is kept, and shards are made
//! anew only when their settings changed.

use crate::clock;
use crate::config::model::{self, Backend};
use crate::limit::hot::{self, Hot};
use crate::runtime::Counters;
use crate::store::memory::Memory;
use crate::store::redis::{Node, Settings, Shards, Topology};
use std::rc::Rc;
use std::sync::Arc;
use tokio::task::JoinHandle;

#[derive(Debug)]
pub struct Tended {
    counters: Counters,
    /// Probes and heartbeats of the shards.
    watch: Option<JoinHandle<()>>,
}

impl Tended {
    /// Call it in the control thread's runtime.
    pub fn new(store: &model::Store) -> Self {
        Self::after(store, Arc::new(Memory::new(store.max_keys)), None)
    }

    fn after(store: &model::Store, memory: Arc<Memory>, before: Option<&Shards>) -> Self {
        match &store.backend {
            Backend::Memory => Self { counters: Counters::Memory(memory), watch: None },
            Backend::Redis(redis) => {
                let settings = settings(redis, &store.key_prefix);
                let shards = match before {
                    Some(before) => Shards::reloaded(settings, before),
                    None => Shards::new(settings),
                };
                let watch = tokio::spawn(shards.clone().maintain());
                Self { counters: Counters::Redis { shards, local: memory }, watch: Some(watch) }
            }
        }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Follows a changed configuration.
    pub fn change(&mut self, from: &model::Store, to: &model::Store) {
        if from.max_keys != to.max_keys {
            tracing::warn!(
                "store.max_keys changed; it takes effect at the next start, since the counters would be lost"
            );
        }
        if from.backend == to.backend && from.key_prefix == to.key_prefix {
            return;
        }
        let before = self.counters.shards().map(|shards| &**shards);
        let next = Self::after(to, self.counters.memory().clone(), before);
        if let Some(shards) = before {
            shards.retire(next.counters.shards().map(|shards| &**shards));
        }
        *self = next;
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

fn settings(redis: &model::Redis, key_prefix: &str) -> Settings {
    let node = |node: &model::Node| Node { name: node.name.clone(), url: node.url.clone() };
    let topology = match &redis.topology {
        model::Topology::Sharded => Topology::Sharded,
        model::Topology::Cluster => Topology::Cluster,
        model::Topology::Sentinel { master } => Topology::Sentinel { master: master.clone() },
    };
    Settings {
        topology,
        nodes: redis.nodes.iter().map(node).collect(),
        timeout: redis.timeout,
        failures: redis.breaker.failures,
        retry_after: redis.breaker.retry_after,
        key_prefix: key_prefix.to_owned(),
    }
}

/// The cache in front of the store; none where it is off, or where the store is in this process anyway.
pub fn cache(config: &model::Config) -> Option<Arc<Hot>> {
    match config.store.backend {
        Backend::Memory => None,
        Backend::Redis(_) => Hot::new(config.hot_keys.ttl, config.hot_keys.capacity).map(Arc::new),
    }
}

/// Gives back all that the cache holds. From then on every check goes to the store.
pub async fn release(hot: Option<Arc<Hot>>, counters: &Counters) {
    if let Some(hot) = hot {
        hot::release(&hot, &Rc::new(counters.open())).await;
    }
}

/// Forgets keys that nobody asks for any longer.
pub fn sweep(hot: Option<&Arc<Hot>>) {
    if let Some(hot) = hot {
        hot.sweep(clock::now_us());
    }
}
