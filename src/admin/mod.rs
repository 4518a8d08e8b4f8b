//! The admin listener: health, metrics, status, reload, single counters and the worst keys.
//!
//! It owns HTTP, access and shapes; everything it tells or does comes from the process through `Control`. Shapes are stable:
//! members are added, never renamed.

pub mod access;
pub mod counters;
pub mod page;
pub mod server;
pub mod status;
pub mod top;

pub use counters::{Counter, CounterView};
pub use server::serve;
pub use status::Status;

use crate::telemetry::{metrics, top::Refused};
use crate::units::Secret;
use std::fmt;

/// What the admin listener needs of the process. Lives on one thread; nothing need be `Send`.
#[allow(
    async_fn_in_trait,
    reason = "the admin listener runs on one thread, so a future that cannot move is what is wanted"
)]
pub trait Control {
    fn readiness(&self) -> Readiness;
    fn status(&self) -> Status;
    /// Of the configuration in force; asked for at each call, since a reload may change it.
    fn token(&self) -> Option<Secret>;
    /// The keys refused most, worst first: `Top::worst` over the cores.
    fn worst(&self) -> Vec<Refused>;
    /// As on SIGHUP; an error holds the problems, one a line.
    async fn reload(&self) -> Result<(), String>;
    /// How a counter stands; charges nothing.
    async fn inspect(&self, counter: &Counter) -> Result<CounterView, ControlError>;
    /// Makes a counter whole.
    async fn reset(&self, counter: &Counter) -> Result<(), ControlError>;

    /// The page of `GET /metrics`.
    fn metrics(&self) -> String {
        metrics::render()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Listeners do not serve yet.
    Starting,
    Ready {
        /// The shards whose keys are decided by `on_failure`.
        degraded: Vec<String>,
    },
    Draining,
}

impl Readiness {
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready { .. } => "ready",
            Self::Draining => "draining",
        }
    }
}

/// The body of `GET /readyz`.
impl fmt::Display for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => formatter.write_str("starting"),
            Self::Draining => formatter.write_str("draining"),
            Self::Ready { degraded } if degraded.is_empty() => formatter.write_str("ok"),
            Self::Ready { degraded } => write!(formatter, "ok, store degraded: {}", degraded.join(", ")),
        }
    }
}

/// Why a counter could not be read or reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// No such policy or limit.
    Unknown(String),
    /// The key does not fit the limit's sources (a part too few, no address).
    BadKey(String),
    /// Its shard gave no answer.
    Unavailable(String),
}
