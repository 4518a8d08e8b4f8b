//! One attempt on one endpoint: a connection, kept or new, and the exchange on it.

use super::connection::{Asked, Connection, ExchangeError, Exchanged};
use super::pool::Pool;
use super::send::{Failed, Outgoing, Upstreams};
use super::{Endpoint, Upstream};
use crate::clock;
use crate::http1::Sender;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

impl Upstreams {
    /// One try. The request comes back when not an octet of it was sent.
    pub(super) async fn try_once(
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
