//! The local cache of busy keys in front of the store: leases (units charged in advance and spent here) and remembered
//! refusals, as semantics.md §4 has them. It promises never to admit what is not charged.
//!
//! One for the process, under many locks, and not one per core: a lease is a gateway's. With one per core each would ask the
//! store 1/ttl times a second, and one core would refuse what another holds. Own tables instead of moka: a lease that were
//! evicted would be lost to the window, and two cores on one key would wait for each other several times as long.
//! This file knows no store: what a request makes of the cache is `attempt`'s, how it asks is `asking`'s and `flight`'s, what
//! a key holds is `entry`'s, and `tending` gives back what is left.

mod asking;
mod attempt;
mod entry;
mod flight;
mod known;
mod table;
mod tending;
mod usage;

pub use asking::Cache;
pub use attempt::{Attempt, Leaving, Patience, Word};
pub use known::{Due, Held, Landed, LastTold};
pub use tending::release;

use crate::algorithm::Lease;
use crate::clock::Micros;
use crate::store::{Answer, Check, CounterKey, Returned, StoreError};
use known::Landing;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use table::Table;
use usage::Moment;

/// Enough that two cores on different keys hardly meet.
const LOCKS: usize = 64;

#[derive(Debug)]
pub struct Hot {
    ttl_us: Micros,
    tables: Box<[Mutex<Table>]>,
    /// No lease is taken or spent any more: the policy is about to change, or the process to end.
    closed: AtomicBool,
    /// How much is on its way that carries units or may bring some.
    flying: AtomicUsize,
}

/// What came of a check that was asked, for whoever asked.
#[derive(Debug, Default)]
pub struct Landfall {
    /// The refusal is to be ignored and the request tried again: this gateway holds units of the key by now.
    pub is_stale: bool,
    /// A lease is to be looked after (`due`).
    pub needs_timer: bool,
    /// Units lost to this window, at most.
    pub lost: u64,
    /// Units to give back at once: the cache was closed meanwhile.
    pub surplus: Returned,
    /// Units of the key that this gateway holds beside the answer.
    pub held: u64,
}

type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Table>); 4]>;

impl Hot {
    /// `None` where it is off: every check goes to the store.
    #[must_use]
    pub fn new(ttl: Duration, capacity: usize) -> Option<Self> {
        let ttl_us = crate::clock::micros(ttl);
        let locks = LOCKS.min(capacity);
        let table = |index| Mutex::new(Table::new(capacity / locks + usize::from(index < capacity % locks)));
        (ttl_us > 0 && capacity > 0).then(|| Self {
            ttl_us,
            tables: (0..locks).map(table).collect(),
            closed: AtomicBool::new(false),
            flying: AtomicUsize::new(0),
        })
    }

    #[must_use]
    pub fn ttl_us(&self) -> Micros {
        self.ttl_us
    }

    /// Takes in what the store said to a check that left.
    pub fn land(&self, check: &Check, leaving: &Leaving, result: &Result<Answer, StoreError>, now: Micros) -> Landfall {
        let at = self.at(now);
        let mut table = self.table(check.key).lock();
        let is_closed = self.is_closed();
        let mut landfall = Landfall::default();
        // Who waits or carries anything keeps its entry; the others' answers need not be remembered.
        let Some(entry) = table.entry(check, at) else { return landfall };
        let waiters = if leaving.is_awaited { entry.land() } else { Vec::new() };
        let landing = match result {
            Ok(answer) if is_closed && answer.leased > 0 => {
                let lasts_us = answer.lease_lasts_us;
                let charged_at = check.algorithm.lease_charged_at(&check.quota, answer.at_us, lasts_us);
                landfall.surplus = Returned { units: answer.leased, charged_at };
                let kept = Answer::new(answer.decision, answer.charged, answer.at_us);
                entry.answered(check, &kept, leaving.sent, at)
            }
            Ok(answer) => entry.answered(check, answer, leaving.sent, at),
            Err(error) => entry.failed(leaving.held, leaving.lease, error, now),
        };
        drop(table);
        // A surplus is still on its way until it is back.
        if leaving.carries() && landfall.surplus.units == 0 {
            self.arrived();
        }
        wake(waiters, result.as_ref().err().copied());
        let Landing { is_stale, lost, needs_timer, held } = landing;
        Landfall { is_stale, needs_timer, lost, held, ..landfall }
    }

    /// The asker has gone, and with it what the store may have said.
    pub fn abandon(&self, key: CounterKey, leaving: &Leaving) {
        let waiters = self.table(key).lock().find(key).map(entry::Entry::land).unwrap_or_default();
        if leaving.carries() {
            self.arrived();
        }
        wake(waiters, None);
    }

