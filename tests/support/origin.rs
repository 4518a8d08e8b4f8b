//! An upstream in each of the ways one can be spoken to, and a client in both of its own. Both are hyper's: what the gateway
//! says is judged by another reader of the protocols.

use super::bodies::{Body, Broken, Counted, FLOOD, Fed, Flood, nothing};
use super::certificates::Authority;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    Http1,
    Https,
    H2c,
    H2,
}

impl Speaks {
    pub const ALL: [Self; 4] = [Self::Http1, Self::Https, Self::H2c, Self::H2];

    pub fn http2(self) -> bool {
        matches!(self, Self::H2c | Self::H2)
    }

    pub fn tls(self) -> bool {
        matches!(self, Self::Https | Self::H2)
    }
}

/// What an origin does besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ways {
    /// Takes WebSockets on streams of HTTP/2.
    pub websockets: bool,
    pub max_streams: Option<u32>,
    /// Only clients with a certificate of the authority.
    pub client_certificates: bool,
}

#[derive(Debug)]
pub struct Origin {
    pub port: u16,
    pub kept: Arc<Kept>,
    speaks: Speaks,
    end: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
pub struct Kept {
    heads: Mutex<Vec<http::request::Parts>>,
    pub connections: AtomicUsize,
    /// Octets of bodies that came, and that were taken.
    pub came: AtomicU64,
    pub taken: AtomicU64,
    pub held: AtomicUsize,
    pub abandoned: AtomicUsize,
    pub release: Notify,
    events: Mutex<Option<mpsc::Receiver<Bytes>>>,
}

impl Origin {
    pub fn start(speaks: Speaks, authority: &Authority) -> Self {
        Self::start_with(speaks, authority, Ways::default())
    }

    pub fn start_with(speaks: Speaks, authority: &Authority, ways: Ways) -> Self {
        let kept = Arc::new(Kept::default());
        let (end, ended) = oneshot::channel();
        let (port_known, port) = std::sync::mpsc::sync_channel(1);
        let (serving, acceptor) = (kept.clone(), acceptor(speaks, authority, ways));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                port_known.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! { () = accept(listener, speaks, ways, acceptor, serving) => {}, _ = ended => {} }
            });
        });
        Self { port: port.recv().unwrap(), kept, speaks, end: Some(end) }
    }

    /// `[upstreams.up]`, verified by `ca`.
    pub fn table(&self, ca: &str) -> String {
        let scheme = if self.speaks.tls() { "https" } else { "http" };
        let tls = if self.speaks.tls() { format!("tls = {{ ca = \"{ca}\" }}\n") } else { String::new() };
        let http2 = self.speaks.http2();
        format!("[upstreams.up]\nendpoints = [\"{scheme}://localhost:{}\"]\nhttp2 = {http2}\n{tls}", self.port)
    }

    /// The last request for this path.
    pub fn head(&self, path: &str) -> http::request::Parts {
        let heads = self.kept.heads.lock().unwrap();
        heads.iter().rfind(|head| head.uri.path() == path).unwrap_or_else(|| panic!("nothing for {path}")).clone()
    }

    /// What `/events` answers with, piece by piece.
    pub fn events(&self) -> mpsc::Sender<Bytes> {
        let (feed, fed) = mpsc::channel(1);
        *self.kept.events.lock().unwrap() = Some(fed);
        feed
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        drop(self.end.take());
    }
}

