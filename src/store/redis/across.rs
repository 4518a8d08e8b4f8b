//! One request's checks over several shards: all asked at the same time.
//!
//! A request that is abandoned half way (its client has gone) may have been charged on one shard and refused on another,
//! and nobody would be left to give that back. So an abandoned question gives back all it was granted, off the path.

use super::batch::{Asks, Job, Reply};
use super::lane::{Lane, Outcome};
use crate::store::{Answer, Answers, Ask, Check, ErrorKind, StoreError};
use crate::telemetry::metrics;
use smallvec::SmallVec;
use std::rc::Rc;
use tokio::sync::oneshot;

#[derive(Debug, Default)]
pub(super) struct Across {
    groups: SmallVec<[Group; 4]>,
    is_answered: bool,
}

/// The checks on one shard.
#[derive(Debug)]
struct Group {
    home: usize,
    lane: Rc<Lane>,
    asks: Asks,
    asked: Asked,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "short-lived, and a few for a request")]
enum Asked {
    Pending(oneshot::Receiver<Outcome>),
    Done(Outcome),
}

impl Across {
    /// Asks every shard; `homes` names the shard of each check.
    pub fn ask(lanes: &[Rc<Lane>], asks: &[Ask], homes: &[usize]) -> Self {
        let mut across = Self::default();
        for (at, home) in homes.iter().enumerate() {
            if !homes[..at].contains(home) {
                let asks: Asks = asks.iter().zip(homes).filter(|(_, at)| *at == home).map(|(ask, _)| *ask).collect();
                let lane = lanes[*home].clone();
                let asked = Asked::Pending(lane.ask(Job::Decide(asks.clone())));
                across.groups.push(Group { home: *home, lane, asks, asked });
            }
        }
        across
    }

    /// The answers in the order of the checks.
    pub async fn answers(mut self, homes: &[usize]) -> Answers {
        for group in &mut self.groups {
            group.wait().await;
        }
        self.is_answered = true;
        let answer = |(at, home): (usize, &usize)| {
            let nth = homes[..at].iter().filter(|earlier| *earlier == home).count();
            self.groups.iter().find(|group| group.home == *home)?.answer(nth)
        };
        homes.iter().enumerate().filter_map(answer).collect()
    }
}

impl Group {
    async fn wait(&mut self) {
        if let Asked::Pending(receiver) = &mut self.asked {
            // The lane answers every job; only a runtime that is shutting down drops one.
            let dropped = StoreError { kind: ErrorKind::Other, shard: self.home, maybe_applied: true };
            self.asked = Asked::Done(receiver.await.unwrap_or(Err(dropped)));
        }
    }

    fn answer(&self, nth: usize) -> Option<Result<Answer, StoreError>> {
        match &self.asked {
            Asked::Done(Ok(Reply::Decided(answers))) => answers.get(nth).copied().map(Ok),
            Asked::Done(Err(error)) => Some(Err(*error)),
            Asked::Done(Ok(_)) | Asked::Pending(_) => None,
        }
    }

    async fn give_back(&self) {
        let mut asked: SmallVec<[_; 4]> = SmallVec::new();
        for (nth, ask) in self.asks.iter().enumerate() {
            if let Some(Ok(answer)) = self.answer(nth)
                && answer.charged
            {
                let check = Check { cost: ask.check.cost + answer.leased, ..ask.check };
                asked.push((check.cost, self.lane.ask(Job::GiveBack { check, charged_at: answer.at_us })));
            }
        }
        for (units, answer) in asked {
            if !matches!(answer.await, Ok(Ok(_))) {
                metrics::lease_units_lost(units);
            }
        }
    }
}

impl Drop for Across {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and so are its connections.
        if self.is_answered || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        for mut group in std::mem::take(&mut self.groups) {
            tokio::task::spawn_local(async move {
                group.wait().await;
                group.give_back().await;
            });
        }
    }
}
