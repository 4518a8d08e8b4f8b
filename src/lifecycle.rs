//! Where the process is in its life, told to whoever asks: starting, serving, draining.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Starting,
    Serving,
    Draining,
}

/// Goes forward only.
#[derive(Debug, Default)]
pub struct Lifecycle(AtomicU8);

impl Lifecycle {
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Draining,
        }
    }

    pub fn serving(&self) {
        self.0.fetch_max(1, Ordering::Relaxed);
    }

    pub fn draining(&self) {
        self.0.fetch_max(2, Ordering::Relaxed);
    }
}
