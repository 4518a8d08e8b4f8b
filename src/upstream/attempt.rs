//! One attempt on one endpoint: a connection, kept or new, and the exchange on it.

use super::connection::{Asked, Connection, ExchangeError};
use super::http2;
use super::pool::Pool;
use super::send::{Failed, Outgoing, Upstreams};
use super::stream::Stream;
use super::{Endpoint, Upstream};
use crate::clock;
use crate::http1::Sender;
use crate::http1::websocket::is_websocket;
use crate::message::Response;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// An endpoint that vanished without a word is found out even where nothing is due from it: in a tunnel, or a stream of
/// events. As at the clients' side.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// Where a request is tried, and how long the answer's head is waited for.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    pub upstream: &'a Upstream,
    pub endpoint: &'a Endpoint,
    pub patience: Duration,
}

impl Upstreams {
    /// One try, with its answer in `answer`. The request stays whole when the endpoint has not looked at it. Neither is handed
    /// on by value: they are some 400 octets, and would be copied at every step. `COUNTED`: it is told in the upstream's
    /// figures, which health checks are not.
    pub(super) async fn try_once<const COUNTED: bool>(
        &self,
        goal: Goal<'_>,
        request: &mut Outgoing,
        answer: &mut Response,
    ) -> Result<(), Failed> {
        let Goal { upstream, endpoint, patience } = goal;
        let pool = self.pool(endpoint, upstream.idle_timeout);
        let attempt = Attempt::<COUNTED> { upstream, endpoint, pool, patience };
        // Boxed: what HTTP/1.1 needs is small, and each client's connection has room for it.
        if endpoint.transport.http2 {
            Box::pin(attempt.over_http2(request, answer)).await
        } else {
            attempt.over_http1(request, answer).await
        }
    }

    fn pool(&self, endpoint: &Endpoint, idle_timeout: Duration) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        if pools.len() <= endpoint.slot {
            pools.resize_with(endpoint.slot + 1, || None);
        }
        pools[endpoint.slot].get_or_insert_with(|| Rc::new(Pool::new(idle_timeout, endpoint.place.clone()))).clone()
    }
}

struct Attempt<'a, const COUNTED: bool> {
    upstream: &'a Upstream,
    endpoint: &'a Endpoint,
    pool: Rc<Pool>,
    /// How long the answer's head is waited for.
    patience: Duration,
}

impl<const COUNTED: bool> Attempt<'_, COUNTED> {
    fn observe(&self, begun: std::time::Instant) {
        if COUNTED {
            self.upstream.duration.observe(clock::now().duration_since(begun));
        }
    }

    async fn over_http1(&self, request: &mut Outgoing, answer: &mut Response) -> Result<(), Failed> {
        let connection = match self.pool.take() {
            Some(connection) => connection,
            None => match connect(self.endpoint, false, self.upstream.connect_timeout).await {
                Ok(io) => Connection::new(io).counted(self.endpoint.state.metrics.open()),
                Err(error) => return Err(Failed::Unreachable(error)),
            },
        };
        let begun = clock::now();
        let sender = Sender::new(std::mem::take(&mut request.head), std::mem::take(&mut request.body), request.mode);
        let asked = Asked {
            method: &request.method,
            upgrade: request.upgrade.as_ref(),
            begun: Instant::from_std(begun),
            patience: self.patience,
        };
        let exchanged = connection.exchange(sender, &asked, &self.pool, answer).await;
        self.observe(begun);
        exchanged.map_err(Failed::from)
    }

    /// Another protocol than a WebSocket has no form in HTTP/2, and an endpoint may take none of those either: such a
    /// request goes over a connection of its own, in HTTP/1.1.
    async fn over_http2(&self, request: &mut Outgoing, answer: &mut Response) -> Result<(), Failed> {
        if request.upgrade.as_ref().is_some_and(|protocol| !is_websocket(protocol)) {
            return self.over_http1(request, answer).await;
        }
        let within = self.upstream.connect_timeout;
        let opening = async {
            let open = async {
                let io = connect(self.endpoint, true, within).await?;
                http2::open(io, self.endpoint.state.metrics.open()).await
            };
            let opened = timeout(within, open).await;
            opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let stream = match self.pool.http2.stream(opening).await {
            Ok(stream) => stream,
            Err(error) => return Err(Failed::Unreachable(error)),
        };
        if request.upgrade.is_some() && !stream.link.takes_websockets() {
            drop(stream);
            return self.over_http1(request, answer).await;
        }
        let begun = clock::now();
        let (method, upgrade) = (request.method.clone(), request.upgrade.clone());
        let begun_at = Instant::from_std(begun);
        let asked = Asked { method: &method, upgrade: upgrade.as_ref(), begun: begun_at, patience: self.patience };
        let exchanged = http2::exchange(stream, request, &asked, self.endpoint, answer).await;
        self.observe(begun);
        exchanged
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

/// A new connection, ready for requests. `http2`: over TLS, the endpoint must agree to it; without, it is known to speak it.
async fn connect(endpoint: &Endpoint, http2: bool, within: Duration) -> io::Result<Stream> {
    let connecting = async {
        let io = endpoint.place.connect(within).await?;
        SockRef::from(&io).set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY))?;
        match &endpoint.transport.tls {
            None => Ok(Stream::Tcp(io)),
            Some(tls) => Box::pin(tls.connect(&endpoint.host, http2, io)).await,
        }
    };
    timeout(within, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
