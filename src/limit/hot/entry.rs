//! What this gateway knows and holds of one key. Pure: time comes in, and nothing goes out but answers.
//!
//! Its times are this process's (µs). The store's clock comes in as durations only, counted from before the question left,
//! so that a lease ends early rather than late.

use super::known::{Denial, Due, Held, Landed, Landing, LastTold, Look, Remembered};
use super::usage::{Moment, Usage};
use crate::algorithm::{Algorithm, Decision, LEASE_SHARE, Lease, Standing};
use crate::clock::Micros;
use crate::store::{Answer, Check, CounterKey, StoreError};
use tokio::sync::oneshot;

#[derive(Debug)]
pub(super) struct Entry {
    /// The last one asked about this key; algorithm and quota are the same for all.
    pub check: Check,
    usage: Usage,
    /// What those need who wait.
    pub demand: u64,
    lease: Held,
    denial: Option<Denial>,
    standing: Option<Remembered>,
    /// A question on its way that takes all with it that is held here; until it lands, others wait.
    flight: Option<Vec<oneshot::Sender<Landed>>>,
    /// When units last came in or went back: a refusal from before that may not hold any longer.
    freed_at: Micros,
    /// A task will look after the lease when it ends.
    pub is_timed: bool,
}

/// How long what is left of a lease may be on its way back; half a ttl besides.
pub(super) const RETURN_US: Micros = 2_000;

/// Between two attempts to give back what a shard that is away did not take.
const RETRY_US: Micros = 100_000;

impl Entry {
    pub fn new(check: Check) -> Self {
        Self {
            check,
            usage: Usage::default(),
            demand: 0,
            lease: Held::default(),
            denial: None,
            standing: None,
            flight: None,
            freed_at: 0,
            is_timed: false,
        }
    }

    pub fn key(&self) -> CounterKey {
        self.check.key
    }

    pub fn look(&self, check: &Check, now: Micros) -> Look {
        if self.lease.units >= check.cost && now < self.lease.ends_at {
            Look::Leased
        } else if self.flight.is_some() {
            Look::Busy
        } else if self.denial.is_some_and(|denial| denial.cost <= check.cost && now < denial.until) {
            Look::Denied
        } else {
            Look::Unknown
        }
    }

    /// What the limit says as far as it is known here; charges nothing.
    pub fn told(&self, check: &Check, now: Micros) -> Option<Decision> {
        let before = self.standing(now)?;
        match self.look(check, now) {
            Look::Denied => {
                let wait = |at: Micros| at.saturating_sub(now).max(1);
                let retry_after_us = self.denial.and_then(|denial| denial.passes_at).map(wait);
                Some(Decision { admitted: false, before, after: before, retry_after_us })
            }
            Look::Leased => Some(self.admitted(check, before)),
            Look::Busy | Look::Unknown => {
                (before.remaining >= check.cost && self.standing?.until > now).then(|| self.admitted(check, before))
            }
        }
    }

    /// Spends a check's cost from the lease; with the charge's time, needed to give it back.
    pub fn spend(&mut self, check: &Check, at: Moment) -> (Decision, Micros) {
        let decision = self.admitted(check, self.standing(at.now).unwrap_or_default());
        self.lease.units = self.lease.units.saturating_sub(check.cost);
        self.usage.count(check.cost, at);
        if let Some(standing) = &mut self.standing {
            standing.remaining = decision.after.remaining;
            standing.whole_at = at.now + decision.after.reset_us;
        }
        (decision, self.lease.charged_at)
    }

    /// Takes back what was spent of the lease of that time; false if it is no longer here.
    pub fn unspend(&mut self, check: &Check, charged_at: Micros) -> bool {
        // Without a timer nobody would look after it again.
        let is_here = self.lease.charged_at == charged_at && charged_at > 0 && self.is_timed;
        if is_here {
            self.lease.units += check.cost;
            self.usage.take_back(check.cost);
            if let Some(standing) = &mut self.standing {
                standing.remaining += check.cost;
                if check.algorithm == Algorithm::TokenBucket {
                    standing.whole_at -= check.quota.refill_us(check.cost).min(standing.whole_at);
                }
            }
        }
        is_here
    }

    /// Begins a question that others wait for. All that is held goes back with it; `waiting` of the demand is the asker's own.
    pub fn depart(&mut self, check: &Check, waiting: u64, at: Moment) -> (Lease, Held) {
        self.check = *check;
        self.flight = Some(Vec::new());
        let units = self.usage.last(at) + self.demand.saturating_sub(waiting);
        (Lease { units, hold_us: at.ttl + at.ttl / 2 + RETURN_US }, self.take_lease())
    }

    pub fn wait(&mut self) -> Option<oneshot::Receiver<Landed>> {
        let waiters = self.flight.as_mut()?;
        let (sender, receiver) = oneshot::channel();
        waiters.push(sender);
        Some(receiver)
    }

