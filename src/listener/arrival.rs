//! A connection from its acceptance to its first octet of HTTP: who the client is, and whether it may come in.

use super::drain::Drain;
use super::tls::{self, Tls};
use super::{Settings, http1, per_client, plain, proxy_protocol};
use crate::proxy::{Gateway, Peer};
use crate::respond::Failure;
use crate::telemetry::metrics::{HandshakeFailure, Label};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection of which nothing is known but its peer.
pub struct Arrived {
    pub io: TcpStream,
    pub address: SocketAddr,
    pub counted: Counted,
    pub gateway: Rc<Gateway>,
    pub drain: Rc<Drain>,
}

/// A connection whose client and protocol are known.
pub struct Begun<IO> {
    pub stay: Stay,
    pub protocol: Protocol<IO>,
}

pub enum Protocol<IO> {
    Http1 {
        io: IO,
        begun: http1::Begun,
        peer: Rc<Peer>,
    },
    /// Or whatever else is to be run to its end.
    Other(Pin<Box<dyn Future<Output = ()>>>),
}

/// What a connection holds as long as it is open.
pub struct Stay {
    _counted: Counted,
    _place: Option<per_client::Counted>,
}

struct Known {
    peer: Rc<Peer>,
    place: Option<per_client::Counted>,
}

/// A connection that is not served.
enum Turned {
    Away,
    /// With an answer, where the client would understand one.
    Because(&'static str),
}

/// Serves a connection to its end. An idle one is this task and little else, so all that comes before HTTP is in a box that
/// is gone by then: arguments of an async function are kept to its end.
pub async fn serve<IO>(begin: Pin<Box<impl Future<Output = Option<Begun<IO>>>>>, gateway: Rc<Gateway>, drain: Rc<Drain>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let _open = drain.clone().enter().await;
    let Some(Begun { stay: _stay, protocol }) = begin.await else { return };
    match protocol {
        Protocol::Http1 { io, begun, peer } => http1::serve(io, begun, peer, gateway, drain).await,
        Protocol::Other(serving) => serving.await,
    }
}

impl Arrived {
    pub async fn begin_plain(self) -> Option<Begun<TcpStream>> {
        let known = self.identify("http").await;
        let Self { io, address, counted, gateway, drain } = self;
        let (place, protocol) = match known {
            Ok(Known { peer, place }) => (place, plain::begin(io, peer, gateway, drain).await?),
            Err(Turned::Away) => return None,
            Err(Turned::Because(why)) => {
                let peer = Rc::new(Peer::new(address, "http", counted.0.bounds.clone()));
                let refusing = http1::refuse(io, Failure::BadRequest(why.into()), peer, gateway, drain);
                (None, Protocol::Other(Box::pin(refusing)))
            }
        };
        Some(Begun { stay: Stay { _counted: counted, _place: place }, protocol })
    }

    pub async fn begin_tls(self, tls: Tls) -> Option<Begun<Box<tls::Stream>>> {
        let Known { peer, place } = self.identify("https").await.ok()?;
        let Self { io, counted, gateway, drain, .. } = self;
        let address = peer.address;
        match tls::begin(io, tls, peer, gateway, drain).await {
            Ok(protocol) => Some(Begun { stay: Stay { _counted: counted, _place: place }, protocol: protocol? }),
            Err((failure, error)) => {
                counted.failed(failure, address, &error);
                None
            }
        }
    }

    /// Who the client is, and its place among its connections.
    async fn identify(&self, scheme: &'static str) -> Result<Known, Turned> {
        let settings = &*self.counted.0;
        self.io.set_nodelay(true).map_err(|_| Turned::Away)?;
        let address = match settings.proxy_protocol {
            false => self.address,
            true => self.behind_proxy().await?,
        };
        let place = match settings.per_client.as_ref().map(|bound| bound.enter(address.ip())) {
            Some(None) => {
                settings.metrics.rejected.inc();
                return Err(Turned::Away);
            }
            place => place.flatten(),
        };
        Ok(Known { peer: Rc::new(Peer::new(address, scheme, settings.bounds.clone())), place })
    }

    /// What the proxy in front says; only one that is trusted is believed, and others have no business here.
    async fn behind_proxy(&self) -> Result<SocketAddr, Turned> {
        let refused = |failure, why: &'static str| {
            self.counted.failed(failure, self.address, &why);
            Err(Turned::Because("this listener takes connections through its proxy only, with a PROXY header"))
        };
        if !self.gateway.trusts(self.address.ip()) {
            return refused(HandshakeFailure::Stranger, "not one of client_ip.trusted_proxies");
        }
        let read = tokio::select! {
            biased;
            read = timeout(self.counted.0.bounds.header_timeout, proxy_protocol::read(&self.io)) => read,
            () = self.drain.left_behind() => return Err(Turned::Away),
        };
        match read {
            Ok(Ok(source)) => Ok(source.unwrap_or(self.address)),
            Ok(Err(proxy_protocol::Broken::Malformed(why))) => refused(HandshakeFailure::ProxyHeader, why),
            Ok(Err(proxy_protocol::Broken::Gone)) => Err(Turned::Away),
            Err(_) => refused(HandshakeFailure::Timeout, "no PROXY header in time"),
        }
    }
}

/// An open connection in the listener's counts.
pub struct Counted(pub Arc<Settings>);

impl Counted {
    fn failed(&self, failure: HandshakeFailure, peer: SocketAddr, error: &dyn std::fmt::Display) {
        self.0.metrics.handshake_failed(failure);
        tracing::debug!(%peer, reason = failure.text(), %error, "no connection for HTTP");
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.active.dec();
    }
}
