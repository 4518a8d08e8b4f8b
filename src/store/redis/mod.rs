//! Counters on sharded Redis nodes. (skeleton)

pub mod script;

use super::{Answers, Check, CounterKey, StoreError};
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::clock::Micros;
use crate::units::Secret;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub nodes: Vec<Node>,
    pub timeout: Duration,
    /// Failures in a row that open a shard's breaker.
    pub failures: u32,
    /// How long an open shard is left alone before the next probe.
    pub retry_after: Duration,
    pub key_prefix: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub url: Secret,
}

/// What all cores share: each shard's breaker and health, and how many gateways are alive.
#[derive(Debug)]
pub struct Shards {}

/// A shard's state as `/status` and `/readyz` tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHealth {
    pub name: String,
    pub up: bool,
    /// The last error's kind and text, without secrets.
    pub last_error: Option<String>,
}

#[allow(unused_variables, clippy::unused_self)]
impl Shards {
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        unimplemented!()
    }

    #[must_use]
    pub fn health(&self) -> Vec<ShardHealth> {
        unimplemented!()
    }

    /// Which shard holds a key: the highest hash of (node name, key).
    #[must_use]
    pub fn shard_of(&self, key: CounterKey) -> usize {
        unimplemented!()
    }

    /// Gateways last seen alive, this one included; at least 1.
    #[must_use]
    pub fn gateways(&self) -> u64 {
        unimplemented!()
    }

    /// Counts the shard's changes from down to up; the limiter compares it to know when to charge what was admitted meanwhile.
    #[must_use]
    pub fn recoveries(&self, shard: usize) -> u64 {
        unimplemented!()
    }

    /// Probes open shards, writes the heartbeat and reads the others', until dropped. Runs once per process, on the control thread.
    pub async fn maintain(self: Arc<Self>) {
        unimplemented!()
    }
}

/// One core's connections to the shards.
#[derive(Debug)]
pub struct Client {}

#[allow(unused_variables, clippy::unused_self, clippy::unused_async)]
impl Client {
    /// Connects lazily; call it inside the core's runtime.
    #[must_use]
    pub fn new(shards: Arc<Shards>) -> Rc<Self> {
        unimplemented!()
    }

    /// One call per shard, all at the same time; each shard's group is all or nothing. Ends within the timeout.
    pub async fn decide(&self, checks: &[Check]) -> Answers {
        unimplemented!()
    }

    /// Gives back what was charged at `charged_at` (the shard's clock).
    pub async fn give_back(&self, check: &Check, charged_at: Micros) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Charges as much of the check's cost as fits.
    pub async fn charge_up_to(&self, check: &Check) -> Result<u64, StoreError> {
        unimplemented!()
    }

    pub async fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Result<Decision, StoreError> {
        unimplemented!()
    }

    pub async fn reset(&self, key: CounterKey) -> Result<bool, StoreError> {
        unimplemented!()
    }
}
