//! An endpoint as the policy in force has it, and what of it goes on through a reload: its connections, its state, its
//! addresses.

use super::Upstream;
use super::budget::Budget;
use super::health::Health;
use super::resolve::{Name, Place};
use super::state::State;
use super::tls::Tls;
use crate::identify::rendezvous;
use crate::telemetry::metrics::EndpointMetrics;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    pub transport: Transport,
    /// Where each core keeps its connections to it; see `Registry`.
    pub slot: usize,
    pub weight: u32,
    /// Of its text: its part in consistent hashing.
    pub hash: u64,
    pub place: Place,
    pub state: Arc<State>,
}

/// How an endpoint is spoken to.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct Transport {
    /// Of an `https` endpoint.
    pub tls: Option<Arc<Tls>>,
    pub http2: bool,
}

/// What the file says of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub upstream: &'a str,
    pub host: &'a str,
    pub port: u16,
    pub transport: &'a Transport,
    pub weight: u32,
    pub idle_timeout: Duration,
    pub resolve_every: Duration,
    pub health: Option<&'a Health>,
}

/// Gives each endpoint its slot, its state and its addresses, the same ones after every reload.
#[derive(Debug, Default)]
pub struct Registry {
    /// By upstream, endpoint, transport and idle timeout: with another one connections are made or kept by other rules.
    slots: HashMap<(String, String, Transport, Duration), usize>,
    /// By upstream and endpoint.
    states: HashMap<(String, String), Known>,
    names: HashMap<(String, Duration), Arc<Name>>,
    budgets: HashMap<String, Arc<Budget>>,
}

impl Registry {
    pub fn endpoint(&mut self, wanted: &Wanted<'_>) -> Endpoint {
        let text = Address(wanted.host, wanted.port).to_string();
        let free = self.slots.len();
        let key = (wanted.upstream.to_owned(), text.clone(), wanted.transport.clone(), wanted.idle_timeout);
        let slot = *self.slots.entry(key).or_insert(free);
        Endpoint {
            host: wanted.host.to_owned(),
            port: wanted.port,
            transport: wanted.transport.clone(),
            slot,
            weight: wanted.weight,
            hash: rendezvous::hash(&text),
            place: self.place(wanted),
            state: self.state(wanted, known_as(wanted)),
        }
    }

    /// An upstream's budget of retries.
    pub fn budget(&mut self, upstream: &str) -> Arc<Budget> {
        self.budgets.entry(upstream.to_owned()).or_default().clone()
    }

    /// Under other health checks, or spoken to in another way, an endpoint has to show anew what it is.
    fn state(&mut self, wanted: &Wanted<'_>, text: String) -> Arc<State> {
        let key = (wanted.upstream.to_owned(), text);
        let before = self.states.get(&key);
        if let Some(known) = before
            && known.health.as_ref() == wanted.health
            && known.transport == *wanted.transport
        {
            return known.state.clone();
        }
        let metrics = before.map(|known| known.state.metrics.clone());
        let metrics = metrics.unwrap_or_else(|| Arc::new(EndpointMetrics::new(&key.0, &key.1)));
        let state = Arc::new(State::new(&key.0, &key.1, metrics));
        let (health, transport) = (wanted.health.cloned(), wanted.transport.clone());
        self.states.insert(key, Known { health, transport, state: state.clone() });
        state
    }

    fn place(&mut self, wanted: &Wanted<'_>) -> Place {
        if let Ok(ip) = wanted.host.parse::<IpAddr>() {
            return Place::Address(SocketAddr::new(ip, wanted.port));
        }
        let name = self.names.entry((wanted.host.to_owned(), wanted.resolve_every));
        let name = name.or_insert_with(|| Arc::new(Name::new(wanted.host, wanted.resolve_every)));
        Place::Name(name.clone(), wanted.port)
    }

    /// Forgets what these upstreams, which are in force now, do not have. Slots are kept: each core has its connections by them.
    pub fn retain(&mut self, upstreams: &[Arc<Upstream>]) {
        let endpoints = || upstreams.iter().flat_map(|upstream| &upstream.endpoints);
        let states: HashSet<*const State> = endpoints().map(|endpoint| Arc::as_ptr(&endpoint.state)).collect();
        let names: HashSet<*const Name> = endpoints().filter_map(|e| e.place.name()).map(Arc::as_ptr).collect();
        self.states.retain(|_, Known { state, .. }| {
            let stays = states.contains(&Arc::as_ptr(state));
            if !stays {
                state.metrics.retire();
            }
            stays
        });
        self.names.retain(|_, name| names.contains(&Arc::as_ptr(name)));
        self.budgets.retain(|name, _| upstreams.iter().any(|upstream| upstream.name == *name));
    }
}

/// An endpoint's state, and what it was found out with.
#[derive(Debug)]
struct Known {
    health: Option<Health>,
    transport: Transport,
    state: Arc<State>,
}

struct Address<'a>(&'a str, u16);

impl fmt::Display for Address<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        if host.contains(':') { write!(formatter, "[{host}]:{port}") } else { write!(formatter, "{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Address(&self.host, self.port).fmt(formatter)
    }
}

/// The endpoint's name in its state and in metrics. `127.0.0.1` is `localhost` there, and one endpoint with it: on the metrics
/// page it could be taken for a client's address.
fn known_as(wanted: &Wanted<'_>) -> String {
    let host = if wanted.host == "127.0.0.1" { "localhost" } else { wanted.host };
    Address(host, wanted.port).to_string()
}
