//! What a request owes to the connection it came by.

use crate::route::LastHost;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The other end of a client's connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The IP address as it is told upstream; IPv4 mapped into IPv6 is IPv4.
    pub text: String,
    /// By which the connection was made, as it is told upstream: `http` or `https`.
    pub scheme: &'static str,
    pub bounds: Arc<Bounds>,
    pub last_host: LastHost,
}

impl Peer {
    #[must_use]
    pub fn new(address: SocketAddr, scheme: &'static str, bounds: Arc<Bounds>) -> Self {
        Self { address, text: address.ip().to_canonical().to_string(), scheme, bounds, last_host: LastHost::default() }
    }
}

/// A listener's bounds on what its clients send, and how slowly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// For a request's head, from its first octet.
    pub header_timeout: Duration,
    /// Between two requests on a connection.
    pub keep_alive_timeout: Duration,
    /// How long a client may send nothing of a body that is waited for, or take nothing of an answer that is ready for it.
    pub stall_timeout: Duration,
    pub max_header_bytes: usize,
    /// `u64::MAX`: unlimited.
    pub max_body_bytes: u64,
}

impl Bounds {
    /// How long a request's body may be waited for in all, besides what its octets earn (`listener::pace`): 20 s by default,
    /// as in Apache.
    #[must_use]
    pub fn body_grace(&self) -> Duration {
        2 * self.header_timeout
    }
}
