//! Counters in this process, bounded.
//!
//! Shared by all cores: keys are spread over shards, each under a lock of its own, and a request locks the shards it needs
//! in ascending order, once. A refused request changes no counter, and makes none.
//! It never holds more than `max_keys` counters; whom it forgets is told at `Memory`. Time is the caller's.

mod request;
mod shard;
mod slab;

use super::{Answer, Check, CounterKey};
use crate::algorithm::{Algorithm, Decision, Quota, State};
use crate::clock::Micros;
use parking_lot::{Mutex, MutexGuard};
use request::{Look, Request};
use shard::{INDEX_KEYS, Shard};
use slab::{Entry, halves};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Counters a shard when the store is full: what its index holds, less five times the spread of a uniform hash, so that an
/// index costs four bytes a key. So small a shard grows, under its lock, in some 10 µs.
const KEYS_PER_SHARD: usize = INDEX_KEYS - 284;
const SHARDS_MAX: usize = 65_536;

/// Entries a sweep looks at before it lets go of a shard: some 10 µs if it forgets them all.
const SWEEP_STRIDE: usize = 128;

/// Shared by all cores.
///
/// When it is full, a new counter takes the place of one that is whole again (it says no more than a fresh one would), else
/// of the one of least worth among those searched: asked fewest times since it was last whole, being exhausted counting as
/// 16 times more; among equals, the one that would be whole first. So a flood of keys that come once pushes out its own
/// kind. Where all are hot or exhausted the cheapest of them goes, and what it had used is forgotten with it.
pub struct Memory {
    shards: Box<[Line]>,
    /// How many more counters fit. The first of each shard is not taken from here, so that a shard always has one to replace.
    room: AtomicUsize,
    held: AtomicUsize,
    evicted_live: AtomicU64,
    /// The shard at which the sweep goes on.
    sweep_at: AtomicUsize,
}

/// Cores that work on neighbouring shards do not share a cache line.
#[repr(align(64))]
struct Line(Mutex<Shard>);

type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

