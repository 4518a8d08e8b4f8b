//! One shard: an index of 3 bytes a place over a dense slab, and the choice of what to forget.
//!
//! A victim is looked for from where the last search ended (a clock's hand), so no entry is looked at twice before all were
//! looked at once. A search normally ends after `SAMPLE` entries and always after `SEARCH`.

use super::slab::{Entry, IDLE_WORTH, Slab, halves};
use crate::clock::Micros;
use crate::store::CounterKey;
use hashbrown::HashTable;

/// Neighbours in memory, so about 200 ns; a whole or idle entry is among them in all but odd populations.
const SAMPLE: usize = 16;

/// How far a search goes that finds nothing as cheap as the last one did: 3 µs or so, and most of a shard.
const SEARCH: usize = 1024;

/// Places for keys in the index of a shard that is as full as it should get: 7/8 of 4096.
pub const INDEX_KEYS: usize = 3584;

#[derive(Debug)]
pub struct Shard {
    index: HashTable<u16>,
    slab: Slab,
    /// The latest instant a request came with.
    clock: Micros,
    /// Where the next search for a victim starts.
    hand: usize,
    /// Where the sweep goes on.
    broom: usize,
    /// The least worth that a search must find before it may end early. Follows what the searches found.
    floor: u16,
}

/// Whom a new entry replaces.
pub struct Victim {
    slot: usize,
    /// It still held usage.
    pub live: bool,
}

impl Shard {
    pub fn new() -> Self {
        Self { index: HashTable::new(), slab: Slab::default(), clock: 0, hand: 0, broom: 0, floor: IDLE_WORTH }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn clock(&self) -> Micros {
        self.clock
    }

    /// The instant of a request that came with `now`: a core may have read it before another that had the lock first, and
    /// for this shard time does not go back. What is charged at an instant is given back by the same one.
    pub fn advance(&mut self, now: Micros) -> Micros {
        self.clock = self.clock.max(now);
        self.clock
    }

    /// No more slots can be numbered. Far off, unless someone can choose digests.
    pub fn is_full(&self) -> bool {
        self.len() > usize::from(u16::MAX)
    }

    pub fn find(&self, key: CounterKey) -> Option<usize> {
        let found = self.index.find(halves(key).1, |&slot| self.slab.at(usize::from(slot)).is(key));
        found.map(|&slot| usize::from(slot))
    }

    pub fn at(&self, slot: usize) -> &Entry {
        self.slab.at(slot)
    }

    pub fn at_mut(&mut self, slot: usize) -> &mut Entry {
        self.slab.at_mut(slot)
    }

    /// Adds an entry for a key that is not there, to a shard that is not full.
    pub fn insert(&mut self, entry: Entry) {
        let Ok(slot) = u16::try_from(self.slab.len()) else { return };
        self.grow_index();
        let hash = entry.hash();
        self.slab.push(entry);
        self.index.insert_unique(hash, slot, |&other| self.slab.at(usize::from(other)).hash());
    }

    /// Puts an entry for a key that is not there in the place of another.
    pub fn replace(&mut self, victim: &Victim, entry: Entry) {
        let slot = victim.slot;
        self.unindex(slot);
        let hash = entry.hash();
        *self.slab.at_mut(slot) = entry;
        if let Ok(slot) = u16::try_from(slot) {
            self.index.insert_unique(hash, slot, |&other| self.slab.at(usize::from(other)).hash());
        }
    }

    /// Forgets an entry; the last one moves to its place.
    pub fn remove(&mut self, slot: usize) {
        self.unindex(slot);
        let Some(last) = self.slab.pop() else { return };
        let from = self.slab.len();
        if from == slot {
            return;
        }
        if let Some(place) = self.index.find_mut(last.hash(), |&other| usize::from(other) == from)
            && let Ok(slot) = u16::try_from(slot)
        {
            *place = slot;
        }
        *self.slab.at_mut(slot) = last;
    }

    /// A whole entry if the search meets one; else the one of least worth. `None` only in an empty shard.
    pub fn victim(&mut self, now: Micros) -> Option<Victim> {
        let mut best: Option<(usize, (u16, u32))> = None;
        let most = self.len().min(SEARCH);
        for looked in 1..=most {
            let slot = self.step();
            let entry = self.slab.at(slot);
            if entry.is_whole(now) {
                return Some(Victim { slot, live: false });
            }
            let rank = entry.rank();
            if best.is_none_or(|(_, least)| rank < least) {
                best = Some((slot, rank));
            }
            if looked >= SAMPLE && best.is_some_and(|(_, (worth, _))| worth <= self.floor) {
                break;
            }
        }
        let (slot, (worth, _)) = best?;
        if worth > self.floor {
            self.age_back_from_hand(most);
        }
        self.floor = worth.max(IDLE_WORTH);
        Some(Victim { slot, live: true })
    }

    /// Forgets what is whole among the next `budget` entries. Returns (looked at, forgotten, whether the end was reached).
    pub fn sweep(&mut self, now: Micros, budget: usize) -> (usize, usize, bool) {
        let (mut looked, mut forgotten) = (0, 0);
        while looked < budget && self.broom < self.len() {
            looked += 1;
            if self.slab.at(self.broom).is_whole(now) {
                self.remove(self.broom);
                forgotten += 1;
            } else {
                self.broom += 1;
            }
        }
        let ended = self.broom >= self.len();
        if ended {
            self.broom = 0;
            self.give_back_index();
        }
        (looked, forgotten, ended)
    }

    /// Eightfold up to its due size: shards grow at the same time, and tables outgrown by each doubling would stay with the
    /// allocator (7 bytes a key).
    fn grow_index(&mut self) {
        let capacity = self.index.capacity();
        if self.index.len() == capacity && capacity < INDEX_KEYS {
            self.index.reserve(7 * capacity.max(8), |&slot| self.slab.at(usize::from(slot)).hash());
        }
    }

    fn step(&mut self) -> usize {
        let slot = if self.hand < self.len() { self.hand } else { 0 };
        self.hand = slot + 1;
        slot
    }

    /// A search in vain makes all it saw a little cheaper, so that what was hot long ago does not stay for ever.
    fn age_back_from_hand(&mut self, entries: usize) {
        let length = self.len();
        for back in 1..=entries {
            let slot = (self.hand + length - back) % length;
            self.slab.at_mut(slot).age();
        }
    }

    fn unindex(&mut self, slot: usize) {
        let hash = self.slab.at(slot).hash();
        if let Ok(place) = self.index.find_entry(hash, |&other| usize::from(other) == slot) {
            place.remove();
        }
    }

    /// After a flood has gone, its index goes too; a sixteenth full is far enough from growing again.
    fn give_back_index(&mut self) {
        if self.index.capacity() > 64 && self.index.len() * 16 < self.index.capacity() {
            self.index.shrink_to(self.index.len() * 2, |&slot| self.slab.at(usize::from(slot)).hash());
        }
    }
}
