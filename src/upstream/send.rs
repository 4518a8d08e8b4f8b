//! Sending one request: an endpoint, a connection, the exchange, and at most so many further tries.

use super::connection::{Asked, Connection, ExchangeError, Exchanged};
use super::pool::Pool;
use super::{Endpoint, Upstream};
use crate::clock;
use crate::http1::{Mode, Sender};
use crate::message::{Body, BodyError};
use bytes::BytesMut;
use http::Method;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// One core's connections to all endpoints. They outlive a reload: an endpoint keeps its slot.
#[derive(Debug, Default)]
pub struct Upstreams {
    /// By `Endpoint::slot`.
    pools: RefCell<Vec<Option<Rc<Pool>>>>,
}

/// A request ready to leave.
#[derive(Debug)]
pub struct Outgoing {
    pub method: Method,
    /// The whole head.
    pub head: BytesMut,
    pub body: Body,
    pub mode: Mode,
    pub upgrade: bool,
}

/// Why there is no answer to pass on.
#[derive(Debug)]
pub enum Failed {
    /// No endpoint could be connected to.
    Unreachable(io::Error),
    /// The last endpoint tried closed or reset the connection before an octet of an answer.
    Unanswered(io::Error),
    /// Its answer is no HTTP/1.1 that can be passed on.
    Malformed(&'static str),
    TimedOut,
    /// The client's own body failed.
    Body(BodyError),
}

impl Upstreams {
    /// Sends the request and gives the head of the answer, or the reason why there is none. The endpoint that was tried
    /// last is told with it.
    pub async fn send<'u>(
        &self,
        upstream: &'u Upstream,
        mut request: Outgoing,
        response_timeout: Duration,
    ) -> (Result<Exchanged, Failed>, &'u Endpoint) {
        let mut tries_left = upstream.retries;
        loop {
            let endpoint = &upstream.endpoints[upstream.rotation.turn()];
            let spare = (tries_left > 0).then(|| request.replay());
            match self.try_once(upstream, endpoint, request, response_timeout).await {
                Ok(exchanged) => return (Ok(exchanged), endpoint),
                Err((failed, again)) => match again.or(spare.flatten().filter(|_| failed.may_repeat())) {
                    Some(next) if tries_left > 0 => {
                        tries_left -= 1;
                        request = next;
                    }
                    _ => return (Err(failed), endpoint),
                },
            }
        }
    }

    /// One try. The request comes back when not an octet of it was sent.
    async fn try_once(
        &self,
        upstream: &Upstream,
        endpoint: &Endpoint,
        request: Outgoing,
        response_timeout: Duration,
    ) -> Result<Exchanged, (Failed, Option<Outgoing>)> {
        let pool = self.pool(endpoint, upstream.idle_timeout);
        let connection = match pool.take() {
            Some(connection) => connection,
            None => match connect(endpoint, upstream.connect_timeout).await {
                Ok(io) => {
                    endpoint.connected(true);
                    Connection::new(io)
                }
                Err(error) => {
                    endpoint.connected(false);
                    return Err((Failed::Unreachable(error), Some(request)));
                }
            },
        };
        let begun = clock::now();
        let asked = Asked {
            method: &request.method,
            upgrade: request.upgrade,
            begun: Instant::from_std(begun),
            patience: response_timeout,
        };
        let sender = Sender::new(request.head, request.body, request.mode);
        let exchanged = connection.exchange(sender, &asked, &pool).await;
        upstream.duration.observe(clock::now().duration_since(begun));
        exchanged.map_err(|error| (Failed::from(error), None))
    }

    fn pool(&self, endpoint: &Endpoint, idle_timeout: Duration) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        if pools.len() <= endpoint.slot {
            pools.resize_with(endpoint.slot + 1, || None);
        }
        pools[endpoint.slot].get_or_insert_with(|| Rc::new(Pool::new(idle_timeout))).clone()
    }

    /// Closes connections that have been idle for too long; called every few seconds.
    pub fn sweep(&self) {
        self.pools.borrow().iter().flatten().for_each(|pool| pool.sweep());
    }
}

impl Outgoing {
    /// A copy for a second try: only of an idempotent request (RFC 9110 §9.2.2) whose body is at hand.
    fn replay(&self) -> Option<Self> {
        let idempotent = matches!(
            self.method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
        );
        (idempotent && self.body.replayable() && !self.upgrade).then(|| Self {
            method: self.method.clone(),
            head: self.head.clone(),
            body: self.body.replay(),
            mode: self.mode,
            upgrade: false,
        })
    }
}

impl Failed {
    /// A time-out is not repeated: the client has waited long enough, and the upstream is slow rather than gone.
    fn may_repeat(&self) -> bool {
        !matches!(self, Self::TimedOut | Self::Body(_))
    }
}

impl From<ExchangeError> for Failed {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Unanswered(error) => Self::Unanswered(error),
            ExchangeError::Malformed(why) => Self::Malformed(why),
            ExchangeError::TimedOut => Self::TimedOut,
            ExchangeError::Body(error) => Self::Body(error),
        }
    }
}

/// A name is looked up anew for each connection, so a changed DNS record is followed without a reload.
async fn connect(endpoint: &Endpoint, within: Duration) -> io::Result<TcpStream> {
    let connecting = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    let io = timeout(within, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    io.set_nodelay(true)?;
    Ok(io)
}
