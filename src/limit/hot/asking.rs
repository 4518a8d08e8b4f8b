//! One core's way through the cache to the store: asks what the cache cannot answer, and waits where another asks already.

use super::Hot;
use super::attempt::{Attempt, Patience, Word};
use super::flight::{Flight, Flown};
use crate::clock;
use crate::limit::OnFailure;
use crate::limit::failure::{self, Replies, Settled};
use crate::store::{Answer, Check, ErrorKind, Returned, Store, StoreError};
use crate::telemetry::metrics::Source;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How often a refusal is tried again because this gateway came to hold units of the key meanwhile; each time somebody else
/// of this gateway was admitted.
const RETRIES_MAX: u32 = 8;

/// A core's share in the gateway's cache.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) hot: Arc<Hot>,
    pub(super) store: Rc<Store>,
}

impl Cache {
    #[must_use]
    pub fn new(hot: Arc<Hot>, store: Rc<Store>) -> Self {
        Self { hot, store }
    }

    /// Decides all checks of a request together, here if it can.
    pub(in crate::limit) async fn decide(
        &self,
        checks: &[Check],
        modes: impl Iterator<Item = OnFailure> + Clone,
    ) -> Settled {
        if self.hot.is_closed() {
            let answers = self.store.decide(checks).await;
            return failure::settle(&self.store, checks, &Replies::of_store(answers), modes);
        }
        match self.hot.attempt(checks, &Patience::default(), clock::now_us()) {
            Attempt::Answered(settled) => settled,
            // In a box: its room would be part of every connection's task, and it waits for the store anyway.
            missing => Box::pin(self.decide_on(missing, checks, modes)).await,
        }
    }

    async fn decide_on(
        &self,
        first: Attempt,
        checks: &[Check],
        modes: impl Iterator<Item = OnFailure> + Clone,
    ) -> Settled {
        let (mut patience, mut retries, mut attempt) = (Patience::default(), 0, first);
        // Counted as waiting until the next attempt has been made: that one may ask for all who wait.
        let mut waited: Option<Waited<'_>> = None;
        loop {
            match attempt {
                Attempt::Answered(settled) => return settled,
                Attempt::Wait { at, landed } => {
                    waited = Some(Waited { hot: &self.hot, check: &checks[at] });
                    patience.failures.resize(checks.len(), None);
                    patience.failures[at] = self.landed(landed, &checks[at]).await;
                    (patience.waits, patience.last) = (patience.waits + 1, Some(checks[at].key));
                }
                Attempt::Ask(words) => {
                    drop(waited.take());
                    let settled = self.ask(checks, &words, modes.clone(), retries < RETRIES_MAX).await;
                    if let Some(settled) = settled {
                        return settled;
                    }
                    (patience.waits, patience.last, retries) = (0, None, retries + 1);
                }
            }
            attempt = self.hot.attempt(checks, &patience, clock::now_us());
        }
    }

    /// Waits for another request's question; nothing was sent for this one, so whatever failed, it was not applied.
    async fn landed(&self, landed: oneshot::Receiver<super::Landed>, check: &Check) -> Option<StoreError> {
        match timeout(self.store.timeout(), landed).await {
            Ok(Ok(error)) => error.map(|error| StoreError { maybe_applied: false, ..error }),
            Ok(Err(_)) => None,
            Err(_) => {
                let shard = self.store.shard_of(check.key);
                Some(StoreError { kind: ErrorKind::Timeout, shard, maybe_applied: false })
            }
        }
    }

    /// Asks what is missing. `None`: try again, a refusal no longer holds.
    async fn ask(
        &self,
        checks: &[Check],
        words: &[Word],
        modes: impl Iterator<Item = OnFailure> + Clone,
        may_retry: bool,
    ) -> Option<Settled> {
        let mut spent = Spent { cache: self, checks, words, is_kept: false };
        let leaving = |(check, word): (&Check, &Word)| {
            if let Word::Ask(leaving) = word { Some((*check, *leaving)) } else { None }
        };
        let flight: Flight = checks.iter().zip(words).filter_map(leaving).collect();
        let flown = self.fly(flight).await;
        let replies = Replies::merge(words, &flown);
        if may_retry && refused_in_vain(checks, words, &flown) {
            failure::give_back(&self.store, Some(&self.hot), checks, &replies);
            return None;
        }
        let settled = failure::settle_cached(&self.store, &self.hot, checks, &replies, modes);
        spent.is_kept = settled.passes;
        Some(settled)
    }
}

/// Whether an enforced limit refused what this gateway holds units for by now.
fn refused_in_vain(checks: &[Check], words: &[Word], flown: &Flown) -> bool {
    let asked = checks.iter().zip(words).filter(|(_, word)| matches!(word, Word::Ask(_)));
    asked.zip(flown).any(|((check, _), flown)| check.enforced && flown.1.is_stale)
}

/// A request among those who wait for a key.
struct Waited<'a> {
    hot: &'a Hot,
    check: &'a Check,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.hot.waited(self.check);
    }
}

/// What a request spent from leases before it is known to pass.
struct Spent<'a> {
    cache: &'a Cache,
    checks: &'a [Check],
    words: &'a [Word],
    is_kept: bool,
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        for (check, word) in self.checks.iter().zip(self.words) {
            if let Word::Spent { charged_at, .. } = word
                && !self.cache.hot.unspend(check, *charged_at)
                && tokio::runtime::Handle::try_current().is_ok()
            {
                self.cache.return_later(check, Returned { units: check.cost, charged_at: *charged_at });
            }
        }
    }
}

impl Replies {
    fn merge(words: &[Word], flown: &Flown) -> Self {
        let (mut replies, mut asked) = (Self::default(), flown.iter().map(|(result, _)| *result));
        for word in words {
            let (answer, source) = match word {
                Word::Spent { decision, charged_at } => {
                    (Some(Ok(Answer::new(*decision, true, *charged_at))), Source::Lease)
                }
                Word::Denied(decision) => (Some(Ok(Answer::new(*decision, false, 0))), Source::DenialCache),
                Word::Failed(error) => (Some(Err(*error)), Source::Store),
                Word::Ask(_) => (asked.next(), Source::Store),
            };
            replies.answers.extend(answer);
            replies.sources.push(source);
        }
        replies
    }
}
