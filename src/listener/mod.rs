//! Sockets to connections: accepting, who the client is, telling HTTP/1.1 from HTTP/2, bounds on number and time, draining.

mod answer;
mod arrival;
mod certificates;
mod connection;
pub mod drain;
mod http1;
mod http2;
mod pace;
pub mod per_client;
mod plain;
pub mod proxy_protocol;
pub mod socket;
mod spare;
mod streams;
mod target;
pub mod tls;
mod tunnel;

use crate::proxy::{Bounds, Gateway};
use crate::telemetry::metrics::ListenerMetrics;
use arrival::{Arrived, Counted};
use drain::Drain;
use per_client::PerClient;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tls::Tls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Out of file descriptors: a pause, so that closing connections can help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the connections that were begun before new ones were turned away: the slowest of round trips.
const LAST_HANDSHAKES: Duration = Duration::from_millis(300);

/// A listener's settings and counts, shared by the cores that serve it.
#[derive(Debug)]
pub struct Settings {
    pub bounds: Arc<Bounds>,
    /// `None`: plain.
    pub tls: Option<Tls>,
    pub proxy_protocol: bool,
    pub max_connections: usize,
    /// `None`: unlimited.
    pub per_client: Option<PerClient>,
    pub open: Arc<AtomicUsize>,
    pub metrics: ListenerMetrics,
}

/// One core's socket of a listener.
#[derive(Debug)]
pub struct Listener {
    /// Replaced by a reload; a connection keeps what it began with.
    pub settings: RefCell<Arc<Settings>>,
    stop: Notify,
    inherited: bool,
}

impl Listener {
    #[must_use]
    pub fn new(settings: Arc<Settings>, inherited: bool) -> Rc<Self> {
        Rc::new(Self { settings: RefCell::new(settings), stop: Notify::new(), inherited })
    }

    /// Takes what is already waiting or on its way, then no more.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Accepts until stopped.
    pub async fn accept(self: Rc<Self>, socket: TcpListener, gateway: Rc<Gateway>, drain: Rc<Drain>) {
        let _open = drain.clone().enter().await;
        let mut accepting = std::pin::pin!(self.accept_all(&socket, &gateway, &drain));
        tokio::select! {
            biased;
            () = &mut accepting => {}
            () = self.stop.notified() => {}
        }
        // Of an inherited one what waits is another's, as are those to come; but that one need not be there yet.
        if !self.inherited {
            match socket::turn_away(&socket) {
                Ok(()) => drop(timeout(LAST_HANDSHAKES, accepting).await),
                Err(error) => tracing::warn!(%error, "connections that are on their way may be reset"),
            }
        }
        // A closed socket resets the connections that wait in its queue; they were accepted as far as the client knows.
        while let Some((io, address)) = waiting(&socket).await {
            self.admit(io, address, &gateway, &drain);
        }
    }

    async fn accept_all(&self, socket: &TcpListener, gateway: &Rc<Gateway>, drain: &Rc<Drain>) {
        loop {
            match socket.accept().await {
                Ok((io, address)) => self.admit(io, address, gateway, drain),
                Err(error) => pause(&error).await,
            }
        }
    }

    fn admit(&self, io: TcpStream, address: SocketAddr, gateway: &Rc<Gateway>, drain: &Rc<Drain>) {
        let settings = self.settings.borrow();
        if settings.open.fetch_add(1, Ordering::Relaxed) >= settings.max_connections {
            settings.open.fetch_sub(1, Ordering::Relaxed);
            settings.metrics.rejected.inc();
            return;
        }
        settings.metrics.active.inc();
        let (gateway, drain) = (gateway.clone(), drain.clone());
        let counted = Counted(settings.clone());
        let arrived = Arrived { io, address, counted, gateway: gateway.clone(), drain: drain.clone() };
        match settings.tls.clone() {
            None => tokio::task::spawn_local(arrival::serve(Box::pin(arrived.begin_plain()), gateway, drain)),
            Some(tls) => tokio::task::spawn_local(arrival::serve(Box::pin(arrived.begin_tls(tls)), gateway, drain)),
        };
    }
}

async fn pause(error: &io::Error) {
    // A client that left before it was accepted is nothing to wait for.
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tracing::warn!(%error, "could not accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn waiting(socket: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    poll_fn(|cx| match socket.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(accepted.ok()),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection is its task, and little else. A future passed by value and kept across an await doubles it.
    #[test]
    fn a_connections_task_is_small() {
        fn size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
            size_of::<F>()
        }
        // With some 130 bytes that tokio puts around it; the allocator's sizes are 4096, 5120 and 6144.
        let (plain, tls) = (
            size(|begin, gateway, drain| arrival::serve(Box::pin(Arrived::begin_plain(begin)), gateway, drain)),
            size(|(begin, tls), gateway, drain| {
                arrival::serve(Box::pin(Arrived::begin_tls(begin, tls)), gateway, drain)
            }),
        );
        assert!(plain <= 4224 && tls <= 4224, "{plain} and {tls} bytes");
    }
}
