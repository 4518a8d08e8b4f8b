//! The decision: every limit of the request is asked, and it passes if each enforced one admits it; only then is any charged.

use super::failure::{self, Replies, Seen, Settled};
use super::hot::{Cache, Hot};
use super::rule::{Question, RouteLimit};
use super::{Allowance, OnFailure, Policy, Told, window_us};
use crate::algorithm::{Decision, Standing};
use crate::clock::{self, Micros};
use crate::identify::Facts;
use crate::store::memory::Memory;
use crate::store::{Check, Store};
use crate::telemetry::metrics::{self, Label, Seconds, Source, Verdict};
use crate::telemetry::top::Top;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
pub struct Ruling<'l> {
    pub outcome: Outcome,
    /// The limits that are shown to the client, in the order of the file.
    pub told: SmallVec<[Told<'l>; 4]>,
    /// What the log tells: the limit that refused, else the tightest that admitted, else one that did not count; by its
    /// index in the route's list.
    pub decided_by: Option<usize>,
    /// What that limit said; `None` where it was not asked, or could not be.
    pub verdict: Option<Verdict>,
    /// Whether a counter could not be reached, so that `on_failure` had a part in it.
    pub degraded: bool,
    /// When it was made.
    pub at: Instant,
    /// From the request's beginning to then.
    pub took: Duration,
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

/// A request before its limits.
struct Case<'l, 'f> {
    limits: &'l [RouteLimit],
    facts: &'f Facts<'f>,
    begun: Instant,
    /// The same by the process clock.
    now: Micros,
    questions: SmallVec<[Question; 4]>,
    /// What the store is asked: nothing, where a limit refuses outright; that costs the store nothing, and is told alone.
    checks: SmallVec<[Check; 4]>,
    refused_outright: bool,
}

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

    /// Decides all limits of a request that has `begun` just now, and says so in `ruling`, which began as a pass. What is
    /// charged for a request that is then refused goes back off its path.
    pub async fn decide<'l>(
        &self,
        limits: &'l [RouteLimit],
        facts: &Facts<'_>,
        begun: Instant,
        ruling: &mut Ruling<'l>,
    ) {
        match &*self.store {
            // Apart from the rest: what does not wait needs no room in the connection's task, and no copy into it.
            Store::Memory(memory) => self.decide_here(memory, Case::new(limits, facts, begun), ruling),
            Store::Redis { .. } => self.decide_there(Case::new(limits, facts, begun), ruling).await,
        }
    }

    fn decide_here<'l>(&self, memory: &Memory, mut case: Case<'l, '_>, ruling: &mut Ruling<'l>) {
        case.ask();
        if case.lacks_key(ruling) {
            return;
        }
        let mut settled = Settled::default();
        if !case.checks.is_empty() {
            memory.decide_each(&case.checks, case.now, |check, answer| settled.note(check, &answer));
        }
        self.rule(&case, &settled, ruling);
    }

    async fn decide_there<'l>(&self, mut case: Case<'l, '_>, ruling: &mut Ruling<'l>) {
        case.ask();
        if case.lacks_key(ruling) {
            return;
        }
        let (checks, modes) = (&case.checks, case.failure_modes());
        let settled = match &self.cache {
            _ if checks.is_empty() => Settled::default(),
            Some(cache) => cache.decide(checks, modes).await,
            None => {
                let answers = self.store.decide(checks).await;
                failure::settle(&self.store, checks, &Replies::of_store(answers), modes)
            }
        };
        self.rule(&case, &settled, ruling);
    }

    fn rule<'l>(&self, case: &Case<'l, '_>, settled: &Settled, ruling: &mut Ruling<'l>) {
        ruling.at = clock::now();
        ruling.took = ruling.at.duration_since(case.begun);
        self.durations[settled.source().index()].observe(ruling.took);
        case.tell(settled, &self.top, ruling);
    }
}

impl<'l> Ruling<'l> {
    /// Nothing is against it.
    #[must_use]
    pub fn pass(at: Instant) -> Self {
        let (outcome, told, took) = (Outcome::Pass, SmallVec::new(), Duration::ZERO);
        Self { outcome, told, decided_by: None, verdict: None, degraded: false, at, took }
    }
}

impl<'l, 'f> Case<'l, 'f> {
    fn new(limits: &'l [RouteLimit], facts: &'f Facts<'f>, begun: Instant) -> Self {
        let (questions, checks) = (SmallVec::new(), SmallVec::new());
        let now = clock::us_at(begun);
        Self { limits, facts, begun, now, questions, checks, refused_outright: false }
    }

    /// Asks each limit what it wants to know of the store. Apart from `new`, so that nothing of it is copied.
    fn ask(&mut self) {
        for limit in self.limits {
            let question = limit.limit.question(self.facts, |check| self.checks.push(check));
            self.refused_outright |= matches!(question, Question::Never { .. }) && !limit.limit.shadow;
            self.questions.push(question);
        }
        if self.refused_outright {
            self.checks.clear();
        }
    }

