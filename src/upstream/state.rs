//! What is known of an endpoint, for all cores: whether requests go to it, how it failed, what it has to do.
//!
//! While nothing is against an endpoint a request reads one word of it; the rest is for when something changes.

use super::eject::Ejection;
use crate::clock::{self, Micros};
use crate::telemetry::metrics::EndpointMetrics;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Its health checks fail: no request goes to it.
const UNHEALTHY: u8 = 1;
/// Requests failed on it: none goes to it where another can take it.
const EJECTED: u8 = 2;
/// It has just come back, and gets less than its weight says.
const WARMING: u8 = 4;

/// Parts of a weight.
pub const FULL_SHARE: u64 = 1000;
/// What an endpoint that has just come back gets: with nothing at all it would not warm.
const LEAST_SHARE: u64 = 50;

#[derive(Debug)]
pub struct State {
    upstream: String,
    endpoint: String,
    /// Zero while nothing is against it.
    marks: AtomicU8,
    /// Requests that failed since the last that did not.
    failures: AtomicU32,
    in_flight: AtomicUsize,
    standing: Mutex<Standing>,
    pub metrics: Arc<EndpointMetrics>,
}

/// What changes seldom.
#[derive(Debug)]
struct Standing {
    since_us: Micros,
    last_error: Option<String>,
    ejection: Option<Ejected>,
    warming: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct Ejected {
    until: Instant,
    length: Duration,
}

/// An endpoint's state in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Healthy,
    Unhealthy,
    Ejected,
}

/// An endpoint as people see it.
#[derive(Clone, Debug)]
pub struct View {
    pub condition: Condition,
    /// Wall time.
    pub since_us: Micros,
    pub last_error: Option<String>,
    pub in_flight: usize,
}

impl State {
    #[must_use]
    pub fn new(upstream: &str, endpoint: &str, metrics: Arc<EndpointMetrics>) -> Self {
        metrics.up(true);
        Self {
            upstream: upstream.to_owned(),
            endpoint: endpoint.to_owned(),
            marks: AtomicU8::new(0),
            failures: AtomicU32::new(0),
            in_flight: AtomicUsize::new(0),
            standing: Mutex::new(Standing {
                since_us: clock::wall_us(),
                last_error: None,
                ejection: None,
                warming: None,
            }),
            metrics,
        }
    }

    /// Whether nothing is against it, and it has its whole weight.
    pub fn is_plain(&self) -> bool {
        self.marks.load(Ordering::Relaxed) == 0
    }

    pub fn condition(&self) -> Condition {
        match self.marks.load(Ordering::Relaxed) {
            marks if marks & UNHEALTHY != 0 => Condition::Unhealthy,
            marks if marks & EJECTED != 0 => Condition::Ejected,
            _ => Condition::Healthy,
        }
    }

