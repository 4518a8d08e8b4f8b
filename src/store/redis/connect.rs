//! A connection to one node: address, TLS, credentials, and the task that drives it.
//!
//! A `Link` knows when its connection has ended, so that a call is not written into a dead one. Nothing here retries, and
//! nothing here has a deadline: both are the caller's.

use super::Node;
use super::fault::Fault;
use crate::store::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a node is and how to enter.
pub(super) struct Target {
    address: Result<ConnectionInfo, String>,
    /// Made at the first TLS connection: reading the system's roots takes milliseconds.
    tls: OnceLock<Result<TlsConnector, String>>,
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

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Target(***)")
    }
}

impl Target {
    pub fn new(node: &Node) -> Self {
        Self { address: parse(node.url.reveal()), tls: OnceLock::new() }
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
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("TLS: no trusted root certificate found{why}"));
    }
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
