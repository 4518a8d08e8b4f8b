//! What a request's limits say when some of their counters cannot be reached: `open`, `closed` or `local`, by policy.
//!
//! `local` decides in this process with the limit divided by the number of gateways alive, from what the shard last told of
//! the key. What it admits is owed to the shard and charged there when it returns, unless the shard may have charged it already.

use super::OnFailure;
use super::hot::{Hot, LastTold};
use crate::algorithm::Decision;
use crate::clock;
use crate::store::memory::Memory;
use crate::store::{Answer, Answers, Check, Store, StoreError};
use crate::telemetry::metrics::{self, Source};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What one check came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Decided {
        decision: Decision,
        source: Source,
    },
    /// Let through uncounted.
    Uncounted,
    /// Not let through, for want of a counter.
    Closed,
    /// Another limit's remembered refusal was enough.
    Unasked,
}

#[derive(Debug)]
pub struct Settled {
    /// In the order of the checks.
    pub seen: SmallVec<[Seen; 4]>,
    /// Every enforced limit admits the request.
    pub passes: bool,
    /// The request is refused because a counter is away; when to try again.
    pub closed: Option<Duration>,
    pub degraded: bool,
    /// Among how many gateways the limits that were decided here were divided.
    pub gateways: u64,
}

impl Default for Settled {
    /// Nothing to ask: nothing against it.
    fn default() -> Self {
        Self { seen: SmallVec::new(), passes: true, closed: None, degraded: false, gateways: 1 }
    }
}

impl Settled {
    /// Adds what a counter in this process says; those are never away, and charge all or none.
    pub(super) fn note(&mut self, check: &Check, answer: &Answer) {
        self.passes &= answer.decision.admitted || !check.enforced;
        self.seen.push(Seen::Decided { decision: answer.decision, source: Source::Store });
    }

    /// Who answered the request: the farthest that had to be asked.
    pub(super) fn source(&self) -> Source {
        let has =
            |source| self.seen.iter().any(|seen| matches!(seen, Seen::Decided { source: by, .. } if *by == source));
        if self.degraded {
            return Source::Local;
        }
        let cached = [Source::Store, Source::DenialCache, Source::Lease].into_iter().find(|source| has(*source));
        cached.unwrap_or(Source::Store)
    }
}

/// The answers to a request's checks, and whom each is from.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub answers: Answers,
    pub sources: SmallVec<[Source; 4]>,
}

impl Replies {
    pub fn of_store(answers: Answers) -> Self {
        let sources = SmallVec::from_elem(Source::Store, answers.len());
        Self { answers, sources }
    }
}

/// Makes one of the answers, and settles what the store could not answer. What the store charged for a request that does
/// not pass goes back to it.
pub(super) fn settle(
    store: &Rc<Store>,
    checks: &[Check],
    replies: &Replies,
    modes: impl Iterator<Item = OnFailure>,
) -> Settled {
    let settled = merge(store, checks, replies, modes);
    if !settled.passes {
        give_back(store, None, checks, replies);
    }
    settled
}

/// The same behind a cache, which remembers refusals, and what the shards last told.
pub(super) fn settle_cached(
    store: &Rc<Store>,
    hot: &Arc<Hot>,
    checks: &[Check],
    replies: &Replies,
    modes: impl Iterator<Item = OnFailure> + Clone,
) -> Settled {
    let asked = checks.iter().zip(&replies.answers).zip(modes.clone());
    let decided_here = asked.filter(|((_, answer), mode)| answer.is_err() && *mode == OnFailure::Local);
    decided_here.for_each(|((check, _), _)| hand_over(store, hot, check));
    let settled = merge(store, checks, replies, modes);
    if !settled.passes {
        give_back(store, Some(hot), checks, replies);
    }
    settled
}

fn merge(store: &Store, checks: &[Check], replies: &Replies, modes: impl Iterator<Item = OnFailure>) -> Settled {
    if replies.answers.iter().all(Result::is_ok) {
        let passes = admits_all(checks, &replies.answers);
        let decided =
            |(answer, source): (&Answer, &Source)| Seen::Decided { decision: answer.decision, source: *source };
        let seen = replies.answers.iter().flatten().zip(&replies.sources).map(decided).collect();
        return Settled { seen, passes, ..Settled::default() };
    }
    let modes: SmallVec<[OnFailure; 4]> = modes.collect();
    partly_answered(store, checks, replies, &modes)
}