    #[must_use]
    pub fn view(&self) -> View {
        let standing = self.standing.lock();
        View {
            condition: self.condition(),
            since_us: standing.since_us,
            last_error: standing.last_error.clone(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    /// How much of its weight it gets, of `FULL_SHARE`.
    pub fn share(&self, now: Instant) -> u64 {
        if self.marks.load(Ordering::Relaxed) & WARMING == 0 {
            return FULL_SHARE;
        }
        let Some((begun, length)) = self.standing.lock().warming else { return FULL_SHARE };
        let warm = clock::micros(now.saturating_duration_since(begun));
        (FULL_SHARE * warm / clock::micros(length).max(1)).clamp(LEAST_SHARE, FULL_SHARE)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a request that begins, unless as many as `cap` are under way.
    pub fn enter(self: &Arc<Self>, cap: Option<usize>) -> Option<InFlight> {
        let cap = cap.unwrap_or(usize::MAX);
        let more = |requests: usize| (requests < cap).then_some(requests + 1);
        self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(InFlight(self.clone()))
    }

    /// A request went well.
    pub fn answered(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            let mut standing = self.standing.lock();
            // An answer of a request that was under way when it was ejected lifts nothing.
            if self.condition() == Condition::Healthy {
                standing.last_error = None;
            }
        }
    }

    /// A request failed. `may_go` says whether the endpoint can be spared.
    pub fn failed(&self, why: &str, rule: &Ejection, may_go: impl FnOnce() -> bool) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let mut standing = self.standing.lock();
        standing.last_error = Some(why.to_owned());
        let out = self.marks.load(Ordering::Relaxed) & (UNHEALTHY | EJECTED) != 0;
        if rule.failures == 0 || failures < rule.failures || out || !may_go() {
            return;
        }
        let now = clock::now();
        // Who stays in for as long as it was last out starts anew.
        let repeated = standing.ejection.filter(|last| now.saturating_duration_since(last.until) < last.length);
        let length = repeated.map_or(rule.base_time, |last| last.length.saturating_mul(2)).min(rule.max_time);
        standing.ejection = Some(Ejected { until: now + length, length });
        self.mark(&mut standing, EJECTED, WARMING);
        drop(standing);
        self.metrics.ejected();
        let Self { upstream, endpoint, .. } = self;
        tracing::warn!(upstream, endpoint, error = why, failures, for_ms = length.as_millis(), "endpoint ejected");
    }

    /// Ends what was to end by now: an ejection, a slow start. After an ejection the next failure is one too many, until a
    /// request has gone well.
    pub fn settle(&self, now: Instant, rule: &Ejection, slow_start: Duration) {
        if self.is_plain() {
            return;
        }
        let mut standing = self.standing.lock();
        let marks = self.marks.load(Ordering::Relaxed);
        if marks & EJECTED != 0 && standing.ejection.is_none_or(|ejected| ejected.until <= now) {
            self.failures.store(rule.failures.saturating_sub(1), Ordering::Relaxed);
            self.warm(&mut standing, EJECTED, now, slow_start);
            tracing::info!(upstream = self.upstream, endpoint = self.endpoint, "endpoint is tried again");
        } else if marks & WARMING != 0 && standing.warming.is_none_or(|(begun, length)| begun + length <= now) {
            standing.warming = None;
            self.marks.fetch_and(!WARMING, Ordering::Relaxed);
        }
    }

    pub fn is_unhealthy(&self) -> bool {
        self.condition() == Condition::Unhealthy
    }

    /// Its health checks have failed often enough.
    pub fn fell_ill(&self, why: &str) {
        let mut standing = self.standing.lock();
        standing.last_error = Some(why.to_owned());
        self.mark(&mut standing, UNHEALTHY, EJECTED | WARMING);
        drop(standing);
        tracing::warn!(upstream = self.upstream, endpoint = self.endpoint, error = why, "endpoint is unhealthy");
    }

    /// Its health checks have gone well often enough.
    pub fn recovered(&self, slow_start: Duration) {
        let mut standing = self.standing.lock();
        standing.last_error = None;
        self.failures.store(0, Ordering::Relaxed);
        self.warm(&mut standing, UNHEALTHY, clock::now(), slow_start);
        drop(standing);
        tracing::info!(upstream = self.upstream, endpoint = self.endpoint, "endpoint is healthy again");
    }

    /// A health check failed, and not yet often enough.
    pub fn check_failed(&self, why: &str) {
        self.standing.lock().last_error = Some(why.to_owned());
    }

    fn mark(&self, standing: &mut Standing, set: u8, clear: u8) {
        let marks = self.marks.load(Ordering::Relaxed);
        self.marks.store((marks & !clear) | set, Ordering::Relaxed);
        standing.since_us = clock::wall_us();
        self.metrics.up(self.condition() == Condition::Healthy);
    }

    fn warm(&self, standing: &mut Standing, clear: u8, now: Instant, slow_start: Duration) {
        standing.warming = (!slow_start.is_zero()).then_some((now, slow_start));
        self.mark(standing, if slow_start.is_zero() { 0 } else { WARMING }, clear);
    }
}

/// A request under way at an endpoint, counted until this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<State>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Ejection =
        Ejection { failures: 3, base_time: Duration::from_secs(10), max_time: Duration::from_secs(35) };
    const NONE: Duration = Duration::ZERO;

    fn state() -> Arc<State> {
        let metrics = EndpointMetrics::new("state", "tests:1");
        Arc::new(State::new("state", "tests:1", Arc::new(metrics)))
    }

    fn fail(state: &State, times: u32) {
        (0..times).for_each(|_| state.failed("it broke", &RULE, || true));
    }

    fn settle(state: &State) {
        state.settle(clock::now(), &RULE, NONE);
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_eject_and_others_do_not() {
        let state = state();
        fail(&state, 2);
        state.answered();
        fail(&state, 2);
        assert_eq!(state.condition(), Condition::Healthy);
        assert_eq!(state.view().last_error.as_deref(), Some("it broke"));
        fail(&state, 1);
        assert_eq!(state.condition(), Condition::Ejected);
    }

    #[tokio::test(start_paused = true)]
    async fn an_ejection_ends_by_itself_and_repeats_are_longer_up_to_a_bound() {
        let state = state();
        fail(&state, 3);
        for length in [10, 20, 35, 35] {
            pass(length - 1).await;
            settle(&state);
            assert_eq!(state.condition(), Condition::Ejected, "{length}");
            pass(1).await;
            settle(&state);
            assert_eq!(state.condition(), Condition::Healthy, "{length}");
            fail(&state, 1); // one is enough now
            assert_eq!(state.condition(), Condition::Ejected, "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_stayed_in_as_long_as_it_was_out_starts_anew() {
        let state = state();
        fail(&state, 3);
        pass(10).await;
        settle(&state);
        state.answered();
        pass(10).await;
        fail(&state, 2);
        assert_eq!(state.condition(), Condition::Healthy, "an answer has made up for the ejection");
        fail(&state, 1);
        pass(10).await;
        settle(&state);
        assert_eq!(state.condition(), Condition::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_spared_stays() {
        let state = state();
        (0..9).for_each(|_| state.failed("it broke", &RULE, || false));
        assert_eq!(state.condition(), Condition::Healthy);
        (0..9).for_each(|_| state.failed("it broke", &Ejection { failures: 0, ..RULE }, || true));
        assert_eq!(state.condition(), Condition::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_back_warms_in_a_straight_line() {
        let (state, slow) = (state(), Duration::from_secs(10));
        state.fell_ill("500");
        assert_eq!(state.condition(), Condition::Unhealthy);
        state.recovered(slow);
        assert!(!state.is_plain());
        for (seconds, share) in [(0, LEAST_SHARE), (5, 500), (2, 700), (3, FULL_SHARE)] {
            pass(seconds).await;
            assert_eq!(state.share(clock::now()), share);
        }
        state.settle(clock::now(), &RULE, slow);
        assert!(state.is_plain());
    }

    #[test]
    fn no_more_than_the_cap_are_under_way() {
        let state = state();
        let two = [state.enter(Some(2)), state.enter(Some(2))];
        assert!(two.iter().all(Option::is_some) && state.enter(Some(2)).is_none());
        drop(two);
        assert!(state.enter(Some(1)).is_some());
        assert_eq!(state.in_flight(), 0);
    }
}
