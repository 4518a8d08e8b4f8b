//! What waits for a shard, and what travels together.
//!
//! Deadlines are in order: all checks have the same timeout, and they queue in the order they came.

use super::fault::Fault;
use super::script::{CHECKS_MAX, Told};
use crate::algorithm::Decision;
use crate::clock::Micros;
use crate::store::{Answer, Ask, Check, CounterKey, StoreError};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::oneshot;

/// The checks of one request on one shard: all or nothing.
pub(super) type Asks = SmallVec<[Ask; 4]>;

/// One group of a call.
#[allow(clippy::large_enum_variant, reason = "nearly every job is of the large kind")]
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Job {
    Decide(Asks),
    GiveBack {
        check: Check,
        charged_at: Micros,
    },
    ChargeUpTo(Check),
    /// Looks and charges nothing.
    Inspect(Check),
}

impl Job {
    /// Its one key, where script calls may touch no more than one.
    pub fn key(&self) -> Option<CounterKey> {
        match self {
            Self::Decide(asks) => asks.first().map(|ask| ask.check.key),
            Self::GiveBack { check, .. } | Self::ChargeUpTo(check) | Self::Inspect(check) => Some(check.key),
        }
    }

    fn checks(&self) -> usize {
        match self {
            Self::Decide(asks) => asks.len(),
            Self::GiveBack { .. } | Self::ChargeUpTo(_) | Self::Inspect(_) => 1,
        }
    }

    /// `rows` holds a row for every check of the call: `script` has counted them.
    fn reply(&self, rows: &mut impl Iterator<Item = Told>) -> Reply {
        let mut mine = rows.take(self.checks());
        match self {
            Self::Decide(_) => Reply::Decided(mine.map(|told| told.answer).collect()),
            Self::GiveBack { .. } => {
                mine.next();
                Reply::GivenBack
            }
            Self::ChargeUpTo(_) => Reply::Charged(mine.next().map(|told| told.charged).unwrap_or_default()),
            Self::Inspect(_) => mine.next().map_or(Reply::GivenBack, |told| Reply::Inspected(told.answer.decision)),
        }
    }
}

/// What a node replied to one job.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every reply is of the large kind; a box would cost it an allocation"
)]
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Reply {
    Decided(SmallVec<[Answer; 4]>),
    GivenBack,
    Charged(u64),
    Inspected(Decision),
}

/// A job and who waits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub job: Job,
    pub deadline: Instant,
    pub answer: oneshot::Sender<Result<Reply, StoreError>>,
    /// How often it was refused and handed on.
    pub hops: u8,
    /// A cluster's node sent it, this once, to one that does not hold the key's slot yet.
    pub asking: bool,
}

/// Jobs in the order of their deadlines.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<Waiting>);

impl Queue {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Behind all whose deadline is no later. (At the end, unless another lane has handed it on.)
    pub fn push(&mut self, waiting: Waiting) {
        if self.0.back().is_none_or(|last| last.deadline <= waiting.deadline) {
            self.0.push_back(waiting);
        } else {
            let at = self.0.partition_point(|other| other.deadline <= waiting.deadline);
            self.0.insert(at, waiting);
        }
    }

    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.0.iter().map(|waiting| &waiting.job)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|waiting| waiting.deadline)
    }

    /// Takes out the first jobs, at most `max` and as many checks as a call may hold; those whose client has gone are dropped.
    pub fn take(&mut self, max: usize) -> Self {
        let mut taken = VecDeque::with_capacity(max.min(self.0.len()));
        let mut checks = 0;
        while taken.len() < max
            && let Some(waiting) = self.0.pop_front_if(|next| checks == 0 || checks + next.job.checks() <= CHECKS_MAX)
        {
            // What is given back is owed to others, whether or not somebody waits for it to be done.
            if !waiting.answer.is_closed() || matches!(waiting.job, Job::GiveBack { .. }) {
                checks += waiting.job.checks();
                taken.push_back(waiting);
            }
        }
        Self(taken)
    }

    /// Answers those whose deadline has passed with `fault`; says whether there were any.
    pub fn expire(&mut self, now: Instant, fault: &Fault, shard: usize) -> bool {
        let before = self.0.len();
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some(waiting) = self.0.pop_front() {
                let _ = waiting.answer.send(Err(fault.on(shard)));
            }
        }
        self.0.len() < before
    }

    pub fn fail(&mut self, error: StoreError) {
        for waiting in self.0.drain(..) {
            let _ = waiting.answer.send(Err(error));
        }
    }

    /// Hands out the node's rows, one for each check of each job in their order; the first are those of jobs that have expired.
    pub fn answer(self, rows: Vec<Told>) {
        let waited_for: usize = self.jobs().map(Job::checks).sum();
        let expired = rows.len().saturating_sub(waited_for);
        let mut rows = rows.into_iter().skip(expired);
        for waiting in self.0 {
            let _ = waiting.answer.send(Ok(waiting.job.reply(&mut rows)));
        }
    }

    pub fn into_iter(self) -> impl Iterator<Item = Waiting> {
        self.0.into_iter()
    }
}

