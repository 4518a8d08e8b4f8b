//! One HTTP/2 connection: its handshake, the task that moves its frames, and what is known of its health.

use crate::clock;
use crate::telemetry::metrics::OpenConnection;
use crate::upstream::stream::Stream;
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Streams on one connection, if the endpoint takes as many; nginx's and Envoy's servers take 128 and 100 by default.
const MAX_STREAMS: u32 = 100;
/// Of an answer, what waits to be passed on: 250 MiB/s at half a millisecond between us. The connection's window is that
/// of all its streams, or slow clients would hold up the answers of the others.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// Frames that wait are charged up to 256 octets each, and more than this ends the connection. With `h2`'s half a window
/// three slow readers of tiny events would end it for all; this is enough for a hundred of them, at 64 octets an event.
const SMALL_FRAMES_BUDGET: usize = 4 * CONNECTION_WINDOW as usize;
/// As of HTTP/1.1.
const MAX_HEAD: u32 = 64 * 1024;
/// An endpoint that has said nothing for so long is asked whether it is there. gRPC's servers close a connection on which
/// pings come more often than every five minutes; what is gone sooner, the probes of TCP find out.
const PING_AFTER: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Link {
    pub(super) sender: RefCell<SendRequest<Bytes>>,
    pub(super) https: bool,
    peer: Option<SocketAddr>,
    health: Rc<Health>,
    retired: Cell<bool>,
}

#[derive(Debug)]
struct Health {
    streams: Cell<usize>,
    /// When a stream last ended.
    used: Cell<Instant>,
    /// When something last came.
    heard: Cell<Instant>,
}

/// Connects, and waits for the endpoint's settings: a ping is answered only behind them. So a connection to what speaks no
/// HTTP/2 fails before a request is given to it, and its first streams know how many there may be.
pub async fn open(io: Stream, open: OpenConnection) -> io::Result<Link> {
    let peer = io.peer_addr().ok();
    let https = matches!(io, Stream::Tls(_));
    let (sender, mut connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        .max_header_list_size(MAX_HEAD)
        .enable_push(false)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| failed(&error))?;
    let mut pings = connection.ping_pong().ok_or_else(|| failed(&"no pings"))?;
    tokio::select! {
        ended = &mut connection => {
            return Err(ended.map_or_else(|error| failed(&error), |()| failed(&"the endpoint closed before it spoke")));
        }
        pong = pings.ping(Ping::opaque()) => pong.map_err(|error| failed(&error))?,
    };
    if sender.current_max_send_streams() == 0 {
        return Err(failed(&"the endpoint takes no streams"));
    }
    let now = clock::now();
    let health = Rc::new(Health { streams: Cell::new(0), used: Cell::new(now), heard: Cell::new(now) });
    let driven = drive(connection, pings, health.clone());
    tokio::task::spawn_local(async move {
        driven.await;
        drop(open);
    });
    Ok(Link { sender: RefCell::new(sender), https, peer, health, retired: Cell::new(false) })
}

fn failed(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("HTTP/2: {error}"))
}

/// Moves frames until the connection has ended, which its streams learn from it, or answers no ping.
async fn drive(mut connection: Connection<Stream, Bytes>, mut pings: PingPong, health: Rc<Health>) {
    loop {
        tokio::select! {
            _ = &mut connection => return,
            () = sleep(PING_AFTER) => {}
        }
        if health.streams.get() == 0 || clock::now().duration_since(health.heard.get()) < PING_AFTER {
            continue;
        }
        tokio::select! {
            _ = &mut connection => return,
            pong = timeout(PING_TIMEOUT, pings.ping(Ping::opaque())) => {
                if !matches!(pong, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}

impl Link {
    /// False: it has ended, or the endpoint takes no new streams on it.
    pub(super) fn is_usable(&self) -> bool {
        let mut sender = self.sender.borrow_mut();
        let ready = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        !self.retired.get() && !matches!(ready, Poll::Ready(Err(_)))
    }

    pub(super) fn has_room(&self) -> bool {
        let most = self.sender.borrow().current_max_send_streams().min(MAX_STREAMS as usize);
        self.health.streams.get() < most
    }

    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn is_idle(&self, now: Instant, idle_timeout: Duration) -> bool {
        self.health.streams.get() == 0 && now.duration_since(self.health.used.get()) >= idle_timeout
    }

    /// Whether the endpoint takes a WebSocket on a stream (RFC 8441 §3).
    pub(in crate::upstream) fn takes_websockets(&self) -> bool {
        self.sender.borrow().is_extended_connect_protocol_enabled()
    }

    pub(super) fn heard(&self) {
        self.health.heard.set(clock::now());
    }

    /// A request was not answered in time. Where nothing at all has come since, the endpoint may be gone without a word:
    /// the next request is not given to this connection.
    pub(super) fn suspect(&self, since: Instant) {
        if self.health.heard.get() < since {
            self.retired.set(true);
        }
    }
}

/// A stream in its connection's count.
#[derive(Debug)]
pub struct Open {
    pub link: Rc<Link>,
}

impl Open {
    pub(super) fn new(link: Rc<Link>) -> Self {
        link.health.streams.set(link.health.streams.get() + 1);
        Self { link }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.link.health.streams.set(self.link.health.streams.get() - 1);
        self.link.health.used.set(clock::now());
    }
}
