//! Sending one request: an endpoint, one attempt on it, and at most so many further ones, on others where there are some.

use super::attempt::Goal;
use super::choose::{Chosen, NoEndpoint};
use super::pool::Pool;
use super::state::InFlight;
use super::{Endpoint, Upstream};
use crate::http1::Mode;
use crate::message::{Body, BodyError, Response};
use crate::telemetry::metrics::Retry;
use http::{HeaderValue, Method};
use smallvec::SmallVec;
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
    /// The whole head; none when it has left.
    pub head: Vec<u8>,
    pub body: Body,
    pub mode: Mode,
    /// The protocol that it asks to change to.
    pub upgrade: Option<HeaderValue>,
}

/// What a request wants of its upstream.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub response_timeout: Duration,
    /// With `consistent_hash`: the digest that holds it to one endpoint.
    pub affinity: Option<u128>,
}

/// What became of a request.
#[derive(Debug)]
pub struct Sent<'u> {
    /// The reason why there is no answer.
    pub result: Result<(), Failed>,
    /// The endpoint that was tried last.
    pub endpoint: Option<&'u Endpoint>,
    /// Counts the request at its endpoint; to be kept until the answer's body has ended.
    pub held: Option<InFlight>,
}

/// Why there is no answer to pass on.
#[derive(Debug)]
pub enum Failed {
    /// Nothing was tried.
    NoEndpoint(NoEndpoint),
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
    /// Sends the request to an endpoint, and to further ones while that may be and fails; the answer comes into `answer`.
    pub async fn send<'u>(
        &self,
        upstream: &'u Upstream,
        mut request: Outgoing,
        wish: Wish,
        answer: &mut Response,
    ) -> Sent<'u> {
        let mut tried: SmallVec<[usize; 2]> = SmallVec::new();
        let mut chosen = match upstream.choose(wish.affinity, &tried) {
            Ok(chosen) => chosen,
            Err(none) => return Sent { result: Err(Failed::NoEndpoint(none)), endpoint: None, held: None },
        };
        loop {
            let endpoint = &upstream.endpoints[chosen.index];
            let spare = upstream.may_try_again(&tried).then(|| request.replay()).flatten();
            let goal = Goal { upstream, endpoint, patience: wish.response_timeout };
            let tried_now = self.try_once::<true>(goal, &mut request, answer).await;
            let Err(failed) = tried_now else {
                upstream.answered(endpoint, answer.status);
                return Sent { result: Ok(()), endpoint: Some(endpoint), held: chosen.held };
            };
            upstream.failed(endpoint, &failed);
            // Before the next choice: it may be the same endpoint again, and full with this request.
            chosen.held = None;
            let again = (!request.head.is_empty()).then_some(request);
            let next = again.or(spare.filter(|_| failed.may_repeat()));
            let next = next.and_then(|next| Some((next, upstream.choose_again(wish.affinity, &mut tried, &chosen)?)));
            let Some(next) = next else {
                return Sent { result: Err(failed), endpoint: Some(endpoint), held: None };
            };
            (request, chosen) = next;
        }
    }

    /// Closes connections that have been idle for too long; called every few seconds.
    pub fn sweep(&self) {
        self.pools.borrow().iter().flatten().for_each(|pool| pool.sweep());
    }
}

impl Upstream {
    fn may_try_again(&self, tried: &[usize]) -> bool {
        tried.len() < usize::try_from(self.retries).unwrap_or(usize::MAX)
    }

    /// An endpoint for a further try, if there may be one: best one that was not tried yet.
    fn choose_again(&self, affinity: Option<u128>, tried: &mut SmallVec<[usize; 2]>, last: &Chosen) -> Option<Chosen> {
        if !self.may_try_again(tried) {
            return None;
        }
        tried.push(last.index);
        let granted = self.budget.take(self.duration.count(), self.retry_budget);
        self.retried.count(if granted { Retry::Sent } else { Retry::OverBudget });
        if granted { self.choose(affinity, tried).ok() } else { None }
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
        !matches!(self, Self::TimedOut | Self::Body(_) | Self::NoEndpoint(_))
    }
}
