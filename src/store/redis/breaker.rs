//! When a shard is left alone. Shared by all cores, without locks.
//!
//! A shard starts unknown, and its first answer makes it up. It opens after a number of failures in a row, or at once when
//! the failure is a lasting one. Open, it is closed by a probe only: a reply that was on its way when it opened says nothing
//! about the next one.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const UNKNOWN: u8 = 0;
const UP: u8 = 1;
const OPEN: u8 = 2;

/// What an event changed, told to exactly one caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    None,
    Up,
    /// It answers after failures that had not opened it.
    Recovered,
    Opened,
}

#[derive(Debug)]
pub(super) struct Breaker {
    failures_max: AtomicU32,
    phase: AtomicU8,
    /// In a row.
    failures: AtomicU32,
    recoveries: AtomicU64,
    openings: AtomicU64,
}

impl Breaker {
    pub fn new(failures_max: u32) -> Self {
        Self {
            failures_max: AtomicU32::new(failures_max.max(1)),
            phase: AtomicU8::new(UNKNOWN),
            failures: AtomicU32::new(0),
            recoveries: AtomicU64::new(0),
            openings: AtomicU64::new(0),
        }
    }

    /// How many failures in a row open it from now on.
    pub fn opens_after(&self, failures_max: u32) {
        self.failures_max.store(failures_max.max(1), Ordering::Relaxed);
    }

    pub fn is_open(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OPEN
    }

    pub fn is_up(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == UP
    }

    /// Whether it ever answered, or is known not to.
    pub fn has_answered(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != UNKNOWN
    }

    /// How often the shard answered again after failures, whether or not they had opened it.
    pub fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Acquire)
    }

    /// How often it has opened; a connection made before the last opening is not trusted.
    pub fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    /// A call was answered.
    pub fn answered(&self) -> Change {
        match self.phase.load(Ordering::Relaxed) {
            OPEN => return Change::None,
            UP => {
                // The common case stays a read: all cores share this line.
                if self.failures.load(Ordering::Relaxed) != 0 && self.failures.swap(0, Ordering::Relaxed) != 0 {
                    self.recoveries.fetch_add(1, Ordering::Release);
                    return Change::Recovered;
                }
                return Change::None;
            }
            _ => {}
        }
        if self.moves(UNKNOWN, UP) { Change::Up } else { Change::None }
    }

    /// A call failed; `lasting` when the next would fail as well.
    pub fn failed(&self, lasting: bool) -> Change {
        let phase = self.phase.load(Ordering::Relaxed);
        if phase == OPEN {
            return Change::None;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let opens = lasting || failures >= self.failures_max.load(Ordering::Relaxed);
        if opens && self.moves(phase, OPEN) {
            self.openings.fetch_add(1, Ordering::Relaxed);
            return Change::Opened;
        }
        Change::None
    }

    /// A probe was answered.
    pub fn probed(&self) -> Change {
        self.failures.store(0, Ordering::Relaxed);
        if self.moves(OPEN, UP) {
            self.recoveries.fetch_add(1, Ordering::Release);
            return Change::Up;
        }
        self.answered()
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(failures_max: u32) -> Breaker {
        let breaker = Breaker::new(failures_max);
        assert_eq!(breaker.answered(), Change::Up);
        breaker
    }

    #[test]
    fn it_opens_at_the_given_failure_in_a_row_and_says_so_once() {
        let breaker = up(3);
        assert_eq!([breaker.failed(false), breaker.failed(false)], [Change::None; 2]);
        assert_eq!(breaker.answered(), Change::Recovered);
        assert_eq!([breaker.failed(false), breaker.failed(false)], [Change::None; 2]);
        assert_eq!(breaker.failed(false), Change::Opened);
        assert_eq!(breaker.failed(false), Change::None);
        assert!(breaker.is_open());
    }

    #[test]
    fn only_a_probe_closes_it() {
        let breaker = up(1);
        assert_eq!(breaker.failed(false), Change::Opened);
        assert_eq!(breaker.answered(), Change::None);
        assert!(breaker.is_open());
        assert_eq!(breaker.probed(), Change::Up);
        assert!(breaker.is_up());
        assert_eq!(breaker.recoveries(), 1);
    }

    #[test]
    fn a_shard_that_never_answered_is_neither_up_nor_open_and_opens_like_another() {
        let breaker = Breaker::new(2);
        assert!(!breaker.is_up() && !breaker.is_open() && !breaker.has_answered());
        assert_eq!([breaker.failed(false), breaker.failed(false)], [Change::None, Change::Opened]);
        assert_eq!(Breaker::new(5).failed(true), Change::Opened);
    }

    #[test]
    fn a_lasting_failure_opens_it_at_once() {
        assert_eq!(up(5).failed(true), Change::Opened);
    }

    #[test]
    fn an_answer_after_failures_that_did_not_open_it_is_a_recovery_too() {
        let breaker = up(5);
        breaker.failed(false);
        assert_eq!([breaker.answered(), breaker.answered()], [Change::Recovered, Change::None]);
        assert_eq!(breaker.recoveries(), 1);
    }

    #[test]
    fn of_many_threads_one_sees_it_open_and_one_sees_it_close() {
        let breaker = up(4);
        let count = |event: &(dyn Fn() -> Change + Sync), change| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(event)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).filter(|seen| *seen == change).count()
            })
        };
        for _ in 0..50 {
            assert_eq!(count(&|| breaker.failed(false), Change::Opened), 1);
            assert_eq!(count(&|| breaker.probed(), Change::Up), 1);
        }
    }
}
