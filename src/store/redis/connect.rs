//! A connection to one node: address, TLS, credentials, and the task that drives it.
//!
//! An `Entry` is made of a configured URL; nodes that others name are entered in the same way, at another address.
//! A `Link` knows when its connection has ended, so that a call is not written into a dead one. Nothing here retries, and
//! nothing here has a deadline: both are the caller's.

use super::fault::Fault;
use crate::store::ErrorKind;
use crate::trust::system_roots;
use crate::units::Secret;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a node listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Address {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// As nodes name each other, `host:port` without brackets. Without a host it is the one of the node that said it.
    pub fn parse(text: &str, said_by: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { said_by } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Where a node is and how to enter.
#[derive(Clone)]
pub(super) struct Entry {
    address: Result<ConnectionInfo, String>,
    /// Made at the first TLS connection, for all that are entered alike: reading the system's roots takes milliseconds.
    tls: Arc<OnceLock<Result<TlsConnector, String>>>,
}

/// A live connection; ends when dropped, with every call still in it.
#[derive(Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    ended: Arc<AtomicBool>,
    driver: AbortHandle,
}

impl Link {
    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Fault> {
        command.query_async(&mut self.connection()).await.map_err(|error| Fault::calling(&error))
    }

    /// Whether the node, or the network, has closed it.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What is wrong with a node's URL, if anything; never quotes it, for it may hold a password.
#[must_use]
pub fn url_problem(url: &str) -> Option<String> {
    parse(url).err()
}

fn parse(url: &str) -> Result<ConnectionInfo, String> {
    let info = url.into_connection_info().map_err(|error| match error.detail() {
        Some(detail) if !detail.contains(url) => format!("{}: {detail}", error.category()),
        _ => "not a redis:// or rediss:// URL".to_owned(),
    })?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            Err("#insecure is not supported: name the CA in SSL_CERT_FILE".to_owned())
        }
        _ => Ok(info),
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Entry(***)")
    }
}

impl Entry {
    pub fn new(url: &Secret) -> Self {
        Self { address: parse(url.reveal()), tls: Arc::default() }
    }

    /// Another node, with the same credentials and TLS.
    pub fn at(&self, Address { host, port }: &Address) -> Self {
        let moved = |info: &ConnectionInfo| {
            let (host, port) = (host.clone(), *port);
            info.clone().set_addr(match info.addr() {
                ConnectionAddr::TcpTls { tls_params, .. } => {
                    ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: tls_params.clone() }
                }
                _ => ConnectionAddr::Tcp(host, port),
            })
        };
        Self { address: self.address.as_ref().map(moved).map_err(Clone::clone), tls: self.tls.clone() }
    }

    /// The same node with other settings: user, password, database.
    pub fn with(&self, settings: impl Fn(&RedisConnectionInfo) -> RedisConnectionInfo) -> Self {
        let changed = |info: &ConnectionInfo| info.clone().set_redis_settings(settings(info.redis_settings()));
        Self { address: self.address.as_ref().map(changed).map_err(Clone::clone), tls: self.tls.clone() }
    }

    /// `None` for one that has no host and port.
    pub fn address(&self) -> Option<Address> {
        match self.address.as_ref().ok()?.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Address { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// Connects, authenticates, and waits for the node's first answer: a stopped node accepts connections too, and must not
    /// be handed checks that it would run when it wakes.
    pub async fn connect(&self) -> Result<Link, Fault> {
        let info = self.address.as_ref().map_err(|problem| Fault::before(ErrorKind::Connect, problem.clone()))?;
        let settings = info.redis_settings().clone().set_lib_name("staunch", env!("CARGO_PKG_VERSION"));
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => open(&settings, tcp(host, *port).await?).await,
            ConnectionAddr::TcpTls { host, port, .. } => {
                let connector = self.tls.get_or_init(trust).as_ref().map_err(|text| connect_fault(text))?;
                let name = ServerName::try_from(host.clone()).map_err(|error| connect_fault(&error.to_string()))?;
                let stream = tcp(host, *port).await?;
                let stream =
                    connector.connect(name, stream).await.map_err(|error| connect_fault(&format!("TLS: {error}")))?;
                open(&settings, stream).await
            }
            ConnectionAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| connect_fault(&error.to_string()))?;
                open(&settings, stream).await
            }
            _ => Err(connect_fault("a kind of address that is not supported")),
        }
    }
}

async fn tcp(host: &str, port: u16) -> Result<TcpStream, Fault> {
    let connected = async {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        // So that an idle connection which a firewall forgot is known dead before the next check is written into it.
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
        Ok(stream)
    };
    connected.await.map_err(|error: io::Error| connect_fault(&error.to_string()))
}

async fn open<S>(settings: &RedisConnectionInfo, stream: S) -> Result<Link, Fault>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Calls have deadlines of their own; a second timer for each would only cost.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config)
        .await
        .map_err(|error: RedisError| Fault::connecting(&error))?;
    let ended = Arc::new(AtomicBool::new(false));
    let seen = ended.clone();
    let driver = tokio::spawn(async move {
        driver.await;
        seen.store(true, Ordering::Relaxed);
    });
    let link = Link { connection, ended, driver: driver.abort_handle() };
    if settings.password().is_none() {
        // A node that wants a password tells so to a small command; a larger one it calls a protocol error.
        let ping = redis::cmd("PING").query_async::<redis::Value>(&mut link.connection()).await;
        ping.map_err(|error| Fault::connecting(&error))?;
    }
    Ok(link)
}

/// The system's roots, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`: how operators name a CA of their own.
fn trust() -> Result<TlsConnector, String> {
    let roots = system_roots().map_err(|why| format!("TLS: {why}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn connect_fault(text: &str) -> Fault {
    Fault::before(ErrorKind::Connect, text.to_owned())
}
