//! The way to the API behind: whose turn it is among the endpoints, connections kept per core, and a second try for what
//! never got there.

pub mod answer;
pub mod balance;
pub mod connection;
pub mod pool;
pub mod send;

pub use send::{Failed, Outgoing, Upstreams};

use balance::Rotation;
use std::collections::HashMap;
use std::time::Duration;

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// Where each core keeps its connections to it; see `Slots`.
    pub slot: usize,
}

/// Gives each endpoint its slot, the same one after every reload, so that its idle connections stay in use.
#[derive(Debug, Default)]
pub struct Slots {
    known: HashMap<(String, u16, Duration), usize>,
}

impl Slots {
    /// The endpoint at this address. Another idle timeout is another slot: its connections are kept by other rules.
    pub fn endpoint(&mut self, host: &str, port: u16, idle_timeout: Duration) -> Endpoint {
        let free = self.known.len();
        let slot = *self.known.entry((host.to_owned(), port, idle_timeout)).or_insert(free);
        Endpoint { host: host.to_owned(), port, slot }
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
