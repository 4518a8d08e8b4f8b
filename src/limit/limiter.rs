//! The decision: every limit of the request is asked, and it passes if each enforced one admits it; only then is any charged.

use super::failure::{self, Replies, Seen, Settled};
use super::hot::{Cache, Hot};
use super::rule::{Question, RouteLimit};
use super::{Told, window_us};
use crate::algorithm::{Algorithm, Decision, Standing};
use crate::clock;
use crate::identify::Facts;
use crate::store::{Check, Store};
use crate::telemetry::metrics::{self, Label, Seconds, Source, Verdict};
use crate::telemetry::top::Top;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// One core's way to the counters.
#[derive(Debug)]
pub struct Limiter {
    store: Rc<Store>,
    /// In front of the store; absent where it is off or the store is in this process.
    cache: Option<Cache>,
    top: Arc<Top>,
    durations: [Seconds; 4],
}

/// What became of a request's limits.
#[derive(Debug)]
pub struct Ruling {
    pub outcome: Outcome,
    /// The limits that are shown to the client, in the order of the file.
    pub told: SmallVec<[Told; 4]>,
    /// What the log tells: the limit that refused, else the tightest that admitted, else one that did not count; by its
    /// index in the route's list.
    pub decided_by: Option<usize>,
    /// What that limit said; `None` where it was not asked, or could not be.
    pub verdict: Option<Verdict>,
    /// Whether a counter could not be reached, so that `on_failure` had a part in it.
    pub degraded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Refused,
    /// A counter cannot be reached and its policy is to fail closed.
    Closed {
        retry_after: Duration,
    },
    /// The limit of this name insists on its key.
    MissingKey(Arc<str>),
}

type Questions = SmallVec<[Question; 4]>;

impl Limiter {
    #[must_use]
    pub fn new(store: Rc<Store>, hot: Option<Arc<Hot>>, top: Arc<Top>) -> Self {
        let cache = hot.map(|hot| Cache::new(hot, store.clone()));
        Self { store, cache, top, durations: metrics::decision_durations() }
    }

    #[must_use]
    pub fn store(&self) -> &Rc<Store> {
        &self.store
    }

    /// Decides all limits together. What is charged for a request that is then refused goes back off its path.
    pub async fn decide(&self, limits: &[RouteLimit], facts: &Facts<'_>) -> Ruling {
        let questions: Questions = limits.iter().map(|limit| limit.limit.question(facts)).collect();
        if let Some(index) = questions.iter().position(|question| *question == Question::MissingKey) {
            return Ruling::without_key(index, limits[index].limit.name.clone());
        }
        let begun = clock::now();
        let refused_outright = |(question, limit): (&Question, &RouteLimit)| {
            matches!(question, Question::Never { .. }) && !limit.limit.shadow
        };
        // What is refused outright costs the store nothing, and is told alone.
        let ask = !questions.iter().zip(limits).any(refused_outright);
        let checks: SmallVec<[Check; 4]> = questions.iter().filter_map(|q| q.check().filter(|_| ask)).collect();
        let seen = if checks.is_empty() {
            Settled::default()
        } else {
            self.ask(&checks, failure_modes(&questions, limits)).await
        };
        let ruling = rule(&questions, limits, &seen, ask);
        if ruling.outcome == Outcome::Refused {
            self.note_refused(&questions, limits, &seen, facts);
        }
        self.durations[seen.source().index()].observe(clock::now().duration_since(begun));
        ruling
    }
}

impl Limiter {
    async fn ask(&self, checks: &[Check], modes: impl Iterator<Item = super::OnFailure> + Clone) -> Settled {
        if let Some(cache) = &self.cache {
            return cache.decide(checks, modes).await;
        }
        let answers = self.store.decide(checks).await;
        failure::settle(&self.store, checks, &Replies::of_store(answers), modes)
    }

    fn note_refused(&self, questions: &Questions, limits: &[RouteLimit], settled: &Settled, facts: &Facts<'_>) {
        let mut seen = settled.seen.iter();
        for (question, limit) in questions.iter().zip(limits) {
            let Some(check) = question.check() else { continue };
            if let Some(Seen::Decided { decision, .. }) = seen.next()
                && check.enforced
                && !decision.admitted
            {
                self.top.count(check.key.0, clock::now_us(), || limit.limit.named(check.key.0, facts));
            }
        }
    }
}

impl Question {
    pub(super) fn check(&self) -> Option<Check> {
        if let Self::Ask(check) = self { Some(*check) } else { None }
    }
}

