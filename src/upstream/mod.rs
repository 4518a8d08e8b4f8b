//! The way to the API behind: whose turn it is among the endpoints, connections kept per core, and a second try for what
//! never got there.

pub mod answer;
mod attempt;
pub mod balance;
pub mod connection;
mod http2;
pub mod pool;
pub mod send;
pub mod stream;
pub mod tls;

pub use send::{Failed, Outgoing, Upstreams};

use balance::Rotation;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tls::Tls;

/// A named upstream as the policy in force has it; shared by all cores.
#[derive(Debug)]
pub struct Upstream {
    pub name: String,
    pub endpoints: Vec<Endpoint>,
    pub rotation: Rotation,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    pub retries: u32,
    /// From sending a request to the head of its answer.
    pub duration: crate::telemetry::metrics::Seconds,
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    pub transport: Transport,
    /// Where each core keeps its connections to it; see `Slots`.
    pub slot: usize,
    pub weight: u32,
    state: Arc<State>,
}

/// How an endpoint is spoken to.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct Transport {
    /// Of an `https` endpoint.
    pub tls: Option<Arc<Tls>>,
    pub http2: bool,
}

/// Where an endpoint is, and how it is spoken to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    pub host: String,
    pub port: u16,
    pub transport: Transport,
}

/// What the last connection to an endpoint came to, for all cores.
#[derive(Debug, Default)]
struct State {
    unreachable: AtomicBool,
}

impl Endpoint {
    /// Whether it could be connected to when it was last tried.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        !self.state.unreachable.load(Ordering::Relaxed)
    }

    fn connected(&self, reachable: bool) {
        if self.is_reachable() != reachable {
            self.state.unreachable.store(!reachable, Ordering::Relaxed);
        }
    }
}

/// Gives each endpoint its slot, the same one after every reload, so that its idle connections stay in use.
#[derive(Debug, Default)]
pub struct Slots {
    known: HashMap<(Address, Duration), (usize, Arc<State>)>,
}

impl Slots {
    /// The endpoint at this address. Another idle timeout is another slot: its connections are kept by other rules.
    pub fn endpoint(&mut self, address: Address, weight: u32, idle_timeout: Duration) -> Endpoint {
        let free = self.known.len();
        let known = self.known.entry((address.clone(), idle_timeout));
        let (slot, state) = known.or_insert_with(|| (free, Arc::default())).clone();
        let Address { host, port, transport } = address;
        Endpoint { host, port, transport, slot, weight, state }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}
