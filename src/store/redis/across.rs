//! One request's checks over several shards, or over several slots of a cluster: all asked at the same time.
//!
//! A request that is abandoned half way (its client has gone) may have been charged on one shard and refused on another,
//! and nobody would be left to give that back. So an abandoned question gives back all it was granted, off the path.

use super::batch::{Asks, Job, Reply};
use super::lane::{Lane, Outcome};
use super::routes::Lanes;
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

/// The checks that one script call decides: all or nothing.
#[derive(Debug)]
struct Group {
    home: usize,
    lane: Rc<Lane>,
    asks: Asks,
    /// The place of each among the request's checks.
    places: SmallVec<[usize; 4]>,
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
    pub fn ask(lanes: &Lanes, asks: &[Ask], homes: &[usize]) -> Self {
        let mut across = Self::default();
        for (place, home) in homes.iter().enumerate() {
            let alike = |earlier: &usize| !lanes.map.parts_keys && earlier == home;
            if homes[..place].iter().any(alike) {
                continue;
            }
            let places: SmallVec<[usize; 4]> =
                (place..homes.len()).filter(|other| *other == place || alike(&homes[*other])).collect();
            let asks: Asks = places.iter().map(|place| asks[*place]).collect();
            let lane = lanes.list[*home].clone();
            let asked = Asked::Pending(lane.ask(Job::Decide(asks.clone())));
            across.groups.push(Group { home: *home, lane, asks, places, asked });
        }
        across
    }

    /// The answers in the order of the checks.
    pub async fn answers(mut self) -> Answers {
        for group in &mut self.groups {
            group.wait().await;
        }
        self.is_answered = true;
        let checks: usize = self.groups.iter().map(|group| group.places.len()).sum();
        let answer = |place: usize| {
            let of_group = |group: &Group| group.answer(group.places.iter().position(|other| *other == place)?);
            self.groups.iter().find_map(of_group)
        };
        (0..checks).filter_map(answer).collect()
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