fn partly_answered(store: &Store, checks: &[Check], replies: &Replies, modes: &[OnFailure]) -> Settled {
    let answers = &replies.answers;
    let mut passes = admits_all(checks, answers);
    let failed_closed =
        (0..checks.len()).any(|i| answers[i].is_err() && modes[i] == OnFailure::Closed && checks[i].enforced);
    let local = local_answers(store, checks, answers, modes, passes && !failed_closed);
    passes = passes
        && !failed_closed
        && local.iter().flatten().all(|(check, answer)| !check.enforced || answer.decision.admitted);
    if passes {
        owe(store, checks, answers, &local);
    } else {
        local.iter().flatten().for_each(|(check, answer)| take_back(store, check, answer));
    }
    let seen = (0..checks.len()).map(|i| match (&answers[i], &local[i], modes[i]) {
        (Ok(answer), _, _) => Seen::Decided { decision: answer.decision, source: replies.sources[i] },
        (Err(_), Some((_, answer)), _) => Seen::Decided { decision: answer.decision, source: Source::Local },
        (Err(_), None, OnFailure::Closed) if checks[i].enforced => Seen::Closed,
        (Err(_), None, _) => Seen::Uncounted,
    });
    let closed = failed_closed.then(|| store.retry_after());
    Settled { seen: seen.collect(), passes, closed, degraded: true, gateways: store.gateways() }
}

fn admits_all(checks: &[Check], answers: &Answers) -> bool {
    let refuses = |(check, answer): (&Check, &Result<Answer, StoreError>)| {
        check.enforced && answer.is_ok_and(|answer| !answer.decision.admitted)
    };
    !checks.iter().zip(answers).any(refuses)
}

/// The divided check and its answer, for each that is decided here.
type Local = SmallVec<[Option<(Check, Answer)>; 4]>;

fn local_answers(store: &Store, checks: &[Check], answers: &Answers, modes: &[OnFailure], charge: bool) -> Local {
    let decided_here = |i: &usize| answers[*i].is_err() && modes[*i] == OnFailure::Local;
    let gateways = store.gateways();
    let divided: SmallVec<[Check; 4]> =
        (0..checks.len()).filter(decided_here).map(|i| divide(&checks[i], gateways)).collect();
    let (memory, now) = (store.local(), clock::now_us());
    let answered = if charge {
        memory.decide(&divided, now)
    } else {
        let look =
            |check: &Check| Answer::new(memory.inspect(check.key, check.algorithm, &check.quota, now), false, now);
        divided.iter().map(look).collect()
    };
    let mut answered = divided.into_iter().zip(answered);
    (0..checks.len()).map(|i| if decided_here(&i) { answered.next() } else { None }).collect()
}

/// The local counter of a key whose shard gave no answer starts from what that last told.
fn hand_over(store: &Store, hot: &Hot, check: &Check) {
    if let Some(told) = hot.hand_over(check.key) {
        start_from(store.local(), check, &divide(check, store.gateways()), told);
    }
}

/// Of this gateway's share as much is used as was of the limit, at the least: what an earlier failure has used of it counts in
/// both. As charged when it was told, so that it comes back no later than it would have in the store.
fn start_from(memory: &Memory, check: &Check, share: &Check, told: LastTold) {
    let whole = |check: &Check| u128::from(check.algorithm.capacity(&check.quota));
    let to_be_left = u128::from(told.remaining) * whole(share) / whole(check);
    let left = memory.inspect(share.key, share.algorithm, &share.quota, told.at).before.remaining;
    let cost = u64::try_from(u128::from(left).saturating_sub(to_be_left)).unwrap_or(left);
    if cost > 0 {
        memory.charge_up_to(&Check { cost, ..*share }, told.at);
    }
}

/// This gateway's share of a limit: at least one unit, and room for one request.
pub(super) fn divide(check: &Check, gateways: u64) -> Check {
    let mut share = *check;
    share.quota.units = (check.quota.units / gateways).max(1);
    share.quota.burst = (check.quota.burst / gateways).max(1);
    share.cost = check.cost.min(check.algorithm.capacity(&share.quota));
    share
}

/// Owed is the check as it was asked, not this gateway's share of it: the shard holds the whole limit.
fn owe(store: &Store, checks: &[Check], answers: &Answers, local: &Local) {
    for ((check, answer), decided) in checks.iter().zip(answers).zip(local) {
        if let (Err(error), Some((_, answer))) = (answer, decided)
            && answer.charged
            && !error.maybe_applied
        {
            store.owe(check);
        }
    }
}

fn take_back(store: &Store, check: &Check, answer: &Answer) {
    if answer.charged {
        store.local().give_back(check, answer.at_us, clock::now_us());
    }
}

/// What the store charged, off the request's path: nobody is admitted wrongly meanwhile, only perhaps refused. What was spent
/// from leases is their owner's to put back.
pub(super) fn give_back(store: &Rc<Store>, hot: Option<&Arc<Hot>>, checks: &[Check], replies: &Replies) {
    for ((check, answer), source) in checks.iter().zip(&replies.answers).zip(&replies.sources) {
        if let Ok(answer) = answer
            && answer.charged
            && *source == Source::Store
        {
            let (store, hot, check, at_us) = (store.clone(), hot.cloned(), *check, answer.at_us);
            tokio::task::spawn_local(async move {
                if store.give_back(&check, at_us).await.is_err() {
                    metrics::lease_units_lost(check.cost);
                }
                // Who was refused for want of it need not be any longer.
                hot.inspect(|hot| hot.freed(check.key, clock::now_us()));
            });
        }
    }
}
