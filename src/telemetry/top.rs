//! The keys refused most in the last minutes, in bounded memory whatever the number of keys.
//!
//! A Space-Saving sketch (Metwally et al. 2005): a key that was refused more often than 1/128 of all refusals is in it for
//! certain, and a count is too high by at most what it says. Two windows follow each other, so what is told covers the last
//! two and a half to five minutes. One `Top` per core; they are added up when someone looks.

use crate::clock::Micros;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

const ENTRIES: usize = 128;
const WINDOW_US: Micros = 150_000_000;
const SHOWN_BYTES_MAX: usize = 128;

/// Whose counter it is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub policy: Arc<str>,
    pub limit: Arc<str>,
    /// See [`shown`] and [`hashed`].
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub named: Named,
    /// Never too low.
    pub refusals: u64,
    /// By how much `refusals` may be too high.
    pub error: u64,
}

/// A key's value that is no secret (an address, a host, a path), bounded.
#[must_use]
pub fn shown(value: &str) -> String {
    value[..value.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

/// Stands for a value that may be a secret (a header, a cookie, a query value, a token): 24 bits of its counter's digest,
/// enough to tell two apart in a list and to nobody's use beyond it.
#[must_use]
pub fn hashed(digest: u128) -> String {
    format!("#{:06x}", digest >> 104)
}

#[derive(Debug, Default)]
pub struct Top(Mutex<Windows>);

#[derive(Debug, Default)]
struct Windows {
    began_us: Micros,
    current: Sketch,
    previous: Sketch,
}

/// Digests lie apart from the rest: a look-up reads 2 KiB in a row, and there is nothing to hash.
#[derive(Debug, Default)]
struct Sketch {
    digests: Vec<u128>,
    entries: Vec<Refused>,
}

impl Top {
    /// Counts one refusal. `named` is asked only when the key is not yet in the sketch.
    pub fn count(&self, digest: u128, now_us: Micros, named: impl FnOnce() -> Named) {
        let mut windows = self.0.lock();
        windows.turn(now_us);
        windows.current.count(digest, named);
    }

    /// The worst keys of all cores, most refusals first.
    #[must_use]
    pub fn worst<'a>(tops: impl IntoIterator<Item = &'a Self>, now_us: Micros) -> Vec<Refused> {
        let mut sums: HashMap<u128, Refused> = HashMap::new();
        for top in tops {
            let mut windows = top.0.lock();
            windows.turn(now_us);
            for sketch in [&windows.current, &windows.previous] {
                for (&digest, entry) in sketch.digests.iter().zip(&sketch.entries) {
                    sums.entry(digest)
                        .and_modify(|sum| {
                            sum.refusals += entry.refusals;
                            sum.error += entry.error;
                        })
                        .or_insert_with(|| entry.clone());
                }
            }
        }
        let mut worst: Vec<(u128, Refused)> = sums.into_iter().collect();
        worst.sort_by_key(|(digest, entry)| (std::cmp::Reverse(entry.refusals), *digest));
        worst.truncate(ENTRIES);
        worst.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl Windows {
    fn turn(&mut self, now_us: Micros) {
        let age_us = now_us.saturating_sub(self.began_us);
        if age_us < WINDOW_US {
            return;
        }
        self.previous = std::mem::take(&mut self.current);
        if age_us >= 2 * WINDOW_US {
            self.previous = Sketch::default();
        }
        self.began_us = now_us;
    }
}

impl Sketch {
    fn count(&mut self, digest: u128, named: impl FnOnce() -> Named) {
        if let Some(at) = self.digests.iter().position(|&known| known == digest) {
            self.entries[at].refusals += 1;
        } else if self.entries.len() < ENTRIES {
            self.digests.push(digest);
            self.entries.push(Refused { named: named(), refusals: 1, error: 0 });
        } else if let Some((at, least)) =
            self.entries.iter().map(|entry| entry.refusals).enumerate().min_by_key(|e| e.1)
        {
            // The newcomer may have been here before: it inherits the count it replaces, and says so.
            self.digests[at] = digest;
            self.entries[at] = Refused { named: named(), refusals: least + 1, error: least };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(key: u128) -> Named {
        Named { policy: "p".into(), limit: "l".into(), key: key.to_string() }
    }

    fn keys(tops: &[Top], now_us: Micros) -> Vec<(String, u64)> {
        Top::worst(tops, now_us).into_iter().map(|entry| (entry.named.key, entry.refusals)).collect()
    }

    #[test]
    fn the_worst_keys_come_first_added_up_over_the_cores() {
        let tops = [Top::default(), Top::default()];
        for (core, key, times) in [(0, 1, 3), (1, 1, 4), (0, 2, 5), (1, 3, 9)] {
            (0..times).for_each(|_| tops[core].count(key, 1, || named(key)));
        }
        assert_eq!(keys(&tops, 1), [("3".into(), 9), ("1".into(), 7), ("2".into(), 5)]);
    }

    #[test]
    fn a_flood_of_keys_hides_no_heavy_one_and_needs_no_more_memory() {
        let top = [Top::default()];
        for number in 0..20_000 {
            top[0].count(1_000 + number, 1, || named(1_000 + number));
            if number % 50 == 0 {
                top[0].count(7, 1, || named(7));
            }
        }
        let worst = Top::worst(&top, 1);
        assert_eq!(worst.len(), ENTRIES);
        let heavy = worst.iter().find(|entry| entry.named.key == "7").expect("400 of 20 400 is more than 1/128");
        assert!(heavy.refusals >= 400 && heavy.refusals - heavy.error <= 400, "{heavy:?}");
    }

    #[test]
    fn what_is_older_than_two_windows_is_forgotten() {
        let top = [Top::default()];
        top[0].count(1, 10 * WINDOW_US, || named(1));
        assert_eq!(keys(&top, 11 * WINDOW_US).len(), 1, "the window before still counts");
        top[0].count(2, 11 * WINDOW_US, || named(2));
        assert_eq!(keys(&top, 12 * WINDOW_US), [("2".into(), 1)]);
        assert_eq!(keys(&top, 20 * WINDOW_US), []);
    }

    #[test]
    fn a_shown_value_is_bounded_and_a_secret_is_a_short_hash() {
        assert_eq!(shown(&"ü".repeat(1000)).len(), SHOWN_BYTES_MAX);
        assert_eq!(hashed(0x3fa9_c1ff_ffff_ffff_ffff_ffff_ffff_ffff), "#3fa9c1");
    }
}
