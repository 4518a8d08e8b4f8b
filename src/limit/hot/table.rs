//! The keys of one lock, bounded. What holds units or is waited for is never forgotten; where nothing else can be, a new key
//! is not kept, and its checks go to the store.

use super::entry::Entry;
use super::usage::Moment;
use crate::store::{Check, CounterKey};
use crate::telemetry::metrics;
use hashbrown::HashTable;

/// Before a table is swept for the first time.
const SWEEP_AT_LEAST: usize = 32;

#[derive(Debug)]
pub(super) struct Table {
    keys: HashTable<Entry>,
    capacity: usize,
    /// The size at which idle keys are looked for: twice what the last sweep left, so that a sweep costs each newcomer
    /// about one look.
    sweep_at: usize,
}

impl Table {
    pub fn new(capacity: usize) -> Self {
        Self { keys: HashTable::new(), capacity, sweep_at: SWEEP_AT_LEAST }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn find(&mut self, key: CounterKey) -> Option<&mut Entry> {
        self.keys.find_mut(hash(key), |entry| entry.key() == key)
    }

    /// The key's entry, made if there is room.
    pub fn entry(&mut self, check: &Check, at: Moment) -> Option<&mut Entry> {
        let known = self.find(check.key).is_some();
        if !known {
            if self.len() >= self.sweep_at.min(self.capacity) {
                self.sweep(at);
            }
            if self.len() >= self.capacity && !self.make_room() {
                return None;
            }
            metrics::hot_keys(1);
            self.keys.insert_unique(hash(check.key), Entry::new(*check), |entry| hash(entry.key()));
        }
        self.find(check.key)
    }

    /// Forgets what is of no use any longer.
    pub fn sweep(&mut self, at: Moment) {
        let before = self.len();
        self.keys.retain(|entry| !entry.is_idle(at));
        note_removed(before - self.len());
        self.sweep_at = (2 * self.keys.len()).max(SWEEP_AT_LEAST);
        if self.keys.capacity() > 8 * self.sweep_at {
            self.keys.shrink_to(self.sweep_at, |entry| hash(entry.key()));
        }
    }

    pub fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.keys.iter_mut()
    }

    /// Forgets any one key that holds nothing: it is asked for in the store again.
    fn make_room(&mut self) -> bool {
        let free = self.keys.iter().find(|entry| entry.is_free()).map(Entry::key);
        let place = free.and_then(|key| self.keys.find_entry(hash(key), |entry| entry.key() == key).ok());
        let removed = place.map(|place| place.remove()).is_some();
        note_removed(usize::from(removed));
        removed
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        note_removed(self.len());
    }
}

fn note_removed(keys: usize) {
    metrics::hot_keys(-isize::try_from(keys).unwrap_or_default());
}

/// A key is a digest already.
#[allow(clippy::cast_possible_truncation, reason = "its lower half; the upper names the lock")]
fn hash(key: CounterKey) -> u64 {
    key.0 as u64
}