impl Memory {
    /// Holds at most `max_keys` counters (at least one).
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        let max_keys = max_keys.max(1);
        let shards = max_keys.div_ceil(KEYS_PER_SHARD).clamp(1, SHARDS_MAX);
        Self {
            shards: (0..shards).map(|_| Line(Mutex::new(Shard::new()))).collect(),
            room: AtomicUsize::new(max_keys - shards),
            held: AtomicUsize::new(0),
            evicted_live: AtomicU64::new(0),
            sweep_at: AtomicUsize::new(0),
        }
    }

    /// Looks at all, then charges all or none. A shadow check refuses nobody, and is charged if the request passes and it
    /// has room. A key that comes twice is seen by its second check as the first would leave it.
    pub fn decide(&self, checks: &[Check], now: Micros) -> SmallVec<[Answer; 4]> {
        let mut answers = SmallVec::new();
        self.decide_each(checks, now, |_, answer| answers.push(answer));
        answers
    }

    /// The same, told one by one in the order of the checks: a list that is handed on is a copy of 300 octets.
    pub fn decide_each(&self, checks: &[Check], now: Micros, mut tell: impl FnMut(&Check, Answer)) {
        if let [check] = checks {
            return tell(check, self.decide_one(check, now));
        }
        let mut locked = self.lock(checks);
        let now = locked.iter().fold(now, |now, (_, shard)| now.max(shard.clock()));
        let mut request = Request { checks, now, looks: SmallVec::new() };
        for check in checks {
            let look = self.look(&mut locked, &request, check);
            request.looks.push(look);
        }
        for (_, shard) in &mut locked {
            shard.advance(now);
        }
        let passes = request.passes();
        if passes {
            self.charge(&mut locked, &request);
        }
        for (check, look) in checks.iter().zip(&request.looks) {
            tell(check, Answer::new(look.decision, passes && look.decision.admitted, now));
        }
    }

    /// Gives back exactly what was charged at `charged_at`; makes no counter.
    pub fn give_back(&self, check: &Check, charged_at: Micros, now: Micros) {
        let mut shard = self.shard(check.key).lock();
        if let Some(slot) = shard.find(check.key) {
            shard.at_mut(slot).release(check, now, charged_at);
        }
    }

    /// Charges as much of the check's cost as fits, whatever the mode; tells how much.
    pub fn charge_up_to(&self, check: &Check, now: Micros) -> u64 {
        let mut shard = self.shard(check.key).lock();
        if let Some(slot) = shard.find(check.key) {
            return shard.at_mut(slot).charge_up_to(check, now);
        }
        let mut entry = Entry::new(check.key, check.algorithm);
        let charged = entry.charge_up_to(check, now);
        if charged > 0 {
            self.add(&mut shard, entry, now);
        }
        charged
    }

    /// What a request of one unit would be told, without charging it; does not count as use.
    #[must_use]
    pub fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota, now: Micros) -> Decision {
        let shard = self.shard(key).lock();
        let check = Check { key, algorithm, quota: *quota, cost: 1, enforced: true };
        match shard.find(key) {
            Some(slot) => shard.at(slot).decide(&check, now),
            None => State::new(algorithm).decide(quota, now, 1),
        }
    }

    /// Forgets one counter; says whether it was there.
    pub fn reset(&self, key: CounterKey) -> bool {
        let mut shard = self.shard(key).lock();
        let found = shard.find(key);
        if let Some(slot) = found {
            shard.remove(slot);
            self.note_removed(1, shard.len());
        }
        found.is_some()
    }

    /// Forgets counters that are whole, looking at no more than `budget`, and goes on from there the next time. Returns how
    /// many were forgotten. Without it they stay until their place is needed.
    pub fn sweep(&self, now: Micros, budget: usize) -> usize {
        let (mut left, mut forgotten, mut ended) = (budget, 0, 0);
        while left > 0 && ended < self.shards.len() {
            let at = self.sweep_at.load(Relaxed) % self.shards.len();
            let mut shard = self.shards[at].0.lock();
            let (looked, removed, end) = shard.sweep(now, left.min(SWEEP_STRIDE));
            self.note_removed(removed, shard.len());
            drop(shard);
            if end {
                ended += 1;
                self.sweep_at.store(at + 1, Relaxed);
            }
            forgotten += removed;
            // An empty shard costs its lock.
            left -= looked.clamp(1, left);
        }
        forgotten
    }

    /// Counters held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.load(Relaxed)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often a new counter took the place of one that still held usage: above zero, `max_keys` is too small for the
    /// traffic, or a flood of keys is on.
    #[must_use]
    pub fn evicted_live(&self) -> u64 {
        self.evicted_live.load(Relaxed)
    }

    /// The key's upper half as a fraction of the shards; any number of them is served evenly.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of shards")]
    fn shard_number(&self, key: CounterKey) -> usize {
        ((u128::from(halves(key).0) * self.shards.len() as u128) >> 64) as usize
    }

    fn shard(&self, key: CounterKey) -> &Mutex<Shard> {
        &self.shards[self.shard_number(key)].0
    }

    /// Ascending and each once, so that no two requests wait for each other.
    fn lock(&self, checks: &[Check]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> = SmallVec::new();
        for check in checks {
            numbers.push(self.shard_number(check.key));
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut locked = Locked::new();
        for &number in &numbers {
            locked.push((number, self.shards[number].0.lock()));
        }
        locked
    }

    /// The same for one check, which most requests are, at half the time.
    fn decide_one(&self, check: &Check, now: Micros) -> Answer {
        let mut shard = self.shard(check.key).lock();
        let now = shard.advance(now);
        let decision = if let Some(slot) = shard.find(check.key) {
            let entry = shard.at_mut(slot);
            let decision = entry.decide(check, now);
            entry.touch(now, decision.admitted);
            if decision.admitted {
                entry.charge(check, now, &decision);
            }
            decision
        } else {
            let mut entry = Entry::new(check.key, check.algorithm);
            let decision = entry.decide(check, now);
            if decision.admitted {
                entry.charge(check, now, &decision);
                self.add(&mut shard, entry, now);
            }
            decision
        };
        Answer::new(decision, decision.admitted, now)
    }

    fn look(&self, locked: &mut Locked, request: &Request, check: &Check) -> Look {
        let number = self.shard_number(check.key);
        let lock = locked.iter().position(|(locked, _)| *locked == number).unwrap_or_default();
        let shard = &mut locked[lock].1;
        let slot = shard.find(check.key);
        let decision = request.decide(slot.map(|slot| shard.at(slot)), check);
        if let Some(slot) = slot {
            shard.at_mut(slot).touch(request.now, decision.admitted);
        }
        Look { lock, slot, decision }
    }

    /// First what is there, then what is new: a new counter may push out another of this very request, in a store that
    /// holds hardly more than one request's counters, and what is charged by then is only forgotten, not lost track of.
    fn charge(&self, locked: &mut Locked, request: &Request) {
        let now = request.now;
        for (check, look) in request.admitted() {
            if let Some(slot) = look.slot {
                locked[look.lock].1.at_mut(slot).charge(check, now, &look.decision);
            }
        }
        for (check, look) in request.admitted().filter(|(_, look)| look.slot.is_none()) {
            let shard = &mut locked[look.lock].1;
            if let Some(slot) = shard.find(check.key) {
                shard.at_mut(slot).charge(check, now, &look.decision);
                continue;
            }
            let mut entry = Entry::new(check.key, check.algorithm);
            entry.charge(check, now, &look.decision);
            self.add(shard, entry, now);
        }
    }

    /// Keeps what was just charged for the first time.
    fn add(&self, shard: &mut Shard, mut entry: Entry, now: Micros) {
        entry.touch(now, true);
        if shard.len() == 0 || (!shard.is_full() && self.take_room()) {
            shard.insert(entry);
            self.held.fetch_add(1, Relaxed);
        } else if let Some(victim) = shard.victim(now) {
            self.evicted_live.fetch_add(u64::from(victim.live), Relaxed);
            shard.replace(&victim, entry);
        }
    }

    fn take_room(&self) -> bool {
        self.room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(1)).is_ok()
    }

    /// `left` entries are left in the shard; its first took no room.
    fn note_removed(&self, removed: usize, left: usize) {
        if removed > 0 {
            self.held.fetch_sub(removed, Relaxed);
            self.room.fetch_add(removed - usize::from(left == 0), Relaxed);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Memory");
        shown.field("held", &self.len()).field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}
