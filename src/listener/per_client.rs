//! How many connections each client has open on a listener. A client is what it is for limits: an address, or all addresses
//! of one prefix. Looked at once a connection, and only where there is a bound.

use crate::identify::Prefixes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The bound of a listener, and the counts that its cores and its reloads share.
#[derive(Clone, Debug)]
pub struct PerClient {
    pub max: usize,
    pub prefixes: Prefixes,
    pub open: Arc<Open>,
}

/// Clients with connections; one that has none is not in it.
#[derive(Debug, Default)]
pub struct Open(Mutex<HashMap<IpAddr, usize>>);

/// A connection in its client's count, taken out when dropped.
#[derive(Debug)]
pub struct Counted {
    client: IpAddr,
    open: Arc<Open>,
}

impl PerClient {
    /// `None`: the client has as many as it may have.
    #[must_use]
    pub fn enter(&self, address: IpAddr) -> Option<Counted> {
        let client = self.prefixes.group(address);
        let mut open = self.open.0.lock();
        let count = open.entry(client).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Counted { client, open: self.open.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.open.0.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_prefix_and_gets_its_place_back() {
        let bound = PerClient { max: 2, prefixes: Prefixes { ipv4: 32, ipv6: 64 }, open: Arc::default() };
        let enter = |address: &str| bound.enter(address.parse().unwrap());
        let (first, second) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(first.is_some() && second.is_some());
        assert!(enter("2001:db8::3").is_none(), "a third of the /64");
        assert!(enter("2001:db8:0:1::1").is_some(), "another /64");
        drop(first);
        assert!(enter("2001:db8::3").is_some());
        drop(second);
        assert!(bound.open.0.lock().is_empty(), "clients that left are forgotten");
    }

    #[test]
    fn a_mapped_address_is_its_ipv4_client() {
        let bound = PerClient { max: 1, prefixes: Prefixes { ipv4: 24, ipv6: 64 }, open: Arc::default() };
        let first = bound.enter("192.0.2.1".parse().unwrap());
        assert!(first.is_some());
        assert!(bound.enter("::ffff:192.0.2.77".parse().unwrap()).is_none());
    }
}
