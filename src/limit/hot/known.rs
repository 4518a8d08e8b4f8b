//! What can be known and held of a key, and what is said of it. What becomes of it is `entry`'s.

use crate::clock::Micros;
use crate::store::{Returned, StoreError};

/// Told to those who wait for a question on its way: it was answered, or it failed.
pub type Landed = Option<StoreError>;

/// Units charged in the store and not spent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub(super) units: u64,
    /// By the store's clock, as it is to be told when they are given back.
    pub(super) charged_at: Micros,
    /// Until then they may be spent.
    pub(super) ends_at: Micros,
    /// When their window is over, and with it every claim to them.
    pub(super) over_at: Micros,
    /// Not before then are they given back again, after the store did not take them.
    pub(super) retry_at: Micros,
}

impl Held {
    /// As it is told to the store.
    #[must_use]
    pub fn returned(self) -> Returned {
        Returned { units: self.units, charged_at: self.charged_at }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// Of the request that was refused: larger ones are refused as well.
    pub(super) cost: u64,
    pub(super) until: Micros,
    /// `None`: no wait helps.
    pub(super) passes_at: Option<Micros>,
}

/// The limit as the store last told it, less what was spent here since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    /// By the store's clock.
    pub(super) told_at: Micros,
    pub(super) remaining: u64,
    pub(super) whole_at: Micros,
    pub(super) until: Micros,
    /// Who decides without the store has been told, and counts on from there.
    pub(super) is_handed_over: bool,
}

/// What the store last told of a key, for whoever decides without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastTold {
    pub remaining: u64,
    /// By this process's clock.
    pub at: Micros,
}

/// How a key stands to a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Leased,
    Denied,
    /// A question is on its way.
    Busy,
    Unknown,
}

/// What came of an answer, for whoever brings it.
#[derive(Debug, Default)]
pub(super) struct Landing {
    /// The refusal does not hold: units have come in meanwhile, or are about to.
    pub is_stale: bool,
    /// Units that were to go back and are lost to this window.
    pub lost: u64,
    /// Somebody has to look after a lease.
    pub needs_timer: bool,
    /// Units held here that the answer does not count as left.
    pub held: u64,
}

/// When a lease is to be looked after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    Nothing,
    /// A question took it along; another lease may come of that.
    InFlight,
    At(Micros),
    Now(Held),
}
