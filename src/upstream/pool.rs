//! One core's connections to one endpoint: of HTTP/1.1 those that are idle, the last used first, and of HTTP/2 all.

use super::connection::Connection;
use super::http2::Links;
use super::resolve::Place;
use crate::clock;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// More idle connections than this to one endpoint from one core are closed, not kept.
const MAX_IDLE: usize = 256;

#[derive(Debug)]
pub struct Pool {
    idle: RefCell<Vec<(Connection, Instant)>>,
    pub(super) http2: Links,
    idle_timeout: Duration,
    place: Place,
}

impl Pool {
    #[must_use]
    pub fn new(idle_timeout: Duration, place: Place) -> Self {
        Self { idle: RefCell::new(Vec::new()), http2: Links::new(idle_timeout), idle_timeout, place }
    }

    /// A connection that is still open and was used less than the idle timeout ago.
    pub fn take(&self) -> Option<Connection> {
        let (mut idle, now) = (self.idle.borrow_mut(), clock::now());
        while let Some((mut connection, since)) = idle.pop() {
            if now.duration_since(since) < self.idle_timeout && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    pub fn put(&self, mut connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            connection.reused = true;
            idle.push((connection, clock::now()));
        }
    }

    /// Closes what has been idle for too long, was closed by the endpoint, or leads to where its name no longer does; called
    /// every few seconds.
    pub fn sweep(&self) {
        let (now, limit) = (clock::now(), self.idle_timeout);
        let here = |peer: io::Result<SocketAddr>| peer.is_ok_and(|peer| self.place.includes(peer.ip()));
        self.http2.sweep();
        self.http2.keep(here);
        self.idle.borrow_mut().retain_mut(|(connection, since)| {
            now.duration_since(*since) < limit && connection.is_quiet() && here(connection.io.peer_addr())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::resolve::Name;
    use crate::upstream::stream::Stream;
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn a_connection_that_was_idle_for_too_long_is_not_used_though_no_sweep_came() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for (idle_timeout, kept) in [(Duration::from_hours(1), true), (Duration::ZERO, false)] {
            let address = listener.local_addr().unwrap();
            let io = TcpStream::connect(address).await.unwrap();
            let _endpoint = listener.accept().await.unwrap();
            let pool = Pool::new(idle_timeout, Place::Address(address));
            pool.put(Connection::new(Stream::Tcp(io)));
            assert_eq!(pool.take().is_some(), kept);
        }
    }

    #[tokio::test]
    async fn a_connection_to_where_its_name_no_longer_leads_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let name = Arc::new(Name::new("api.test", Duration::from_secs(1)));
        name.look_up(&async |_: &str| Ok(vec![address.ip()])).await;
        let pool = Pool::new(Duration::from_hours(1), Place::Name(name.clone(), address.port()));
        pool.put(Connection::new(Stream::Tcp(TcpStream::connect(address).await.unwrap())));
        let _endpoint = listener.accept().await.unwrap();
        pool.sweep();
        assert_eq!(pool.idle.borrow().len(), 1);
        name.look_up(&async |_: &str| Ok(vec!["127.0.0.9".parse().unwrap()])).await;
        pool.sweep();
        assert_eq!(pool.idle.borrow().len(), 0);
    }
}
