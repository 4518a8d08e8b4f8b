//! The way to the API behind: which endpoint takes a request, connections kept per core, and a second try for what never
//! got there.
//!
//! `choose` picks an endpoint by what `state` knows of it, with `balance`; `send` tries and repeats within the `budget`;
//! `attempt` is one try. `eject` judges endpoints by the requests they failed, `health` asks them, `resolve` finds where they are.

pub mod answer;
mod attempt;
pub mod balance;
pub mod budget;
pub mod choose;
pub mod connection;
pub mod eject;
pub mod endpoint;
pub mod health;
mod http2;
pub mod pool;
pub mod resolve;
pub mod send;
pub mod state;
pub mod stream;
pub mod tls;

pub use endpoint::{Endpoint, Registry};
pub use send::{Failed, Outgoing, Sent, Upstreams, Wish};

use crate::telemetry::metrics::{RetryMetrics, Seconds};
use balance::{Balance, Rotation};
use budget::Budget;
use eject::Ejection;
use health::Health;
use std::sync::Arc;
use std::time::Duration;

/// A named upstream as the policy in force has it; shared by all cores.
#[derive(Debug)]
pub struct Upstream {
    pub name: String,
    /// At least one.
    pub endpoints: Vec<Endpoint>,
    pub balance: Balance,
    pub rotation: Rotation,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    pub retries: u32,
    /// Percent of the requests.
    pub retry_budget: u64,
    pub budget: Arc<Budget>,
    pub ejection: Ejection,
    pub health: Option<Health>,
    /// Zero: none.
    pub slow_start: Duration,
    /// Requests at one endpoint at a time.
    pub max_connections: Option<usize>,
    /// From sending a request to the head of its answer.
    pub duration: Seconds,
    pub retried: RetryMetrics,
}

impl Upstream {
    /// A second has passed: what ends by itself ends, though no request comes by.
    pub fn tick(&self) {
        self.budget.tick(self.duration.count());
        let now = crate::clock::now();
        self.endpoints.iter().for_each(|endpoint| endpoint.state.settle(now, &self.ejection, self.slow_start));
    }

    /// When a client may ask again that no endpoint was healthy for.
    #[must_use]
    pub fn recovers_within(&self) -> Duration {
        self.health.as_ref().map_or(Duration::ZERO, |health| health.interval)
    }
}