/// What leaves in one write: a script call for each part.
#[derive(Debug)]
pub(super) struct Batch {
    pub parts: SmallVec<[Part; 1]>,
}

/// The jobs of one script call.
#[derive(Debug)]
pub(super) struct Part {
    pub jobs: Queue,
    pub asking: bool,
}

impl Batch {
    /// All jobs in one call.
    pub fn whole(jobs: Queue) -> Self {
        Self { parts: smallvec![Part { jobs, asking: false }] }
    }

    /// A call for each key.
    pub fn by_key(jobs: Queue) -> Self {
        let mut parts: SmallVec<[Part; 1]> = SmallVec::new();
        for waiting in jobs.into_iter() {
            let is_alike = |part: &&mut Part| {
                part.asking == waiting.asking
                    && part.jobs.0.front().is_some_and(|first| first.job.key() == waiting.job.key())
            };
            match parts.iter_mut().find(is_alike) {
                Some(part) => part.jobs.push(waiting),
                None => parts.push(Part { asking: waiting.asking, jobs: Queue([waiting].into()) }),
            }
        }
        Self { parts }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.parts.iter().filter_map(|part| part.jobs.next_deadline()).min()
    }

    /// As `Queue::expire`.
    pub fn expire(&mut self, now: Instant, fault: &Fault, shard: usize) -> bool {
        self.parts.iter_mut().fold(false, |any, part| part.jobs.expire(now, fault, shard) | any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Quota, Standing};
    use crate::clock;
    use std::time::Duration;

    type Outcome = oneshot::Receiver<Result<Reply, StoreError>>;

    fn look(key: u128, deadline: Instant) -> (Waiting, Outcome) {
        let quota = Quota { units: 9, period_us: 1_000_000, burst: 9 };
        let check = Check { key: CounterKey(key), algorithm: Algorithm::FixedWindow, quota, cost: 1, enforced: true };
        let (answer, outcome) = oneshot::channel();
        (Waiting { job: Job::Inspect(check), deadline, answer, hops: 0, asking: false }, outcome)
    }

    fn row(remaining: u64) -> Told {
        let before = Standing { remaining, reset_us: 0 };
        let decision = Decision { admitted: true, before, after: before, retry_after_us: None };
        Told { answer: Answer::new(decision, false, 0), charged: 0 }
    }

    fn seen(outcome: &mut Outcome) -> u64 {
        match outcome.try_recv().unwrap().unwrap() {
            Reply::Inspected(decision) => decision.before.remaining,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_is_still_in_time_gets_their_own_row_though_others_of_the_call_are_late() {
        let now = clock::now();
        let mut queue = Queue::default();
        let (early, mut early_outcome) = look(1, now);
        let (late, mut late_outcome) = look(2, now + Duration::from_secs(9));
        queue.push(early);
        queue.push(late);
        assert!(queue.expire(now, &Fault::late(), 0));
        queue.answer(vec![row(1), row(2)]);
        assert!(early_outcome.try_recv().unwrap().is_err());
        assert_eq!(seen(&mut late_outcome), 2);
    }

    #[test]
    fn what_is_handed_on_queues_by_its_deadline() {
        let now = clock::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut queue = Queue::default();
        for seconds in [3, 5, 4, 1, 5] {
            queue.push(look(u128::from(seconds), after(seconds)).0);
        }
        let keys: Vec<_> = queue.jobs().filter_map(Job::key).map(|key| key.0).collect();
        assert_eq!(keys, [1, 3, 4, 5, 5]);
    }

    #[test]
    fn jobs_of_one_key_share_a_call_and_those_sent_by_another_node_have_their_own() {
        let now = clock::now();
        let mut queue = Queue::default();
        for (key, asking) in [(1, false), (2, false), (1, false), (1, true)] {
            queue.push(Waiting { asking, ..look(key, now).0 });
        }
        let batch = Batch::by_key(queue);
        let parts: Vec<_> = batch.parts.iter().map(|part| (part.jobs.len(), part.asking)).collect();
        assert_eq!(parts, [(2, false), (1, false), (1, true)]);
    }
}
