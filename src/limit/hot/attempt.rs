//! One request against the cache: answered here, or told what is missing. All its keys are looked at under their locks, so
//! what is found is taken for all of them or for none.

use super::entry::{Entry, RETURN_US};
use super::known::{Held, Landed, Look};
use super::table::Table;
use super::{Hot, Locked};
use crate::algorithm::{Algorithm, Decision, Lease};
use crate::clock::Micros;
use crate::limit::failure::{Seen, Settled};
use crate::store::{Ask, Check, CounterKey, StoreError};
use crate::telemetry::metrics::Source;
use smallvec::SmallVec;
use tokio::sync::oneshot;

/// How often a request waits for others' questions before it asks on its own.
pub const WAITS_MAX: u32 = 2;

/// How far a request has come.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    /// How often it has waited.
    pub waits: u32,
    /// The key it waited for last: its own cost is still counted there among those who wait.
    pub last: Option<CounterKey>,
    /// The shards' errors that it met while it waited, by check.
    pub failures: SmallVec<[Option<StoreError>; 4]>,
}

impl Patience {
    fn failure(&self, at: usize) -> Option<StoreError> {
        self.failures.get(at).copied().flatten()
    }
}

/// What the cache makes of a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large ones are the usual ones, and short-lived")]
pub enum Attempt {
    /// Every limit has spoken, or one refused.
    Answered(Settled),
    /// Another request asks about this check's key at the moment; its answer may do for both.
    Wait { at: usize, landed: oneshot::Receiver<Landed> },
    /// One word per check; the store is to be asked about the rest.
    Ask(SmallVec<[Word; 4]>),
}

/// What the cache says to one check of a request that has to ask.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// Spent from a lease of that time; goes back if another limit refuses.
    Spent {
        decision: Decision,
        charged_at: Micros,
    },
    /// A shadow limit's remembered refusal.
    Denied(Decision),
    /// Its shard has failed while this request waited.
    Failed(StoreError),
    Ask(Leaving),
}

/// What leaves for the store with a check.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    pub lease: Lease,
    pub held: Held,
    /// Others wait for it to land.
    pub is_awaited: bool,
    pub sent: Micros,
}

impl Leaving {
    fn alone(now: Micros) -> Self {
        Self { lease: Lease::default(), held: Held::default(), is_awaited: false, sent: now }
    }

    #[must_use]
    pub fn ask(&self, check: &Check) -> Ask {
        Ask { check: *check, lease: self.lease, back: self.held.returned() }
    }

    /// Whether units go with it, or may come.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.lease.units > 0 || self.held.returned().units > 0
    }
}

impl Hot {
    /// Answers a request, if it can be answered here.
    #[must_use]
    pub fn attempt(&self, checks: &[Check], patience: &Patience, now: Micros) -> Attempt {
        let mut locked = self.lock(checks);
        let looks: SmallVec<[Look; 4]> = checks
            .iter()
            .map(|check| self.find(&mut locked, check.key).map_or(Look::Unknown, |e| e.look(check, now)))
            .collect();
        let refuses = checks.iter().zip(&looks).any(|(check, look)| check.enforced && *look == Look::Denied);
        if refuses && let Some(settled) = self.refusal(&mut locked, checks, now) {
            return Attempt::Answered(settled);
        }
        let is_local = |(check, look): (&Check, &Look)| match look {
            Look::Leased => true,
            Look::Denied => !check.enforced,
            Look::Busy | Look::Unknown => false,
        };
        if checks.iter().zip(&looks).all(is_local) {
            return Attempt::Answered(self.spend_all(&mut locked, checks, &looks, now));
        }
        let busy = (0..checks.len()).find(|i| looks[*i] == Look::Busy && patience.failure(*i).is_none());
        if let Some(at) = busy.filter(|_| patience.waits < WAITS_MAX)
            && let Some(entry) = self.find(&mut locked, checks[at].key)
            && let Some(landed) = entry.wait()
        {
            entry.demand += checks[at].cost;
            return Attempt::Wait { at, landed };
        }
        let word = |i: usize| match patience.failure(i) {
            Some(error) if looks[i] != Look::Leased => Word::Failed(error),
            _ => self.word(&mut locked, (&checks[i], looks[i]), patience, now),
        };
        Attempt::Ask((0..checks.len()).map(word).collect())
    }

