//! Sending one request: an endpoint, one attempt on it, and at most so many further ones.

use super::connection::Exchanged;
use super::pool::Pool;
use super::{Endpoint, Upstream};
use crate::http1::Mode;
use crate::message::{Body, BodyError};
use http::{HeaderValue, Method};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// One core's connections to all endpoints. They outlive a reload: an endpoint keeps its slot.
#[derive(Debug, Default)]
pub struct Upstreams {
    /// By `Endpoint::slot`.
    pub(super) pools: RefCell<Vec<Option<Rc<Pool>>>>,
}

/// A request ready to leave.
#[derive(Debug)]
pub struct Outgoing {
    pub method: Method,
    /// The whole head.
    pub head: Vec<u8>,
    pub body: Body,
    pub mode: Mode,
    /// The protocol that it asks to change to.
    pub upgrade: Option<HeaderValue>,
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
        (idempotent && self.body.replayable() && self.upgrade.is_none()).then(|| Self {
            method: self.method.clone(),
            head: self.head.clone(),
            body: self.body.replay(),
            mode: self.mode,
            upgrade: None,
        })
    }
}

impl Failed {
    /// A time-out is not repeated: the client has waited long enough, and the upstream is slow rather than gone.
    fn may_repeat(&self) -> bool {
        !matches!(self, Self::TimedOut | Self::Body(_))
    }
}
