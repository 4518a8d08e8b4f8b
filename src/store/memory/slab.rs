//! The counters of one shard, dense and in no order: an entry is 56 bytes, and a slab grows and shrinks by whole chunks, so
//! that growth never copies what is there and what is forgotten goes back to the allocator.

use crate::algorithm::{Algorithm, Decision, State};
use crate::clock::Micros;
use crate::store::{Check, CounterKey};

/// Entries a chunk: 7 KiB, which mimalloc packs with two percent of loss; the last one of a shard, half used, is a byte a key.
const CHUNK: usize = 128;

/// `whole_tick` counts 2^20 µs: a little over a second, and 32 bits of it last until 2112.
const TICK_SHIFT: u32 = 20;

/// An exhausted counter is worth as much as one that was asked this many times more: it is the one whose next request must
/// be refused, but not so dear that a flood of keys exhausted by their first request pushes out what is in real use.
const EXHAUSTED_WORTH: u16 = 16;

/// Keys that were asked once, and have room: a flood consists of them, so they go first.
pub const IDLE_WORTH: u16 = 1;

#[derive(Debug)]
pub struct Entry {
    /// The key's halves; as one `u128` it would align the entry to 16 bytes and cost 8 more.
    high: u64,
    low: u64,
    pub state: State,
    /// When the state says no more than a fresh one, in ticks, rounded up.
    whole_tick: u32,
    /// Requests since the counter was last whole; stops at 255.
    asked: u8,
    /// Nothing was left at the last charge, or a request was refused since.
    exhausted: bool,
}

impl Entry {
    pub fn new(key: CounterKey, algorithm: Algorithm) -> Self {
        let (high, low) = halves(key);
        Self { high, low, state: State::new(algorithm), whole_tick: 0, asked: 0, exhausted: false }
    }

    pub fn is(&self, key: CounterKey) -> bool {
        (self.high, self.low) == halves(key)
    }

    /// What the index hashes by: the digest is uniform already. (A shard is chosen by the other half.)
    pub fn hash(&self) -> u64 {
        self.low
    }

    pub fn is_whole(&self, now: Micros) -> bool {
        u64::from(self.whole_tick) <= now >> TICK_SHIFT
    }

    /// What is lost if this entry goes; compared only among entries that are not whole.
    pub fn worth(&self) -> u16 {
        u16::from(self.asked) + if self.exhausted { EXHAUSTED_WORTH } else { 0 }
    }

    /// Worth, then how long the loss would last.
    pub fn rank(&self) -> (u16, u32) {
        (self.worth(), self.whole_tick)
    }

    /// Its use counts a little less: others deserve a place too.
    pub fn age(&mut self) {
        self.asked = self.asked.saturating_sub(1).max(1);
    }

    /// What the check is told; another algorithm than before starts anew.
    pub fn decide(&self, check: &Check, now: Micros) -> Decision {
        if self.state.algorithm() == check.algorithm {
            self.state.decide(&check.quota, now, check.cost)
        } else {
            State::new(check.algorithm).decide(&check.quota, now, check.cost)
        }
    }

    /// A request asked for this counter and was told `admitted`.
    pub fn touch(&mut self, now: Micros, admitted: bool) {
        if self.is_whole(now) {
            (self.asked, self.exhausted) = (0, false);
        }
        self.asked = self.asked.saturating_add(1);
        self.exhausted |= !admitted;
    }

    /// Charges what `decision` admitted.
    pub fn charge(&mut self, check: &Check, now: Micros, decision: &Decision) {
        self.become_algorithm(check.algorithm);
        self.state.charge(&check.quota, now, check.cost);
        self.note_charge(check, decision.after.remaining == 0);
    }

    pub fn charge_up_to(&mut self, check: &Check, now: Micros) -> u64 {
        self.become_algorithm(check.algorithm);
        let charged = self.state.charge_up_to(&check.quota, now, check.cost);
        self.note_charge(check, charged < check.cost);
        charged
    }

    /// Nothing of what another algorithm was charged is left.
    pub fn release(&mut self, check: &Check, now: Micros, charged_at: Micros) {
        if self.state.algorithm() != check.algorithm {
            return;
        }
        self.state.release(&check.quota, now, check.cost, charged_at);
        self.note_charge(check, false);
    }

    fn become_algorithm(&mut self, algorithm: Algorithm) {
        if self.state.algorithm() != algorithm {
            self.state = State::new(algorithm);
        }
    }

    fn note_charge(&mut self, check: &Check, exhausted: bool) {
        self.exhausted = exhausted;
        let ticks = self.state.whole_at(&check.quota).div_ceil(1 << TICK_SHIFT);
        self.whole_tick = u32::try_from(ticks).unwrap_or(u32::MAX);
    }
}

const _: () = assert!(size_of::<Entry>() <= 56, "ten million of them are what the memory store is sized for");

#[allow(clippy::cast_possible_truncation, reason = "the halves are meant")]
pub fn halves(key: CounterKey) -> (u64, u64) {
    ((key.0 >> 64) as u64, key.0 as u64)
}

/// All chunks are full but the last, which is never empty.
#[derive(Debug, Default)]
pub struct Slab {
    chunks: Vec<Vec<Entry>>,
}

impl Slab {
    pub fn len(&self) -> usize {
        match self.chunks.last() {
            Some(last) => (self.chunks.len() - 1) * CHUNK + last.len(),
            None => 0,
        }
    }

    pub fn at(&self, slot: usize) -> &Entry {
        &self.chunks[slot / CHUNK][slot % CHUNK]
    }

    pub fn at_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.chunks[slot / CHUNK][slot % CHUNK]
    }

    pub fn push(&mut self, entry: Entry) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
    }

    /// Takes out the last entry.
    pub fn pop(&mut self) -> Option<Entry> {
        let last = self.chunks.last_mut()?;
        let entry = last.pop();
        if last.is_empty() {
            self.chunks.pop();
        }
        entry
    }
}