    /// Puts back what was spent of a lease; false if that lease is gone, and the units are to be given back to the store.
    #[must_use]
    pub fn unspend(&self, check: &Check, charged_at: Micros) -> bool {
        let mut table = self.table(check.key).lock();
        !self.is_closed() && table.find(check.key).is_some_and(|entry| entry.unspend(check, charged_at))
    }

    /// Looks after a key's lease: what is left of one that has ended sets out for the store.
    #[must_use]
    pub fn due(&self, key: CounterKey, now: Micros) -> Due {
        let due = self.table(key).lock().find(key).map_or(Due::Nothing, |entry| entry.depart_ended(now));
        if matches!(due, Due::Now(_)) {
            self.departs();
        }
        due
    }

    /// What set out has arrived, or has not.
    pub fn given_back(&self, key: CounterKey, held: Held, result: Result<(), StoreError>, now: Micros) -> Landfall {
        let mut table = self.table(key).lock();
        let (mut waiters, mut landfall) = (Vec::new(), Landfall::default());
        if let Some(entry) = table.find(key) {
            waiters = entry.land();
            // Others may have been refused for want of it.
            entry.freed(now);
            if let Err(error) = &result {
                let Landing { lost, needs_timer, .. } = entry.failed(held, Lease::default(), error, now);
                landfall = Landfall { lost, needs_timer, ..landfall };
            }
        }
        drop(table);
        self.arrived();
        wake(waiters, result.err());
        landfall
    }

    /// Units of the key went back to the store another way: a refusal may no longer hold.
    pub fn freed(&self, key: CounterKey, now: Micros) {
        if let Some(entry) = self.table(key).lock().find(key) {
            entry.freed(now);
        }
    }

    /// Takes and spends no more leases; with all that is held, to be given back.
    pub fn close(&self) -> Vec<(Check, Returned)> {
        self.closed.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for table in &self.tables {
            for entry in table.lock().entries() {
                let held = entry.take_lease().returned();
                if held.units > 0 {
                    all.push((Check { cost: held.units, ..entry.check }, held));
                }
            }
        }
        all
    }

    /// Units set out for the store, or a question that may bring some.
    fn departs(&self) {
        self.flying.fetch_add(1, Ordering::AcqRel);
    }

    fn arrived(&self) {
        self.flying.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether units are still on their way, or may come.
    #[must_use]
    pub fn is_flying(&self) -> bool {
        self.flying.load(Ordering::Acquire) > 0
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Units of a key that are charged and not spent; `None` while some are on their way.
    #[must_use]
    pub fn holds(&self, key: CounterKey) -> Option<u64> {
        self.table(key).lock().find(key).map_or(Some(0), |entry| entry.holds())
    }

    /// What the store last told of a key, told once: the counter that goes on without the store starts from it.
    #[must_use]
    pub fn hand_over(&self, key: CounterKey) -> Option<LastTold> {
        self.table(key).lock().find(key)?.hand_over(self.ttl_us)
    }

    /// Drops what this gateway holds and knows of a counter that is about to be forgotten.
    pub fn forget(&self, key: CounterKey, now: Micros) {
        if let Some(entry) = self.table(key).lock().find(key) {
            entry.take_lease();
            entry.hand_over(self.ttl_us);
            entry.freed(now);
        }
    }

    /// Forgets idle keys; tells how many are left.
    pub fn sweep(&self, now: Micros) -> usize {
        let sweep = |table: &Mutex<Table>| {
            let mut table = table.lock();
            table.sweep(self.at(now));
            table.len()
        };
        self.tables.iter().map(sweep).sum()
    }

    fn at(&self, now: Micros) -> Moment {
        Moment { now, ttl: self.ttl_us }
    }

    fn table(&self, key: CounterKey) -> &Mutex<Table> {
        &self.tables[self.number(key)]
    }

    #[allow(clippy::cast_possible_truncation, reason = "below the number of locks")]
    fn number(&self, key: CounterKey) -> usize {
        (((key.0 >> 64) * self.tables.len() as u128) >> 64) as usize
    }

    /// Ascending and each once, so that no two requests wait for each other.
    fn lock(&self, checks: &[Check]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> = checks.iter().map(|check| self.number(check.key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.tables[number].lock())).collect()
    }
}

fn wake(waiters: Vec<tokio::sync::oneshot::Sender<Landed>>, landed: Landed) {
    for waiter in waiters {
        let _ = waiter.send(landed);
    }
}
