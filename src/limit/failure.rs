//! What a request's limits say when some of their counters cannot be reached: `open`, `closed` or `local`, by policy.
//!
//! `local` decides in this process with the limit divided by the number of gateways alive. What it admits is owed to the
//! shard and charged there when it returns, unless the shard may have charged it already.

use super::OnFailure;
use crate::algorithm::Decision;
use crate::clock;
use crate::store::{Answer, Answers, Check, Store, StoreError};
use crate::telemetry::metrics::Source;
use smallvec::SmallVec;
use std::rc::Rc;
use std::time::Duration;

/// What one check came to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Decided {
        decision: Decision,
        source: Source,
    },
    /// Let through uncounted.
    Uncounted,
    /// Not let through, for want of a counter.
    Closed,
}

#[derive(Debug)]
pub(super) struct Settled {
    /// In the order of the checks.
    pub seen: SmallVec<[Seen; 4]>,
    /// Every enforced limit admits the request.
    pub passes: bool,
    /// The request is refused because a counter is away; when to try again.
    pub closed: Option<Duration>,
    pub degraded: bool,
}

impl Default for Settled {
    /// Nothing to ask: nothing against it.
    fn default() -> Self {
        Self { seen: SmallVec::new(), passes: true, closed: None, degraded: false }
    }
}

/// Asks the store, and settles what it could not answer.
pub(super) async fn settle(store: &Rc<Store>, checks: &[Check], modes: impl Iterator<Item = OnFailure>) -> Settled {
    let answers = store.decide(checks).await;
    if answers.iter().all(Result::is_ok) {
        return all_answered(store, checks, &answers);
    }
    let modes: SmallVec<[OnFailure; 4]> = modes.collect();
    partly_answered(store, checks, &answers, &modes)
}

fn all_answered(store: &Rc<Store>, checks: &[Check], answers: &Answers) -> Settled {
    let passes = admits_all(checks, answers);
    if !passes {
        give_back(store, checks, answers);
    }
    let seen =
        answers.iter().flatten().map(|answer| Seen::Decided { decision: answer.decision, source: Source::Store });
    Settled { seen: seen.collect(), passes, closed: None, degraded: false }
}

fn partly_answered(store: &Rc<Store>, checks: &[Check], answers: &Answers, modes: &[OnFailure]) -> Settled {
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
        give_back(store, checks, answers);
        local.iter().flatten().for_each(|(check, answer)| take_back(store, check, answer));
    }
    let seen = (0..checks.len()).map(|i| match (&answers[i], &local[i], modes[i]) {
        (Ok(answer), _, _) => Seen::Decided { decision: answer.decision, source: Source::Store },
        (Err(_), Some((_, answer)), _) => Seen::Decided { decision: answer.decision, source: Source::Local },
        (Err(_), None, OnFailure::Closed) if checks[i].enforced => Seen::Closed,
        (Err(_), None, _) => Seen::Uncounted,
    });
    Settled { seen: seen.collect(), passes, closed: failed_closed.then(|| store.retry_after()), degraded: true }
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
    let decided_here = |i: usize| answers[i].is_err() && modes[i] == OnFailure::Local;
    let divided: SmallVec<[Check; 4]> =
        (0..checks.len()).filter(|i| decided_here(*i)).map(|i| divide(&checks[i], store.gateways())).collect();
    let (memory, now) = (store.local(), clock::now_us());
    let answered = if charge {
        memory.decide(&divided, now)
    } else {
        let look = |check: &Check| {
            Answer::new(memory.inspect(check.key, check.algorithm, &check.quota, now), false, now)
        };
        divided.iter().map(look).collect()
    };
    let mut answered = divided.into_iter().zip(answered);
    (0..checks.len()).map(|i| if decided_here(i) { answered.next() } else { None }).collect()
}

/// This gateway's share of a limit: at least one unit, and room for one request.
fn divide(check: &Check, gateways: u64) -> Check {
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
            store.owe(error.shard, check);
        }
    }
}

fn take_back(store: &Store, check: &Check, answer: &Answer) {
    if answer.charged {
        store.local().give_back(check, answer.at_us, clock::now_us());
    }
}

/// Off the request's path: nobody is admitted wrongly meanwhile, only perhaps refused.
fn give_back(store: &Rc<Store>, checks: &[Check], answers: &Answers) {
    for (check, answer) in checks.iter().zip(answers) {
        if let Ok(answer) = answer
            && answer.charged
        {
            let (store, check, at_us) = (store.clone(), *check, answer.at_us);
            tokio::task::spawn_local(async move {
                let _ = store.give_back(&check, at_us).await;
            });
        }
    }
}
