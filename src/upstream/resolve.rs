//! Where an endpoint is: an address, or a name that is looked up again and again, off the path of requests.
//!
//! `getaddrinfo` tells no time to live, so the interval is the configuration's. What cannot be looked up keeps the
//! addresses that were found last.

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// How soon a name is looked up again of which nothing is known yet.
const UNKNOWN_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub enum Place {
    Address(SocketAddr),
    Name(Arc<Name>, u16),
}

/// A host's name, and the addresses that it has.
#[derive(Debug)]
pub struct Name {
    host: String,
    every: Duration,
    addresses: ArcSwap<Vec<IpAddr>>,
    /// Whose turn it is among the addresses.
    turn: AtomicUsize,
    /// Why the last look-up failed.
    trouble: Mutex<Option<String>>,
}

impl Name {
    #[must_use]
    pub fn new(host: &str, every: Duration) -> Self {
        Self {
            host: host.to_owned(),
            every,
            addresses: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            trouble: Mutex::default(),
        }
    }

    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.addresses.load().is_empty()
    }

    /// Looks the name up once. `lookup` is the system's outside of tests.
    pub async fn look_up<L>(&self, lookup: &L)
    where
        L: AsyncFn(&str) -> io::Result<Vec<IpAddr>>,
    {
        match lookup(&self.host).await {
            Ok(found) if found.is_empty() => self.failed("it has no address"),
            Ok(found) => self.found(found),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// Looks the name up for ever.
    pub async fn follow<L>(&self, lookup: L)
    where
        L: AsyncFn(&str) -> io::Result<Vec<IpAddr>>,
    {
        loop {
            sleep(if self.is_known() { self.every } else { self.every.min(UNKNOWN_AGAIN) }).await;
            self.look_up(&lookup).await;
        }
    }

    fn found(&self, mut found: Vec<IpAddr>) {
        // Name servers turn their answers round; that is no change.
        found.sort_unstable();
        found.dedup();
        let mended = self.trouble.lock().take().is_some();
        if **self.addresses.load() != found {
            tracing::info!(host = self.host, addresses = ?found, "name resolved");
            self.addresses.store(Arc::new(found));
        } else if mended {
            tracing::info!(host = self.host, "name resolved again, to the same addresses");
        }
    }

    fn failed(&self, why: &str) {
        let before = self.trouble.lock().replace(why.to_owned());
        if before.as_deref() != Some(why) {
            let kept = self.addresses.load();
            tracing::warn!(host = self.host, error = why, addresses = ?**kept, "name not resolved; the last addresses stay");
        }
    }

    /// One after the other, from the one whose turn it is, each with its part of the time that is left.
    async fn connect(&self, port: u16, within: Duration) -> io::Result<TcpStream> {
        let addresses = self.addresses.load_full();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + within;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has not been resolved");
        for (index, left) in (0..addresses.len()).zip((1..=addresses.len()).rev()) {
            let ip = addresses[first.wrapping_add(index) % addresses.len()];
            let time = deadline.saturating_duration_since(Instant::now());
            let parts = u32::try_from(left).unwrap_or(u32::MAX);
            match connect(SocketAddr::new(ip, port), time / parts).await {
                Ok(io) => return Ok(io),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Place {
    pub async fn connect(&self, within: Duration) -> io::Result<TcpStream> {
        match self {
            Self::Address(address) => connect(*address, within).await,
            Self::Name(name, port) => name.connect(*port, within).await,
        }
    }

    /// Whether connections to this address are still as they would be made now.
    #[must_use]
    pub fn includes(&self, address: IpAddr) -> bool {
        match self {
            Self::Address(_) => true,
            Self::Name(name, _) => name.addresses.load().contains(&address.to_canonical()),
        }
    }

    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Address(address) => vec![address.ip()],
            Self::Name(name, _) => name.addresses.load().to_vec(),
        }
    }

    #[must_use]
    pub fn name(&self) -> Option<&Arc<Name>> {
        if let Self::Name(name, _) = self { Some(name) } else { None }
    }
}

async fn connect(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let connecting = timeout(within, TcpStream::connect(address)).await;
    let io = connecting.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    io.set_nodelay(true)?;
    Ok(io)
}

/// The system's resolver, on a thread for what blocks.
pub async fn system(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((host, 0)).await?;
    Ok(found.map(|address| address.ip().to_canonical()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    const SECOND: Duration = Duration::from_secs(1);

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    fn known(name: &Name) -> Vec<IpAddr> {
        name.addresses.load().to_vec()
    }

    #[tokio::test]
    async fn what_cannot_be_looked_up_keeps_its_addresses() {
        let name = Name::new("api.test", SECOND);
        assert!(!name.is_known());
        name.look_up(&async |_: &str| Err(io::Error::other("no such name"))).await;
        assert!(!name.is_known());
        name.look_up(&async |host: &str| if host == "api.test" { Ok(vec![ip(2), ip(1), ip(2)]) } else { Ok(vec![]) })
            .await;
        assert_eq!(known(&name), [ip(1), ip(2)]);
        name.look_up(&async |_: &str| Err(io::Error::other("the name server is away"))).await;
        name.look_up(&async |_: &str| Ok(Vec::new())).await;
        assert_eq!(known(&name), [ip(1), ip(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_at_its_interval_and_sooner_while_nothing_is_known() {
        let name = Name::new("api.test", 30 * SECOND);
        let (asked, begun) = (RefCell::new(Vec::new()), Instant::now());
        let answering = Cell::new(false);
        let lookup = async |_: &str| {
            asked.borrow_mut().push(begun.elapsed().as_secs());
            if answering.replace(true) { Ok(vec![ip(1)]) } else { Err(io::Error::other("not yet")) }
        };
        let _ = timeout(70 * SECOND, name.follow(lookup)).await;
        assert_eq!(*asked.borrow(), [1, 2, 32, 62]);
    }

    #[tokio::test]
    async fn connections_go_to_all_addresses_in_turn_and_past_one_that_refuses() {
        let first = TcpListener::bind((ip(1), 0)).await.unwrap();
        let port = first.local_addr().unwrap().port();
        let second = TcpListener::bind((ip(2), port)).await.unwrap();
        let name = Name::new("api.test", SECOND);
        name.look_up(&async |_: &str| Ok(vec![ip(1), ip(2), ip(3)])).await;
        let mut reached = Vec::new();
        for _ in 0..6 {
            let io = name.connect(port, 5 * SECOND).await.unwrap();
            reached.push(io.peer_addr().unwrap().ip());
        }
        assert_eq!(reached, [ip(1), ip(2), ip(1), ip(1), ip(2), ip(1)], "nobody listens on the third");
        drop((first, second));
        assert!(name.connect(port, 5 * SECOND).await.is_err());
    }

    #[tokio::test]
    async fn the_system_knows_this_machine() {
        let found = system("localhost").await.unwrap();
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty(), "{found:?}");
    }
}
