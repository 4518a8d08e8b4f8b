//! What waits for a shard, and what travels together.
//!
//! Deadlines are in order: all checks have the same timeout, and they queue in the order they came.

use super::fault::Fault;
use super::script::{CHECKS_MAX, Told};
use crate::algorithm::Decision;
use crate::clock::Micros;
use crate::store::{Answer, Ask, Check, StoreError};
use smallvec::SmallVec;
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

    pub fn push(&mut self, waiting: Waiting) {
        self.0.push_back(waiting);
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

    /// Hands out the node's rows, one for each check of each job in their order.
    pub fn answer(self, mut rows: impl Iterator<Item = Told>) {
        for waiting in self.0 {
            let _ = waiting.answer.send(Ok(waiting.job.reply(&mut rows)));
        }
    }
}
