//! The listener itself: a small HTTP/1.1 server on the control thread, bounded in connections, time and size, and the map
//! from a call to what `Control` does for it. A request's body is never read.

use super::access::{Caller, Need};
use super::counters::Counter;
use super::status::Document;
use super::top::TopKeys;
use super::{Control, ControlError, Readiness, page};
use crate::respond::page::{Denied, Page};
use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};

const CONNECTIONS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 16 << 10;
/// For a request's head, and for the answer to it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Then a kept connection is asked to end; the next call makes a new one.
const CONNECTION_TIME_MAX: Duration = Duration::from_mins(5);
/// Out of descriptors, an accept fails at once and would again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped, and its connections with it.
pub async fn serve<C: Control + 'static>(listener: TcpListener, control: Rc<C>) {
    LocalSet::new().run_until(accept(listener, control)).await;
}

async fn accept<C: Control + 'static>(listener: TcpListener, control: Rc<C>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Full: the next caller waits in the backlog, and not for long, since every connection has its time.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let control = control.clone();
                spawn_local(async move {
                    connection(stream, peer.ip(), control).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin listener could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<C: Control + 'static>(stream: TcpStream, peer: IpAddr, control: Rc<C>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let control = control.clone();
        async move { Ok::<_, Infallible>(answer(&request, peer, &*control).await.map(Full::new)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // A caller that leaves early, or sends no HTTP, is nobody's concern; one that does not read its answer must not keep
    // its place.
    let served = tokio::time::timeout(CONNECTION_TIME_MAX, connection.as_mut()).await;
    if served.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(TIMEOUT, connection).await;
    }
}

async fn answer<B, C: Control>(request: &Request<B>, peer: IpAddr, control: &C) -> Response<Bytes> {
    match tokio::time::timeout(TIMEOUT, answered(request, peer, control)).await {
        Ok(Ok(page)) => page.response(),
        Ok(Err(denied)) => denied.response(),
        Err(_) => Denied::TimedOut.response(),
    }
}

async fn answered<B, C: Control>(request: &Request<B>, peer: IpAddr, control: &C) -> Result<Page, Denied> {
    let call = Call::parse(request.method(), request.uri())?;
    let caller = Caller { peer, headers: request.headers(), authority: request.uri().authority() };
    caller.may(call.need(), control.token().as_ref())?;
    call.perform(control).await
}

/// What is asked for.
enum Call {
    Page,
    Metrics,
    Health,
    Readiness,
    Status,
    Top,
    Reload,
    Inspect(Counter),
    Reset(Counter),
}

impl Call {
    fn parse(method: &Method, uri: &Uri) -> Result<Self, Denied> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        let reading = |call| if reads { Ok(call) } else { Err(Denied::MethodNotAllowed("GET, HEAD")) };
        match uri.path() {
            "/" => reading(Self::Page),
            "/metrics" => reading(Self::Metrics),
            "/healthz" => reading(Self::Health),
            "/readyz" => reading(Self::Readiness),
            "/status" => reading(Self::Status),
            "/top" => reading(Self::Top),
            "/reload" if *method == Method::POST => Ok(Self::Reload),
            "/reload" => Err(Denied::MethodNotAllowed("POST")),
            path => {
                let names =
                    path.strip_prefix("/limits/").ok_or_else(|| Denied::NotFound("No such page.".to_owned()))?;
                match *method {
                    Method::DELETE => Counter::parse(names, uri.query()).map(Self::Reset),
                    _ if reads => Counter::parse(names, uri.query()).map(Self::Inspect),
                    _ => Err(Denied::MethodNotAllowed("GET, HEAD, DELETE")),
                }
            }
        }
    }

    fn need(&self) -> Need {
        match self {
            Self::Health | Self::Readiness => Need::Probe,
            Self::Reload | Self::Reset(_) => Need::Change,
            _ => Need::Read,
        }
    }

    async fn perform<C: Control>(self, control: &C) -> Result<Page, Denied> {
        match self {
            Self::Page => Ok(Page::Html(page::render(&control.status(), &control.readiness()))),
            Self::Metrics => Ok(Page::Metrics(control.metrics())),
            Self::Health => Ok(Page::Text("ok\n".to_owned())),
            Self::Readiness => Ok(readiness(&control.readiness())),
            Self::Status => json(&Document { state: control.readiness().word(), status: control.status() }),
            Self::Top => json(&TopKeys::from(control.worst())),
            Self::Reload => match control.reload().await {
                Ok(()) => Ok(Page::Text("ok\n".to_owned())),
                Err(problems) => Err(Denied::Invalid(problems)),
            },
            Self::Inspect(counter) => json(&control.inspect(&counter).await?),
            Self::Reset(counter) => {
                control.reset(&counter).await?;
                tracing::info!(policy = counter.policy, limit = counter.limit, "a counter was reset");
                Ok(Page::Text("ok\n".to_owned()))
            }
        }
    }
}

fn readiness(readiness: &Readiness) -> Page {
    match readiness {
        Readiness::Ready { .. } => Page::Text(format!("{readiness}\n")),
        Readiness::Starting | Readiness::Draining => Page::Unready(format!("{readiness}\n")),
    }
}

fn json(shape: &impl Serialize) -> Result<Page, Denied> {
    serde_json::to_vec(shape).map(Page::Json).map_err(|error| Denied::Unavailable(error.to_string()))
}

impl From<ControlError> for Denied {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Unknown(detail) => Self::NotFound(detail),
            ControlError::BadKey(detail) => Self::BadRequest(detail),
            ControlError::Unavailable(detail) => Self::Unavailable(detail),
        }
    }
}
