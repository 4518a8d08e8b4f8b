//! Sockets to connections: accepting, telling HTTP/1.1 from HTTP/2, bounds on number and time, draining.

mod answer;
mod connection;
pub mod drain;
mod http1;
mod http2;
mod pace;
mod spare;
mod streams;
mod target;
mod tunnel;

use crate::proxy::{Bounds, Gateway, Peer};
use crate::telemetry::metrics::ListenerMetrics;
use bytes::BytesMut;
use drain::Drain;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

const BACKLOG: i32 = 4096;
/// A client that vanished without a word is found out even where nothing is due from it: a tunnel, a stream of events.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
/// Out of file descriptors: a pause, so that closing connections can help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener's settings and counts, shared by the cores that serve it.
#[derive(Clone, Debug)]
pub struct Settings {
    pub bounds: Arc<Bounds>,
    pub max_connections: usize,
    pub open: Arc<AtomicUsize>,
    pub metrics: ListenerMetrics,
}

/// One core's socket of a listener.
#[derive(Debug)]
pub struct Listener {
    /// Replaced by a reload; a connection keeps what it began with.
    pub settings: RefCell<Settings>,
    stop: Notify,
}

impl Listener {
    #[must_use]
    pub fn new(settings: Settings) -> Rc<Self> {
        Rc::new(Self { settings: RefCell::new(settings), stop: Notify::new() })
    }

    /// Takes what is already waiting, then no more.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Accepts until stopped.
    pub async fn accept(self: Rc<Self>, socket: TcpListener, gateway: Rc<Gateway>, drain: Rc<Drain>) {
        loop {
            tokio::select! {
                biased;
                accepted = socket.accept() => match accepted {
                    Ok((io, address)) => self.admit(io, address, &gateway, &drain),
                    Err(error) => pause(&error).await,
                },
                () = self.stop.notified() => break,
            }
        }
        // A closed socket resets the connections that wait in its queue; they were accepted as far as the client knows.
        while let Some((io, address)) = waiting(&socket).await {
            self.admit(io, address, &gateway, &drain);
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
        let counted = Counted(settings.clone());
        let peer = Rc::new(Peer::new(address, settings.bounds.clone()));
        let (gateway, drain) = (gateway.clone(), drain.clone());
        tokio::task::spawn_local(async move {
            let _open = drain.clone().enter().await;
            let _counted = counted;
            serve(io, peer, gateway, drain).await;
        });
    }
}

/// An open connection in the listener's counts.
struct Counted(Settings);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.active.dec();
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

async fn serve(io: TcpStream, peer: Rc<Peer>, gateway: Rc<Gateway>, drain: Rc<Drain>) {
    if io.set_nodelay(true).is_err() {
        return;
    }
    let opened = Instant::now();
    let mut input = BytesMut::new();
    let speaks_http2 = timeout(peer.bounds.header_timeout, starts_like_http2(&io, &mut input));
    let draining = poll_fn(|_| if drain.is_draining() { Poll::Ready(()) } else { Poll::Pending });
    tokio::select! {
        biased;
        answer = speaks_http2 => match answer {
            Ok(Ok(true)) => Box::pin(http2::serve(http2::rewound(io, input), peer, gateway, drain.clone())).await,
            // A sender too slow for even this gets its 408 from the HTTP/1.1 side.
            Ok(Ok(false)) | Err(_) => {
                http1::serve(io, http1::Begun { input, opened }, peer, gateway, drain.clone()).await;
            }
            Ok(Err(_)) => {}
        },
        () = pin!(draining) => {}
    }
}

/// Reads until it is clear whether the connection begins with the HTTP/2 preface.
async fn starts_like_http2(io: &TcpStream, input: &mut BytesMut) -> io::Result<bool> {
    loop {
        io.readable().await?;
        if input.capacity() == 0 {
            *input = spare::take();
        }
        match io.try_read_buf(input) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A socket may be called readable and be empty; a silent client shall cost no buffer.
                if input.is_empty() {
                    spare::put(std::mem::take(input));
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        let compared = input.len().min(http2::PREFACE.len());
        if input[..compared] != http2::PREFACE[..compared] {
            return Ok(false);
        }
        if compared == http2::PREFACE.len() {
            return Ok(true);
        }
    }
}

/// Binds an address once for each core (`SO_REUSEPORT`: the kernel deals connections out).
///
/// `SO_REUSEPORT` would let a second process share the address in silence; a first binding without it finds that out.
pub fn bind(address: SocketAddr, cores: usize) -> io::Result<Vec<std::net::TcpListener>> {
    drop(open(address, false)?);
    (0..cores)
        .map(|_| {
            let socket = open(address, true)?;
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        })
        .collect()
}

fn open(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit it, so it costs no call of their own.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// An idle connection is its task, and little else. A future passed by value and kept across an await doubles it.
    #[test]
    fn a_connections_task_is_small() {
        let size = size(serve);
        assert!(size <= 5888, "{size} bytes");
    }
}