    /// Takes in an answer to a question that left at `sent`.
    pub fn answered(&mut self, check: &Check, answer: &Answer, sent: Micros, at: Moment) -> Landing {
        let mut landing = Landing::default();
        let decision = &answer.decision;
        if decision.admitted {
            self.denial = None;
        } else if self.flight.is_some() || self.lease.units > 0 || self.freed_at > sent {
            landing.is_stale = true;
        } else {
            let wait = decision.retry_after_us.unwrap_or(at.ttl).min(at.ttl);
            let passes_at = decision.retry_after_us.map(|wait| at.now + wait);
            self.denial = Some(Denial { cost: check.cost, until: sent + wait, passes_at });
        }
        if answer.charged {
            self.usage.count(check.cost, at);
        }
        landing.held = self.remember(check, answer, at);
        if answer.leased > 0 {
            let over_at = sent.saturating_add(answer.lease_lasts_us);
            let ends_at = over_at.min(sent + at.ttl);
            let charged_at = check.algorithm.lease_charged_at(&check.quota, answer.at_us, answer.lease_lasts_us);
            self.lease = Held { units: answer.leased, charged_at, ends_at, over_at, retry_at: 0 };
            self.freed_at = at.now;
            landing.needs_timer = !std::mem::replace(&mut self.is_timed, true);
        }
        landing
    }

    /// Keeps what an answer tells of the limit; gives the units held here that it does not count as left. The leader's counts its
    /// lease as left. One that was overtaken by a later answer may not count what that one took, so it makes nothing larger.
    fn remember(&mut self, check: &Check, answer: &Answer, at: Moment) -> u64 {
        let told = if answer.charged { answer.decision.after } else { answer.decision.before };
        let known = self.standing.filter(|standing| standing.until > at.now && standing.told_at >= answer.at_us);
        let held = if known.is_some() { 0 } else { self.lease.units };
        let remaining = (told.remaining + held).min(check.algorithm.capacity(&check.quota));
        self.standing = Some(match known {
            Some(standing) => Remembered { remaining: standing.remaining.min(remaining), ..standing },
            None => Remembered {
                told_at: answer.at_us,
                remaining,
                whole_at: at.now + told.reset_us,
                until: at.now + at.ttl,
                is_handed_over: false,
            },
        });
        held
    }

    /// What the store last told, once: whoever takes it decides from now on, and only a later answer knows better.
    pub fn hand_over(&mut self, ttl: Micros) -> Option<LastTold> {
        let standing = self.standing.as_mut().filter(|standing| !standing.is_handed_over)?;
        standing.is_handed_over = true;
        Some(LastTold { remaining: standing.remaining, at: standing.until.saturating_sub(ttl) })
    }

    /// A question got no answer: what went back with it is here again if it was certainly not taken. Else it is lost, or it was
    /// taken and a lease as well, of which nobody will hear: the more of the two is counted.
    pub fn failed(&mut self, back: Held, lease: Lease, error: &StoreError, now: Micros) -> Landing {
        let mut landing = Landing::default();
        let is_owed = back.units > 0 && now < back.over_at;
        if error.maybe_applied {
            let leased = lease.units.min(self.check.algorithm.capacity(&self.check.quota) / LEASE_SHARE);
            landing.lost = leased.max(if is_owed { back.units } else { 0 });
        } else if is_owed {
            self.lease = Held { ends_at: 0, retry_at: now + RETRY_US, ..back };
            landing.needs_timer = !std::mem::replace(&mut self.is_timed, true);
        }
        landing
    }

    /// The question has landed; these waited for it.
    pub fn land(&mut self) -> Vec<oneshot::Sender<Landed>> {
        self.flight.take().unwrap_or_default()
    }

    /// A lease that has ended and nobody has taken along sets out on its own.
    pub fn depart_ended(&mut self, now: Micros) -> Due {
        if self.flight.is_some() {
            return Due::InFlight;
        }
        if self.lease.units == 0 {
            self.is_timed = false;
            return Due::Nothing;
        }
        if now < self.lease.ends_at.max(self.lease.retry_at) {
            return Due::At(self.lease.ends_at.max(self.lease.retry_at));
        }
        self.is_timed = false;
        self.flight = Some(Vec::new());
        Due::Now(self.take_lease())
    }

    pub fn take_lease(&mut self) -> Held {
        let held = std::mem::take(&mut self.lease);
        if let Some(standing) = &mut self.standing {
            standing.remaining = standing.remaining.saturating_sub(held.units);
        }
        held
    }

    pub fn holds(&self) -> Option<u64> {
        self.flight.is_none().then_some(self.lease.units)
    }

    /// Units went back to the store.
    pub fn freed(&mut self, now: Micros) {
        self.freed_at = now;
        self.denial = None;
    }

    /// Nothing is held, nobody waits, and nothing that is known is of use any longer.
    pub fn is_idle(&self, at: Moment) -> bool {
        self.is_free()
            && self.usage.last(at) == 0
            && self.denial.is_none_or(|denial| denial.until <= at.now)
            && self.standing.is_none_or(|standing| standing.until <= at.now)
    }

    /// It may be forgotten without harm to a counter.
    pub fn is_free(&self) -> bool {
        self.lease.units == 0 && self.flight.is_none() && self.demand == 0
    }

    fn standing(&self, now: Micros) -> Option<Standing> {
        let Remembered { remaining, whole_at, .. } = self.standing?;
        Some(Standing { remaining, reset_us: whole_at.saturating_sub(now) })
    }

    fn admitted(&self, check: &Check, before: Standing) -> Decision {
        let refill = if check.algorithm == Algorithm::TokenBucket { check.quota.refill_us(check.cost) } else { 0 };
        let after = Standing {
            remaining: before.remaining.saturating_sub(check.cost),
            reset_us: before.reset_us.saturating_add(refill),
        };
        Decision { admitted: true, before, after, retry_after_us: None }
    }
}
