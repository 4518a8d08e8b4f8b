//! What is counted for one shard of the store, and that it leaves the page with the shard.

use super::{ALL, Label, Lazily, StoreErrorKind};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::sync::atomic::{AtomicBool, Ordering};

/// Counted for one shard of the store.
#[derive(Debug)]
pub struct ShardMetrics {
    shard: String,
    pub requests: IntCounter,
    /// Units that were admitted without the shard and could not be charged to it afterwards.
    pub uncharged: IntCounter,
    duration: Histogram,
    errors: Lazily<8>,
    up: IntGauge,
    degraded: IntGauge,
    retired: AtomicBool,
}

impl ShardMetrics {
    #[must_use]
    pub fn new(shard: &str) -> Self {
        Self {
            shard: shard.to_owned(),
            requests: ALL.store_requests.with_label_values(&[shard]),
            uncharged: ALL.store_uncharged.with_label_values(&[shard]),
            duration: ALL.store_duration.with_label_values(&[shard]),
            errors: Lazily::new(),
            up: ALL.store_up.with_label_values(&[shard]),
            degraded: ALL.store_degraded.with_label_values(&[shard]),
            retired: AtomicBool::new(false),
        }
    }

    pub fn observe(&self, seconds: f64) {
        self.duration.observe(seconds);
    }

    pub fn error(&self, kind: StoreErrorKind) {
        if self.retired.load(Ordering::Relaxed) {
            return;
        }
        let labels = [self.shard.as_str(), kind.text()];
        self.errors.at(kind.index(), || ALL.store_errors.with_label_values(&labels)).inc();
    }

    pub fn up(&self, up: bool) {
        self.up.set(i64::from(up));
    }

    pub fn degraded(&self, degraded: bool) {
        self.degraded.set(i64::from(degraded));
    }

    /// Shown from the first measurement on.
    pub fn clock_skew(&self, seconds: f64) {
        if !self.retired.load(Ordering::Relaxed) {
            ALL.store_clock_skew.with_label_values(&[self.shard.as_str()]).set(seconds);
        }
    }

    /// Takes a shard that is no longer there off the page: a cluster's nodes come and go, and each would leave its lines.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        let shard = [self.shard.as_str()];
        let _ = ALL.store_requests.remove_label_values(&shard);
        let _ = ALL.store_duration.remove_label_values(&shard);
        let _ = ALL.store_uncharged.remove_label_values(&shard);
        let _ = ALL.store_up.remove_label_values(&shard);
        let _ = ALL.store_degraded.remove_label_values(&shard);
        let _ = ALL.store_clock_skew.remove_label_values(&shard);
        for kind in StoreErrorKind::ALL {
            let _ = ALL.store_errors.remove_label_values(&[self.shard.as_str(), kind.text()]);
        }
    }
}