fn acceptor(speaks: Speaks, authority: &Authority, ways: Ways) -> Option<TlsAcceptor> {
    let read = |name| std::fs::read(authority.path(name)).unwrap();
    let chain = CertificateDer::pem_slice_iter(&read("node.pem")).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("node.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = if ways.client_certificates {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&read("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if speaks.http2() {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    speaks.tls().then(|| TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, speaks: Speaks, ways: Ways, acceptor: Option<TlsAcceptor>, kept: Arc<Kept>) {
    while let Ok((io, _)) = listener.accept().await {
        let _ = io.set_nodelay(true);
        let (acceptor, kept) = (acceptor.clone(), kept.clone());
        tokio::spawn(async move {
            match acceptor {
                None => serve(io, speaks.http2(), ways, kept).await,
                Some(acceptor) => {
                    let Ok(io) = acceptor.accept(io).await else { return };
                    let http2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
                    serve(io, http2, ways, kept).await;
                }
            }
        });
    }
}

/// A connection by prior knowledge may turn out to be HTTP/1.1: a WebSocket that has no stream of its own.
async fn serve<IO>(io: IO, http2: bool, ways: Ways, kept: Arc<Kept>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    kept.connections.fetch_add(1, Ordering::SeqCst);
    let mut io = tokio::io::BufReader::new(io);
    let begins_http2 = tokio::io::AsyncBufReadExt::fill_buf(&mut io).await.is_ok_and(|begin| begin.starts_with(b"PRI"));
    let service = service_fn(move |request| answer(request, kept.clone()));
    if http2 && begins_http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(ways.max_streams);
        if ways.websockets {
            builder.enable_connect_protocol();
        }
        let _ = builder.serve_connection(TokioIo::new(io), service).await;
    } else {
        let builder = hyper::server::conn::http1::Builder::new();
        let _ = builder.serve_connection(TokioIo::new(io), service).with_upgrades().await;
    }
}

async fn answer(mut request: Request<Incoming>, kept: Arc<Kept>) -> Result<Response<Body>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (head, body) = request.into_parts();
    kept.heads.lock().unwrap().push(head.clone());
    let body = Counted { body, kept: kept.clone() };
    let full = |text: &'static str| {
        Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed_unsync()
    };
    let mut answer = Response::new(full("hello"));
    match head.uri.path() {
        "/204" => (*answer.status_mut(), *answer.body_mut()) = (StatusCode::NO_CONTENT, full("")),
        "/304" => {
            (*answer.status_mut(), *answer.body_mut()) = (StatusCode::NOT_MODIFIED, full(""));
            answer.headers_mut().insert("etag", "\"x\"".parse().unwrap());
        }
        "/echo" => *answer.body_mut() = body.map_err(io::Error::other).boxed_unsync(),
        "/count" => {
            let _ = body.collect().await;
        }
        "/events" => *answer.body_mut() = Fed(kept.events.lock().unwrap().take().expect("fed once")).boxed_unsync(),
        "/flood" => *answer.body_mut() = Flood { left: FLOOD, kept }.boxed_unsync(),
        "/broken" => *answer.body_mut() = Broken(0).boxed_unsync(),
        "/silence" => {
            let _abandoned = Abandoned(kept.clone());
            kept.held.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        "/hold" => {
            kept.held.fetch_add(1, Ordering::SeqCst);
            kept.release.notified().await;
        }
        "/chat" => {
            let connect = head.extensions.get::<Protocol>().is_some();
            *answer.body_mut() = full("");
            *answer.status_mut() = if connect { StatusCode::OK } else { StatusCode::SWITCHING_PROTOCOLS };
            if let (false, Some(protocol)) = (connect, head.headers.get("upgrade")) {
                answer.headers_mut().insert("upgrade", protocol.clone());
                answer.headers_mut().insert("connection", "upgrade".parse().unwrap());
            }
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
        _ => {}
    }
    Ok(answer)
}

struct Abandoned(Arc<Kept>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.abandoned.fetch_add(1, Ordering::SeqCst);
    }
}

/// A client's connection to the gateway.
pub enum Client {
    Http1(hyper::client::conn::http1::SendRequest<Body>),
    Http2(hyper::client::conn::http2::SendRequest<Body>),
}

impl Client {
    pub async fn connect(port: u16, http2: bool) -> Self {
        let io = TokioIo::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap());
        if http2 {
            let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Http2(sender)
        } else {
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::Http1(sender)
        }
    }

    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// A request in the form of this client's protocol.
    pub fn request(&self, method: Method, path: &str, body: Body) -> Request<Body> {
        let builder = Request::builder().method(method);
        let builder = match self {
            Self::Http1(_) => builder.uri(path).header("host", "shop.test"),
            Self::Http2(_) => builder.uri(format!("http://shop.test{path}")).version(Version::HTTP_2),
        };
        builder.body(body).unwrap()
    }

    pub async fn ask(&mut self, method: Method, path: &str, body: Body) -> (StatusCode, HeaderMap, Bytes) {
        let request = self.request(method, path, body);
        let (head, body) = self.send(request).await.unwrap().into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes())
    }

    /// Opens a WebSocket and has one message echoed.
    pub async fn chat(&mut self, protocol: &'static str) -> Result<HeaderMap, StatusCode> {
        let mut request = self.request(Method::GET, "/chat", nothing());
        if let Self::Http2(_) = self {
            *request.method_mut() = Method::CONNECT;
            request.extensions_mut().insert(Protocol::from_static(protocol));
        } else {
            request.headers_mut().insert("connection", "upgrade".parse().unwrap());
            request.headers_mut().insert("upgrade", protocol.parse().unwrap());
            request.headers_mut().insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        }
        request.headers_mut().insert("sec-websocket-version", "13".parse().unwrap());
        let mut response = self.send(request).await.unwrap();
        if !matches!(response.status(), StatusCode::OK | StatusCode::SWITCHING_PROTOCOLS) {
            return Err(response.status());
        }
        let mut tunnel = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
        for message in [&b"one"[..], &[b'2'; 100_000]] {
            tunnel.write_all(message).await.unwrap();
            let mut echo = vec![0; message.len()];
            tunnel.read_exact(&mut echo).await.unwrap();
            assert_eq!(echo, message);
        }
        tunnel.shutdown().await.unwrap();
        assert_eq!(tunnel.read(&mut [0]).await.unwrap(), 0, "the end is passed on, and back");
        Ok(response.headers().clone())
    }
}