    /// It waits no longer, for whatever reason.
    pub fn waited(&self, check: &Check) {
        if let Some(entry) = self.table(check.key).lock().find(check.key) {
            entry.demand = entry.demand.saturating_sub(check.cost);
        }
    }

    /// A remembered refusal answers alone. A shadow limit is to be evaluated all the same: where it cannot be, the store is asked.
    fn refusal(&self, locked: &mut Locked, checks: &[Check], now: Micros) -> Option<Settled> {
        let mut seen = SmallVec::new();
        for check in checks {
            match self.find(locked, check.key).and_then(|entry| entry.told(check, now)) {
                Some(decision) => seen.push(Seen::Decided { decision, source: Source::DenialCache }),
                None if check.enforced => seen.push(Seen::Unasked),
                None => return None,
            }
        }
        Some(Settled { seen, passes: false, ..Settled::default() })
    }

    fn spend_all(&self, locked: &mut Locked, checks: &[Check], looks: &[Look], now: Micros) -> Settled {
        let mut seen = SmallVec::new();
        for (check, look) in checks.iter().zip(looks) {
            let Some(entry) = self.find(locked, check.key) else { continue };
            seen.push(if *look == Look::Leased {
                Seen::Decided { decision: entry.spend(check, self.at(now)).0, source: Source::Lease }
            } else {
                let decision = entry.told(check, now);
                decision.map_or(Seen::Unasked, |decision| Seen::Decided { decision, source: Source::DenialCache })
            });
        }
        Settled { seen, passes: true, ..Settled::default() }
    }

    fn word(&self, locked: &mut Locked, (check, look): (&Check, Look), patience: &Patience, now: Micros) -> Word {
        let table = self.position(locked, check.key);
        match look {
            Look::Leased => {
                if let Some(entry) = table.find(check.key) {
                    let (decision, charged_at) = entry.spend(check, self.at(now));
                    return Word::Spent { decision, charged_at };
                }
            }
            Look::Denied if !check.enforced => {
                if let Some(decision) = table.find(check.key).and_then(|entry| entry.told(check, now)) {
                    return Word::Denied(decision);
                }
            }
            Look::Unknown if self.may_lease(check) && !self.is_closed() => {
                if let Some(entry) = table.entry(check, self.at(now)) {
                    let own = if patience.last == Some(check.key) { check.cost } else { 0 };
                    let (lease, held) = entry.depart(check, own, self.at(now));
                    let leaving = Leaving { lease, held, is_awaited: true, sent: now };
                    if leaving.carries() {
                        self.departs();
                    }
                    return Word::Ask(leaving);
                }
            }
            Look::Denied | Look::Busy | Look::Unknown => {}
        }
        Word::Ask(Leaving::alone(now))
    }

    /// Units of a bucket that are held while it refills are poured out twice, and what is kept out against that is missed by
    /// a gateway that is alone. So a bucket is leased only where less than a unit flows in while a lease may be held.
    fn may_lease(&self, check: &Check) -> bool {
        let held_us = u128::from(self.ttl_us() * 3 / 2 + RETURN_US);
        let is_slow = || u128::from(check.quota.units) * held_us < u128::from(check.quota.period_us);
        check.algorithm.is_leased() && (check.algorithm != Algorithm::TokenBucket || is_slow())
    }

    fn find<'t>(&self, locked: &'t mut Locked, key: CounterKey) -> Option<&'t mut Entry> {
        self.position(locked, key).find(key)
    }

    fn position<'t>(&self, locked: &'t mut Locked, key: CounterKey) -> &'t mut Table {
        let number = self.number(key);
        let at = locked.iter().position(|(locked, _)| *locked == number).unwrap_or_default();
        &mut locked[at].1
    }
}
