//! One shard as all cores see it: its breaker, its metrics, its last error, and what its node last said.
//!
//! Every change of state is told here, once: one log line and the gauges.

use super::breaker::{Breaker, Change};
use super::debts::Debts;
use super::fault::{self, Fault};
use super::topology::target::Target;
use super::watch::ALIVE_MS;
use crate::clock;
use crate::store::ErrorKind;
use crate::telemetry::metrics::ShardMetrics;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Beyond it the clocks are told of. It changes no decision, but logs of the two no longer fit together.
const SKEW_TOLERATED_US: u64 = 1_000_000;
/// No clock difference was measured yet.
const UNMEASURED: i64 = i64::MIN;

#[derive(Debug)]
pub(super) struct Shard {
    pub name: String,
    pub target: Target,
    pub metrics: ShardMetrics,
    /// Told when the breaker opens: the probes begin; and when failures end without that: what is owed is paid.
    pub changed: Notify,
    /// What was admitted without it.
    pub debts: Debts,
    /// When another node sent calls here, if it was not the cluster's map that told of this one.
    pub adopted_at: Option<Instant>,
    /// Told of failures: the topology may have changed.
    stale: Arc<Notify>,
    breaker: Breaker,
    last_error: Mutex<Option<(ErrorKind, Cow<'static, str>)>>,
    showing: Mutex<()>,
    gateways: AtomicU64,
    /// Until when the number of gateways is not lowered.
    unsure_until: Mutex<Option<Instant>>,
    clock_skew_us: AtomicI64,
}

impl Shard {
    pub fn new(name: &str, target: Target, failures_max: u32, stale: Arc<Notify>) -> Self {
        let metrics = ShardMetrics::new(name);
        metrics.up(false);
        metrics.degraded(false);
        Self {
            name: name.to_owned(),
            target,
            metrics,
            changed: Notify::new(),
            debts: Debts::default(),
            adopted_at: None,
            stale,
            breaker: Breaker::new(failures_max),
            last_error: Mutex::new(None),
            showing: Mutex::new(()),
            gateways: AtomicU64::new(0),
            unsure_until: Mutex::new(None),
            clock_skew_us: AtomicI64::new(UNMEASURED),
        }
    }

    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().as_ref().map(|(kind, text)| format!("{}: {text}", fault::text(*kind)))
    }

    /// The kind of the last error: what a check is told while the shard is open.
    pub fn last_kind(&self) -> ErrorKind {
        self.last_error.lock().as_ref().map_or(ErrorKind::Other, |(kind, _)| *kind)
    }

    pub fn answered(&self) {
        match self.breaker.answered() {
            Change::Up => self.say_up("store shard answers"),
            Change::Recovered if !self.debts.is_empty() => self.changed.notify_one(),
            Change::None | Change::Recovered | Change::Opened => {}
        }
    }

    /// A call of checks failed, or could not be made.
    pub fn failed(&self, fault: &Fault) {
        self.note(fault);
        if self.breaker.failed(fault.is_lasting(self.breaker.has_answered())) == Change::Opened {
            self.show();
            self.say_open(fault);
            self.changed.notify_one();
        }
    }

    pub fn probed(&self) {
        let again = self.breaker.is_open();
        if self.breaker.probed() == Change::Up {
            self.say_up(if again { "store shard answers again" } else { "store shard answers" });
        }
        // What was admitted while the rest was paid is paid at once, too.
        if !self.debts.is_empty() {
            self.changed.notify_one();
        }
    }

    /// A probe of an open shard failed: nothing changed, unless it turns out that the credentials are wrong.
    pub fn still_open(&self, fault: &Fault) {
        let before = self.last_kind();
        self.note(fault);
        if fault.kind == ErrorKind::Auth && before != ErrorKind::Auth {
            self.say_open(fault);
        }
    }

    /// Changes when connections made before are not to be trusted any more.
    pub fn era(&self) -> u64 {
        self.breaker.openings() + self.target.moves()
    }

    /// Counts a failure without judging the shard by it.
    pub fn note(&self, fault: &Fault) {
        self.stale.notify_one();
        self.metrics.error(fault::label(fault.kind));
        *self.last_error.lock() = Some((fault.kind, fault.text.clone()));
    }

    /// Sets the gauges to the state as it is now: of two changes at once, the later to come here tells the truth for both.
    fn show(&self) {
        let _one_at_a_time = self.showing.lock();
        self.metrics.up(self.breaker.is_up());
        self.metrics.degraded(self.breaker.is_open());
    }

    fn say_up(&self, message: &str) {
        self.last_error.lock().take();
        self.show();
        tracing::info!(shard = self.name, "{message}");
    }

    fn say_open(&self, fault: &Fault) {
        let kind = fault::text(fault.kind);
        if fault.kind == ErrorKind::Auth {
            tracing::error!(shard = self.name, kind, "store shard is degraded: {}", fault.text);
        } else {
            tracing::warn!(shard = self.name, kind, "store shard is degraded: {}", fault.text);
        }
    }

    /// What a heartbeat brought back.
    pub fn heard(&self, gateways: u64, is_new: bool, clock_skew_us: i64) {
        let mut unsure_until = self.unsure_until.lock();
        if is_new {
            // The node has come back empty, or was away for long: until all have had time to call, fewer means nothing.
            *unsure_until = Some(clock::now() + Duration::from_millis(ALIVE_MS));
        }
        let least = unsure_until.filter(|until| clock::now() < *until).map_or(0, |_| self.gateways());
        self.gateways.store(gateways.max(least), Ordering::Relaxed);
        if self.breaker.is_up() {
            self.last_error.lock().take();
        }
        self.skewed(clock_skew_us);
    }

    #[allow(clippy::cast_precision_loss, reason = "microseconds below 2^53: some 285 years")]
    fn skewed(&self, us: i64) {
        let before = self.clock_skew_us.swap(us, Ordering::Relaxed);
        let seconds = us as f64 / 1e6;
        self.metrics.clock_skew(seconds);
        let is_far = |us: i64| us != UNMEASURED && us.unsigned_abs() > SKEW_TOLERATED_US;
        match (is_far(before), is_far(us)) {
            (false, true) => {
                tracing::warn!(shard = self.name, seconds, "the shard's clock differs from this gateway's")
            }
            (true, false) => {
                tracing::info!(shard = self.name, seconds, "the shard's clock agrees with this gateway's again")
            }
            _ => {}
        }
    }

    /// What was known under the settings before a reload.
    pub fn assume_gateways(&self, gateways: u64) {
        self.gateways.fetch_max(gateways, Ordering::Relaxed);
    }

    pub fn gateways(&self) -> u64 {
        self.gateways.load(Ordering::Relaxed)
    }

    pub fn clock_skew_us(&self) -> Option<i64> {
        Some(self.clock_skew_us.load(Ordering::Relaxed)).filter(|skew| *skew != UNMEASURED)
    }

    pub fn observe(&self, took: Duration) {
        self.metrics.observe(took.as_secs_f64());
    }
}