/// Each check's failure mode, in the order of the checks.
fn failure_modes<'l>(
    questions: &'l Questions,
    limits: &'l [RouteLimit],
) -> impl Iterator<Item = super::OnFailure> + Clone + 'l {
    questions
        .iter()
        .zip(limits)
        .filter(|(question, _)| question.check().is_some())
        .map(|(_, limit)| limit.limit.on_failure)
}

impl Ruling {
    /// A route without limits.
    #[must_use]
    pub fn pass() -> Self {
        Self { outcome: Outcome::Pass, told: SmallVec::new(), decided_by: None, verdict: None, degraded: false }
    }

    fn without_key(index: usize, name: Arc<str>) -> Self {
        Self { outcome: Outcome::MissingKey(name), decided_by: Some(index), ..Self::pass() }
    }
}

/// Makes one ruling of what each limit said, and counts each limit's word.
fn rule(questions: &Questions, limits: &[RouteLimit], settled: &Settled, asked: bool) -> Ruling {
    let passes = asked && settled.passes;
    let mut ruling = Ruling { degraded: settled.degraded, ..Ruling::pass() };
    if let Some(retry_after) = settled.closed {
        ruling.outcome = Outcome::Closed { retry_after };
    } else if !passes {
        ruling.outcome = Outcome::Refused;
    }
    let mut seen = settled.seen.iter();
    let mut least = (u8::MAX, u64::MAX);
    for (index, (question, limit)) in questions.iter().zip(limits).enumerate() {
        let (verdict, source, told) = match question {
            Question::Exempt => (Verdict::Exempt, Source::Local, None),
            Question::Skipped | Question::MissingKey => (Verdict::Skipped, Source::Local, None),
            Question::Unlimited => (Verdict::Allowed, Source::Local, None),
            Question::Never { period_us } => (verdict(false, limit), Source::Local, Some(never(limit, *period_us))),
            Question::Ask(check) => match seen.next() {
                Some(Seen::Decided { decision, source }) => {
                    let standing = if passes { decision.after } else { decision.before };
                    // What is decided here is this gateway's share, and told as that.
                    let gateways = if *source == Source::Local { settled.gateways } else { 1 };
                    let told = told(limit, &failure::divide(check, gateways), standing, decision);
                    (verdict(decision.admitted, limit), *source, Some(told))
                }
                Some(Seen::Uncounted) => {
                    limit.limit.metrics.uncounted();
                    (Verdict::Allowed, Source::Local, None)
                }
                Some(Seen::Closed) => {
                    (least, ruling.decided_by, ruling.verdict) = ((0, 0), Some(index), None);
                    continue;
                }
                // The limit has said nothing.
                Some(Seen::Unasked) | None => continue,
            },
        };
        limit.limit.metrics.count(verdict, source);
        let told = told.filter(|_| !limit.limit.shadow);
        let weight = weight(verdict, told.as_ref());
        if weight < least {
            least = weight;
            (ruling.decided_by, ruling.verdict) = (Some(index), Some(verdict));
        }
        ruling.told.extend(told);
    }
    ruling
}

/// The less, the rather the log names this limit. One that counts in earnest goes before one that does not.
fn weight(verdict: Verdict, told: Option<&Told>) -> (u8, u64) {
    match (verdict, told) {
        (Verdict::Limited, _) => (0, 0),
        (Verdict::Allowed, Some(told)) => (1, told.remaining),
        (Verdict::ShadowLimited, _) => (2, 0),
        (Verdict::Allowed | Verdict::Delayed, _) => (3, 0),
        (Verdict::Exempt, _) => (4, 0),
        (Verdict::Skipped, _) => (5, 0),
    }
}

fn verdict(admitted: bool, limit: &RouteLimit) -> Verdict {
    match (admitted, limit.limit.shadow) {
        (true, _) => Verdict::Allowed,
        (false, false) => Verdict::Limited,
        (false, true) => Verdict::ShadowLimited,
    }
}

fn never(limit: &RouteLimit, period_us: u64) -> Told {
    let name = limit.told_as.clone();
    Told { name, capacity: 0, window_us: period_us, remaining: 0, reset_us: 0, refused: true, retry_after_us: None }
}

fn told(limit: &RouteLimit, check: &Check, standing: Standing, decision: &Decision) -> Told {
    Told {
        name: limit.told_as.clone(),
        capacity: check.algorithm.capacity(&check.quota),
        window_us: window_us(&check.quota, check.algorithm == Algorithm::TokenBucket),
        remaining: standing.remaining,
        reset_us: standing.reset_us,
        refused: !decision.admitted,
        retry_after_us: decision.retry_after_us.filter(|_| !decision.admitted),
    }
}