    fn lacks_key(&self, ruling: &mut Ruling<'l>) -> bool {
        let missing = self.questions.iter().position(|question| *question == Question::MissingKey);
        if let Some(index) = missing {
            ruling.outcome = Outcome::MissingKey(self.limits[index].limit.name.clone());
            ruling.decided_by = missing;
        }
        missing.is_some()
    }

    /// Each check's failure mode, in the order of the checks.
    fn failure_modes(&self) -> impl Iterator<Item = OnFailure> + Clone {
        let asked = self.questions.iter().zip(self.limits).filter(|(question, _)| **question == Question::Ask);
        asked.map(|(_, limit)| limit.limit.on_failure)
    }

    /// Counts a key that is always refused among those refused most. It is rare, so its digest is made a second time rather than kept by all.
    fn note_never(&self, limit: &RouteLimit, top: &Top) {
        let digest = limit.limit.keyer.digest(self.facts);
        if let Some(digest) = digest.filter(|_| !limit.limit.shadow) {
            top.count(digest, self.now, || limit.limit.named(digest, self.facts));
        }
    }

    /// Makes one ruling of what each limit said, and counts each limit's word, and in `top` the keys that were refused.
    fn tell(&self, settled: &Settled, top: &Top, ruling: &mut Ruling<'l>) {
        let passes = settled.passes && !self.refused_outright;
        ruling.degraded = settled.degraded;
        if let Some(retry_after) = settled.closed {
            ruling.outcome = Outcome::Closed { retry_after };
        } else if !passes {
            ruling.outcome = Outcome::Refused;
        }
        let mut seen = self.checks.iter().zip(&settled.seen);
        let mut least = (u8::MAX, u64::MAX);
        for (index, (question, limit)) in self.questions.iter().zip(self.limits).enumerate() {
            let (verdict, source, told) = match question {
                Question::Exempt => (Verdict::Exempt, Source::Local, None),
                Question::Skipped | Question::MissingKey => (Verdict::Skipped, Source::Local, None),
                Question::Unlimited => (Verdict::Allowed, Source::Local, None),
                Question::Never { period_us } => {
                    self.note_never(limit, top);
                    (verdict(false, limit), Source::Local, Some(never(limit, *period_us)))
                }
                Question::Ask => match seen.next() {
                    Some((check, Seen::Decided { decision, source })) => {
                        let standing = if passes { decision.after } else { decision.before };
                        // What is decided here is this gateway's share, and told as that.
                        let gateways = if *source == Source::Local { settled.gateways } else { 1 };
                        if check.enforced && !decision.admitted && ruling.outcome == Outcome::Refused {
                            top.count(check.key.0, self.now, || limit.limit.named(check.key.0, self.facts));
                        }
                        let told = if gateways == 1 {
                            told(limit, check, standing, decision)
                        } else {
                            told(limit, &failure::divide(check, gateways), standing, decision)
                        };
                        (verdict(decision.admitted, limit), *source, Some(told))
                    }
                    Some((_, Seen::Uncounted)) => {
                        if ruling.outcome == Outcome::Pass {
                            limit.limit.metrics.uncounted();
                        }
                        (Verdict::Allowed, Source::Local, None)
                    }
                    Some((_, Seen::Closed)) => {
                        (least, ruling.decided_by, ruling.verdict) = ((0, 0), Some(index), None);
                        continue;
                    }
                    // The limit has said nothing.
                    Some((_, Seen::Unasked)) | None => continue,
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
    }
}

/// The less, the rather the log names this limit. One that counts in earnest goes before one that does not.
fn weight(verdict: Verdict, told: Option<&Told<'_>>) -> (u8, u64) {
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

fn never(limit: &RouteLimit, period_us: u64) -> Told<'_> {
    let (name, policy) = (&limit.told_as, Policy::Window(period_us));
    Told { name, capacity: 0, policy, remaining: 0, reset_us: 0, refused: true, retry_after_us: None }
}

fn told<'l>(limit: &'l RouteLimit, check: &Check, standing: Standing, decision: &Decision) -> Told<'l> {
    let policy = if limit.limit.allowance == Allowance::Limited(check.quota) {
        Policy::Written(&limit.policy)
    } else {
        Policy::Window(window_us(&check.quota, check.algorithm))
    };
    Told {
        name: &limit.told_as,
        capacity: check.algorithm.capacity(&check.quota),
        policy,
        remaining: standing.remaining,
        reset_us: standing.reset_us,
        refused: !decision.admitted,
        retry_after_us: decision.retry_after_us.filter(|_| !decision.admitted),
    }
}
