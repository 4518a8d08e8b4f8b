//! Active health checks: each process asks each endpoint at its interval, from the control thread, and what it finds holds
//! for all cores.
//!
//! An endpoint starts healthy: one that is down is noticed by the requests that fail there, while one that is up would be
//! missed until it was asked often enough.

use super::attempt::Goal;
use super::send::{Outgoing, Upstreams};
use super::{Endpoint, Upstream};
use crate::http1::{Mode, encode};
use crate::message::{Body, Response};
use http::Method;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// `health = …` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub path: String,
    pub interval: Duration,
    /// From connecting to the head of the answer.
    pub timeout: Duration,
    /// Checks in a row.
    pub unhealthy_after: u32,
    pub healthy_after: u32,
    /// The only status that is healthy; else all from 200 to 399, as in nginx Plus and HAProxy.
    pub status: Option<u16>,
}

/// Asks an endpoint of an upstream for ever.
pub async fn watch(upstream: &Upstream, endpoint: &Endpoint, health: &Health) {
    // Checks in a row that say otherwise than what holds.
    let mut contrary = 0;
    // Many gateways that are started together shall not ask together.
    sleep(health.interval.mul_f64(0.1 * fastrand::f64())).await;
    loop {
        let asked = timeout(health.timeout, ask(upstream, endpoint, health)).await;
        let outcome = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let outcome = outcome.map_err(|why| format!("health check: {why}"));
        let (state, ill) = (&endpoint.state, endpoint.state.is_unhealthy());
        contrary = if outcome.is_ok() == ill { contrary + 1 } else { 0 };
        match outcome {
            Ok(()) if ill && contrary >= health.healthy_after => state.recovered(upstream.slow_start),
            Err(why) if !ill && contrary >= health.unhealthy_after => state.fell_ill(&why),
            Err(why) => state.check_failed(&why),
            Ok(()) => {}
        }
        if state.is_unhealthy() != ill {
            contrary = 0;
        }
        sleep(health.interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// One check, on a connection of its own that is closed after it: a kept one would not tell whether new ones are taken.
async fn ask(upstream: &Upstream, endpoint: &Endpoint, health: &Health) -> Result<(), String> {
    let head = head(endpoint, &health.path);
    let mut request = Outgoing { method: Method::GET, head, body: Body::Empty, mode: Mode::None, upgrade: None };
    let own = Upstreams::default();
    let goal = Goal { upstream, endpoint, patience: health.timeout };
    let mut answer = Response::default();
    let asked = own.try_once::<false>(goal, &mut request, &mut answer).await;
    asked.map_err(|failed| failed.reason().unwrap_or_default())?;
    let status = answer.status.as_u16();
    let good = health.status.map_or((200..400).contains(&status), |wanted| status == wanted);
    if good { Ok(()) } else { Err(format!("answered {status}")) }
}

fn head(endpoint: &Endpoint, path: &str) -> Vec<u8> {
    let mut head = Vec::with_capacity(256);
    encode::request_line(&mut head, &Method::GET, |head| head.extend_from_slice(path.as_bytes()));
    encode::field(&mut head, "host", endpoint.to_string().as_bytes());
    encode::field(&mut head, "user-agent", concat!("staunch/", env!("CARGO_PKG_VERSION"), " health check").as_bytes());
    encode::field(&mut head, "accept", b"*/*");
    encode::field(&mut head, "connection", b"close");
    encode::head_end(&mut head);
    head
}
